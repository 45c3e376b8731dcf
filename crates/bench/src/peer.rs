//! The other process of `bench raw`. It carries out the orders that the measuring process sends
//! over their one connection, until the connection closes.
//!
//! An order is five little-endian 64-bit numbers: its kind, then the arguments of the kind, then
//! zeros. *Up* is towards this process, *down* is towards the measuring one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, bail};

use super::cold::ColdBuffers;

/// The size of every bulk transfer.
pub(crate) const BULK_BYTES: usize = 64 << 20;
/// The longest frame of a round trip, in bytes. An order for a longer one is refused.
const FRAME_LIMIT: u64 = 1 << 20;
/// The length of an order.
const ORDER_BYTES: usize = 40;

/// How a process waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveMode {
    /// Asleep in the kernel.
    Blocking,
    /// Awake, asking again and again.
    Spinning,
}

/// An order of the measuring process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Receive `BULK_BYTES` in chunks, then answer one byte.
    Up { chunk_bytes: u64 },
    /// Wait for one byte, then send `BULK_BYTES` in chunks.
    Down { chunk_bytes: u64 },
    /// Answer each of `rounds` frames with a frame.
    RoundTrips { rounds: u64, up_bytes: u64, down_bytes: u64, wait: ReceiveMode },
}

impl Order {
    /// The bytes of the order.
    pub(crate) fn encode(self) -> [u8; ORDER_BYTES] {
        let numbers = match self {
            Self::Up { chunk_bytes } => [0, chunk_bytes, 0, 0, 0],
            Self::Down { chunk_bytes } => [1, chunk_bytes, 0, 0, 0],
            Self::RoundTrips { rounds, up_bytes, down_bytes, wait } => {
                [2, rounds, up_bytes, down_bytes, u64::from(wait == ReceiveMode::Spinning)]
            }
        };
        let mut bytes = [0; ORDER_BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; ORDER_BYTES]) -> anyhow::Result<Self> {
        let mut numbers = [0; 5];
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_le_bytes(place.try_into()?);
        }
        let bulk_chunk = |bytes: u64| (1..=BULK_BYTES as u64).contains(&bytes);
        let frame = |bytes: u64| (1..=FRAME_LIMIT).contains(&bytes);
        match numbers {
            [0, chunk_bytes, 0, 0, 0] if bulk_chunk(chunk_bytes) => Ok(Self::Up { chunk_bytes }),
            [1, chunk_bytes, 0, 0, 0] if bulk_chunk(chunk_bytes) => Ok(Self::Down { chunk_bytes }),
            [2, rounds, up_bytes, down_bytes, spinning @ 0..=1] if frame(up_bytes) && frame(down_bytes) => {
                let wait = if spinning == 1 { ReceiveMode::Spinning } else { ReceiveMode::Blocking };
                Ok(Self::RoundTrips { rounds, up_bytes, down_bytes, wait })
            }
            _ => bail!("there is no such order, or its arguments are out of range: {numbers:?}"),
        }
    }
}

/// Connects to the measuring process and serves it until it closes the connection.
pub(crate) fn serve(address: SocketAddr) -> anyhow::Result<()> {
    let stream = TcpStream::connect(address).with_context(|| format!("cannot reach the benchmark at {address}"))?;
    stream.set_nodelay(true)?;
    let mut buffers = ColdBuffers::new(BULK_BYTES);
    let mut bytes = [0; ORDER_BYTES];
    loop {
        match (&stream).read_exact(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let order = Order::decode(&bytes)?;
        // Tells the measuring process to start: this process is awake and its buffers are there.
        (&stream).write_all(&[1])?;
        obey(&stream, order, &mut buffers).with_context(|| format!("cannot carry out {order:?}"))?;
    }
}

fn obey(mut stream: &TcpStream, order: Order, buffers: &mut ColdBuffers) -> io::Result<()> {
    match order {
        Order::Up { chunk_bytes } => {
            receive_in_chunks(stream, buffers.coldest(), chunk_bytes as usize)?;
            stream.write_all(&[1])
        }
        Order::Down { chunk_bytes } => {
            stream.read_exact(&mut [0])?;
            send_in_chunks(stream, buffers.coldest(), chunk_bytes as usize)
        }
        Order::RoundTrips { rounds, up_bytes, down_bytes, wait } => {
            let mut up = vec![0; up_bytes as usize];
            let down = vec![1; down_bytes as usize];
            waiting(stream, wait, || {
                for _ in 0..rounds {
                    receive(stream, &mut up, wait)?;
                    send(stream, &down, wait)?;
                }
                Ok(())
            })
        }
    }
}

/// Writes a buffer, at most `chunk_bytes` per call.
pub(crate) fn send_in_chunks(mut stream: &TcpStream, buffer: &[u8], chunk_bytes: usize) -> io::Result<()> {
    buffer.chunks(chunk_bytes).try_for_each(|chunk| stream.write_all(chunk))
}

/// Fills a buffer, at most `chunk_bytes` per call.
pub(crate) fn receive_in_chunks(mut stream: &TcpStream, buffer: &mut [u8], chunk_bytes: usize) -> io::Result<()> {
    buffer.chunks_mut(chunk_bytes).try_for_each(|chunk| stream.read_exact(chunk))
}

/// Runs `action` while the connection waits in the given way, and then makes the connection
/// blocking.
pub(crate) fn waiting<T>(
    stream: &TcpStream,
    wait: ReceiveMode,
    action: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    stream.set_nonblocking(wait == ReceiveMode::Spinning)?;
    let done = action();
    stream.set_nonblocking(false)?;
    done
}

/// Writes a whole frame.
pub(crate) fn send(mut stream: &TcpStream, frame: &[u8], wait: ReceiveMode) -> io::Result<()> {
    match wait {
        ReceiveMode::Blocking => stream.write_all(frame),
        ReceiveMode::Spinning => spin(frame.len(), ErrorKind::WriteZero, |done| stream.write(&frame[done..])),
    }
}

/// Reads a whole frame.
pub(crate) fn receive(mut stream: &TcpStream, frame: &mut [u8], wait: ReceiveMode) -> io::Result<()> {
    match wait {
        ReceiveMode::Blocking => stream.read_exact(frame),
        ReceiveMode::Spinning => spin(frame.len(), ErrorKind::UnexpectedEof, |done| stream.read(&mut frame[done..])),
    }
}

/// Calls `ask` until all bytes are moved. A call that moves none means that the connection is
/// closed: the error is then `ended`.
fn spin(bytes: usize, ended: ErrorKind, mut ask: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < bytes {
        match ask(done) {
            Ok(0) => return Err(ended.into()),
            Ok(moved) => done += moved,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                std::hint::spin_loop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_decoded_as_they_were_encoded() {
        for order in [
            Order::Up { chunk_bytes: 1 << 16 },
            Order::Down { chunk_bytes: 1 << 20 },
            Order::RoundTrips { rounds: 7, up_bytes: 64, down_bytes: 32, wait: ReceiveMode::Blocking },
            Order::RoundTrips { rounds: 0, up_bytes: 1, down_bytes: 1, wait: ReceiveMode::Spinning },
        ] {
            assert_eq!(Order::decode(&order.encode()).unwrap(), order);
        }
    }

    #[test]
    fn decode_refuses_unknown_orders_and_arguments_out_of_range() {
        for order in [
            Order::Up { chunk_bytes: 0 },
            Order::Down { chunk_bytes: u64::MAX },
            Order::RoundTrips { rounds: 1, up_bytes: FRAME_LIMIT + 1, down_bytes: 1, wait: ReceiveMode::Blocking },
        ] {
            assert!(Order::decode(&order.encode()).is_err());
        }
        assert!(Order::decode(&[9; ORDER_BYTES]).is_err());
    }
}

//! `bench raw`: the machine without Slackwater. Loopback TCP between two processes, and copying
//! memory.
//!
//! Other benchmarks print their figures as ratios to these. A machine's speed drifts from second to
//! second. So each measurement here is one short round, which takes turns with a round of what is
//! compared with it.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use launch::{OutputTarget, Process, Start};

use super::cold::{ColdBuffers, ColdCopy};
use super::measure::{Format, Report, median};
use super::peer::{BULK_BYTES, Order, ReceiveMode, receive, receive_in_chunks, send, send_in_chunks, waiting};

/// Chunk sizes of bulk transfers. The fastest of them counts as the machine's speed.
pub(crate) const CHUNK_BYTES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// How long the other process may take to connect.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The settings of `bench raw`.
#[derive(clap::Args)]
pub struct RawBench {
    /// How many rounds to measure; each figure is their median.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How many round trips each round has.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    round_trips: u32,
    /// Bytes of the frame up and of the frame back, in a round trip.
    #[arg(long, num_args = 2, value_names = ["UP", "BACK"], default_values_t = [64, 64])]
    frame_bytes: Vec<usize>,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// A second process of this program, which serves the other end of a loopback connection.
pub(crate) struct RawPeer {
    process: Process,
    stream: TcpStream,
    buffers: ColdBuffers,
}

impl RawPeer {
    /// Starts the process and waits for it to connect.
    pub(crate) fn start() -> anyhow::Result<Self> {
        Self::start_on(None)
    }

    /// As [`Self::start`], with the other process pinned to `core`.
    pub(crate) fn start_on(core: Option<usize>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on the loopback address")?;
        let address = listener.local_addr()?.to_string();
        let mut process = Start::this_program("the other process")?
            .args(["bench-peer", "raw", "--connect", &address])
            .args(core.map(|core| format!("--core={core}")))
            .stdout(OutputTarget::Inherit)
            .stderr(OutputTarget::Inherit)
            .spawn()?;
        let stream = accept(&listener, &mut process)?;
        Ok(Self { process, stream, buffers: ColdBuffers::new(BULK_BYTES) })
    }

    /// Sends 64 MiB to the other process, between buffers that are in no cache. Returns 10⁹ bytes
    /// per second.
    pub(crate) fn throughput(&mut self, chunk_bytes: usize) -> anyhow::Result<f64> {
        self.order(Order::Up { chunk_bytes: chunk_bytes as u64 })?;
        let buffer = self.buffers.coldest();
        let start = Instant::now();
        send_in_chunks(&self.stream, buffer, chunk_bytes)?;
        (&self.stream).read_exact(&mut [0])?;
        Ok(BULK_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// The same from the other process to this one.
    pub(crate) fn throughput_down(&mut self, chunk_bytes: usize) -> anyhow::Result<f64> {
        self.order(Order::Down { chunk_bytes: chunk_bytes as u64 })?;
        let buffer = self.buffers.coldest();
        let start = Instant::now();
        (&self.stream).write_all(&[1])?;
        receive_in_chunks(&self.stream, buffer, chunk_bytes)?;
        Ok(BULK_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// The median seconds of a frame up and a frame back, both processes asleep while they wait.
    pub(crate) fn round_trip_blocking(
        &mut self,
        rounds: u32,
        up_bytes: usize,
        down_bytes: usize,
    ) -> anyhow::Result<f64> {
        self.round_trip(rounds, up_bytes, down_bytes, ReceiveMode::Blocking)
    }

    /// The median seconds of a frame up and a frame back, both processes awake while they wait.
    pub(crate) fn round_trip_spinning(
        &mut self,
        rounds: u32,
        up_bytes: usize,
        down_bytes: usize,
    ) -> anyhow::Result<f64> {
        self.round_trip(rounds, up_bytes, down_bytes, ReceiveMode::Spinning)
    }

    fn round_trip(
        &mut self,
        rounds: u32,
        up_bytes: usize,
        down_bytes: usize,
        wait: ReceiveMode,
    ) -> anyhow::Result<f64> {
        let rounds = u64::from(rounds);
        self.order(Order::RoundTrips { rounds, up_bytes: up_bytes as u64, down_bytes: down_bytes as u64, wait })?;
        let up = vec![1; up_bytes];
        let mut down = vec![0; down_bytes];
        let mut seconds = waiting(&self.stream, wait, || {
            (0..rounds)
                .map(|_| {
                    let start = Instant::now();
                    send(&self.stream, &up, wait)?;
                    receive(&self.stream, &mut down, wait)?;
                    Ok(start.elapsed().as_secs_f64())
                })
                .collect::<Result<Vec<f64>, _>>()
        })?;
        Ok(median(&mut seconds))
    }

    /// Sends an order and waits until the other process is ready to carry it out.
    fn order(&mut self, order: Order) -> anyhow::Result<()> {
        (&self.stream).write_all(&order.encode())?;
        (&self.stream).read_exact(&mut [0]).with_context(|| format!("the other process refused {order:?}"))
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // The other process only works on this connection, so closing it ends the process. An error
        // means that it has already ended.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// Waits for the other process to connect. Fails if it ends first or takes too long.
fn accept(listener: &TcpListener, process: &mut Process) -> anyhow::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = process.try_wait()? {
            bail!("the other process of the benchmark ended before it connected: {status}");
        }
        if start.elapsed() > START_LIMIT {
            bail!("the other process of the benchmark did not connect within {START_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The command `bench raw`.
pub(crate) fn run(options: &RawBench) -> anyhow::Result<()> {
    let up_bytes = options.frame_bytes[0];
    let back_bytes = options.frame_bytes[1];
    let mut peer = RawPeer::start()?;
    let mut copy = ColdCopy::new(BULK_BYTES);
    let names: Vec<String> = (CHUNK_BYTES.iter())
        .flat_map(|bytes| ["send", "receive"].map(|way| format!("{way}_in_{}_kib_chunks_gb_per_s", bytes >> 10)))
        .chain(["copy_gb_per_s", "round_trip_blocking_us", "round_trip_spinning_us"].map(str::to_owned))
        .collect();
    let mut columns = vec![Vec::new(); names.len()];
    for _ in 0..options.rounds {
        let mut round = Vec::new();
        for chunk_bytes in CHUNK_BYTES {
            round.push(peer.throughput(chunk_bytes)?);
            round.push(peer.throughput_down(chunk_bytes)?);
        }
        round.push(copy.gb_per_s());
        round.push(peer.round_trip_blocking(options.round_trips, up_bytes, back_bytes)? * 1e6);
        round.push(peer.round_trip_spinning(options.round_trips, up_bytes, back_bytes)? * 1e6);
        columns.iter_mut().zip(round).for_each(|(column, value)| column.push(value));
    }
    let mut report = Report::default();
    for (name, column) in names.iter().zip(&mut columns) {
        report.number(name, median(column));
    }
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

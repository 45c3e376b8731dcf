//! A connection through shared memory, whose other end passes any handshake bytes, any file in
//! place of the memory, and writes anything into it: the node reads, writes and ends it without
//! panic, and reads no more than the ring holds.
#![no_main]

use inputs::number;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use net::SharedStream;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

const RING_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096 + 2 * RING_BYTES;
/// Bytes from one control word to the next.
const WORD_STRIDE: u64 = 128;
const STEPS: usize = 60;
const MOST_BYTES: usize = 1 << 20;

/// The memory, as the peer makes it: mostly right.
fn memory(input: &mut Unstructured) -> Result<Option<File>> {
    let Ok(file) = memfd_create("fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) else { return Ok(None) };
    let bytes = if input.ratio(7, 8)? { PAGE_BYTES } else { number(input)? % (2 * PAGE_BYTES) };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let seals = if input.ratio(7, 8)? { all } else { SealFlags::GROW };
    if ftruncate(&file, bytes).is_err() || fcntl_add_seals(&file, seals).is_err() {
        return Ok(None);
    }
    Ok(Some(file.into()))
}

fn pass(socket: &UnixStream, greeting: &[u8], files: &[&File]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(socket, &[IoSlice::new(greeting)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok();
}

fn run(input: &mut Unstructured) -> Result<()> {
    let Ok((hostile, own)) = UnixStream::pair() else { return Ok(()) };
    own.set_nonblocking(true).expect("a socket");
    let Ok(mut stream) = SharedStream::accept(mio::net::UnixStream::from_std(own), None) else { return Ok(()) };
    let Some(file) = memory(input)? else { return Ok(()) };
    let mut greeting = b"SLKWSHM\x01".to_vec();
    greeting.extend_from_slice(&RING_BYTES.to_le_bytes());
    if input.ratio(1, 4)? {
        let at = input.choose_index(greeting.len())?;
        greeting[at] ^= input.int_in_range(0..=255u8)?;
        greeting.truncate(input.int_in_range(0..=16)?);
    }
    let count = if input.ratio(7, 8)? { 1 } else { input.int_in_range(0..=3)? };
    pass(&hostile, &greeting, &vec![&file; count]);
    let mut room = vec![0; 64 << 10];
    let mut hostile = Some(hostile);
    for _ in 0..STEPS {
        match input.int_in_range(0..=7)? {
            0 | 1 => {
                // Any position of either ring, or a request for a doorbell.
                let word = input.int_in_range(0..=7u64)?;
                let value = if input.arbitrary()? { number(input)? } else { input.int_in_range(0..=2 * RING_BYTES)? };
                file.write_all_at(&value.to_le_bytes(), word * WORD_STRIDE).ok();
            }
            2 => {
                let at = input.int_in_range(0..=PAGE_BYTES - 8)?;
                file.write_all_at(&input.arbitrary::<u64>()?.to_le_bytes(), at).ok();
            }
            3 => drop(hostile.iter().map(|mut socket| socket.write(&[1; 3])).count()),
            4 => {
                let length = input.int_in_range(0..=room.len())?;
                if let Ok(count) = stream.read(&mut room[..length]) {
                    assert!(count <= length);
                }
            }
            5 => {
                let length = input.int_in_range(0..=room.len())?;
                if let Ok(count) = stream.write(&room[..length]) {
                    assert!(count <= length);
                }
            }
            6 => stream.hear(input.ratio(1, 16)?),
            _ if input.ratio(1, 16)? => hostile = None,
            _ => drop(stream.advance()),
        }
    }
    // After the peer's end, what is left can be read, and then nothing more comes.
    drop(hostile);
    stream.hear(true);
    let mut left = 0;
    while let Ok(count @ 1..) = stream.read(&mut room) {
        left += count as u64;
        assert!(left <= RING_BYTES, "more bytes than a ring holds");
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    inputs::within(MOST_BYTES, || run(&mut Unstructured::new(bytes))).ok();
});

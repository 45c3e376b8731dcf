//! Frames come out of a connection as they went in, however the bytes are cut; what is damaged is refused or ends it.
#![no_main]

use inputs::{SERVER, WORKER};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use net::Inbox;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use wire::Pool;

/// A socket that gives out what it has in pieces, then would block.
struct Pieces(VecDeque<Vec<u8>>);

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.0.front_mut() else { return Err(ErrorKind::WouldBlock.into()) };
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        if piece.is_empty() {
            self.0.pop_front();
        }
        Ok(count)
    }
}

fn run(input: &mut Unstructured) -> Result<()> {
    let mut sent = Vec::new();
    for _ in 0..input.int_in_range(1..=4)? {
        sent.push(inputs::bytes_of(&inputs::frame(input, WORKER, SERVER)?));
    }
    let mut bytes = sent.concat();
    // Some of what we write is no frame: a key list of half a key, say.
    let malformed = sent.iter().any(|bytes| matches!(inputs::cut(bytes), Some((Err(_), _))));
    let damaged = malformed || input.arbitrary()?;
    if damaged && !malformed {
        let index = input.choose_index(bytes.len())?;
        bytes[index] ^= input.int_in_range(1..=255)?;
    }
    let mut pieces = VecDeque::new();
    while !bytes.is_empty() {
        let count = input.int_in_range(1..=300).unwrap_or(300).min(bytes.len());
        pieces.push_back(bytes.drain(..count).collect());
    }
    let (mut socket, mut inbox, pool) = (Pieces(pieces), Inbox::new(), Pool::new());
    let mut received = Vec::new();
    loop {
        inbox.may_have_more = true;
        match inbox.next(&mut socket, &pool) {
            Ok(Some(frame)) => received.push(inputs::bytes_of(&frame)),
            Ok(None) if socket.0.is_empty() => break,
            Ok(None) => {}
            Err(_) if damaged => return Ok(()),
            Err(ended) => panic!("{ended:?} of what we wrote ourselves"),
        }
    }
    assert!(damaged || received == sent);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});

//! Frames are received from a connection as they were sent, in any division of the bytes. A damaged
//! frame is refused or closes the connection.
#![no_main]

use inputs::{SERVER, WORKER};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use net::{ChunkedSocket, Inbox, Promises};
use std::collections::VecDeque;
use wire::Pool;

fn run(input: &mut Unstructured) -> Result<()> {
    let mut sent = Vec::new();
    for _ in 0..input.int_in_range(1..=4)? {
        sent.push(inputs::bytes_of(&inputs::frame(input, WORKER, SERVER)?));
    }
    let mut bytes = sent.concat();
    // Some generated frames are malformed, such as one with a key list of half a key.
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
    let mut socket = ChunkedSocket(pieces);
    // Some buffers grow while bytes arrive.
    let mut inbox = Inbox::new(Promises::new(100_000));
    let pool = Pool::new();
    let mut received = Vec::new();
    loop {
        inbox.may_have_more = true;
        match inbox.next(&mut socket, &pool) {
            Ok(Some(frame)) => received.push(inputs::bytes_of(&frame)),
            Ok(None) if socket.0.is_empty() => break,
            Ok(None) => {}
            Err(_) if damaged => return Ok(()),
            Err(ended) => panic!("{ended:?} on undamaged frames"),
        }
    }
    assert!(damaged || received == sent);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    run(&mut Unstructured::new(bytes)).ok();
});

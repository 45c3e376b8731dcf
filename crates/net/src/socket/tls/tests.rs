//! Two ends in memory, over pipes that take and give few bytes at a time.

use super::*;
use identity::{JobToken, Token};
use rustls::pki_types::UnixTime;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use types::{Role, SplitMix64};

/// One end of a pair of pipes. Each holds at most `room` bytes.
struct PipeEnd {
    inward: Rc<RefCell<VecDeque<u8>>>,
    outward: Rc<RefCell<VecDeque<u8>>>,
    room: usize,
}

impl PipeEnd {
    fn pair(room: usize) -> (Self, Self) {
        let one = Rc::new(RefCell::new(VecDeque::new()));
        let other = Rc::new(RefCell::new(VecDeque::new()));
        (Self { inward: one.clone(), outward: other.clone(), room }, Self { inward: other, outward: one, room })
    }
}

impl Read for PipeEnd {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let mut inward = self.inward.borrow_mut();
        if inward.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = into.len().min(inward.len());
        into[..count].iter_mut().zip(inward.drain(..count)).for_each(|(into, byte)| *into = byte);
        Ok(count)
    }
}

impl Write for PipeEnd {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut outward = self.outward.borrow_mut();
        let count = bytes.len().min(self.room - outward.len());
        outward.extend(&bytes[..count]);
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn credentials(token: &JobToken, role: Role) -> Credentials {
    let token = Token::Job(token.clone());
    Credentials::of_token(&token, role, "test", UnixTime::now()).expect("signed")
}

fn job() -> JobToken {
    JobToken::create().expect("random bytes")
}

fn pair(room: usize) -> (TlsStream<PipeEnd>, TlsStream<PipeEnd>) {
    let token = job();
    let (one, other) = PipeEnd::pair(room);
    let caller = TlsStream::call(one, &credentials(&token, Role::Worker)).expect("a caller");
    let called = TlsStream::accept(other, &credentials(&token, Role::Server)).expect("a called end");
    (caller, called)
}

/// Writes as much of `bytes` as the stream takes, and returns how much that was.
fn write_some(stream: &mut TlsStream<PipeEnd>, bytes: &[u8]) -> usize {
    let result = if bytes.is_empty() { stream.flush().map(|()| 0) } else { stream.write(bytes) };
    match result {
        Ok(count) => count,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn read_some(stream: &mut TlsStream<PipeEnd>, most: usize, into: &mut Vec<u8>) {
    let mut bytes = vec![0; most];
    match stream.read(&mut bytes) {
        Ok(count) => into.extend_from_slice(&bytes[..count]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn bytes_arrive_as_written_both_ways_for_any_room_and_length() {
    let mut random = SplitMix64::new(5);
    for room in [1, 100, 5_000, 70_000, 1 << 22] {
        let (mut caller, mut called) = pair(room);
        let size = (room * 600).clamp(3_000, 700_000);
        let up: Vec<u8> = (0..size).map(|at| (at ^ at >> 7) as u8).collect();
        let down: Vec<u8> = up.iter().rev().copied().collect();
        let mut sent = [0, 0];
        let mut arrived = [Vec::new(), Vec::new()];
        while arrived[0].len() < up.len() || arrived[1].len() < down.len() || called.has_unsent() {
            let most = 1 + random.draw() as usize % 40_000;
            let end = |sent: usize| (sent + most).min(size);
            sent[0] += write_some(&mut caller, &up[sent[0]..end(sent[0])]);
            assert!(called.peer().is_some() || arrived[0].is_empty(), "nothing arrives before the handshake has ended");
            read_some(&mut called, 1 + random.draw() as usize % 50_000, &mut arrived[0]);
            sent[1] += write_some(&mut called, &down[sent[1]..end(sent[1])]);
            read_some(&mut caller, most, &mut arrived[1]);
        }
        assert!(arrived == [up, down], "room for {room}");
        assert_eq!(called.peer().map(PeerIdentity::role), Some(Role::Worker));
        assert_eq!(caller.peer().map(PeerIdentity::role), Some(Role::Server));
    }
}

/// Lets both ends go on for a while. Returns the first error of each.
fn errors<'a>(caller: &'a mut dyn Read, called: &'a mut dyn Read) -> [String; 2] {
    let mut found = [String::new(), String::new()];
    let mut ends = [caller, called];
    for _ in 0..20 {
        for (end, found) in ends.iter_mut().zip(&mut found) {
            match end.read(&mut [0; 100]) {
                Ok(count) => assert_eq!(count, 0, "no content arrives"),
                Err(error) if error.kind() == ErrorKind::WouldBlock || !found.is_empty() => {}
                Err(error) => *found = error.to_string(),
            }
        }
    }
    found
}

#[test]
fn strangers_and_plain_peers_are_refused_with_a_next_step() {
    let token = job();
    let caller_of = |socket| TlsStream::call(socket, &credentials(&token, Role::Worker)).expect("a caller");
    let called_of =
        |socket, token: &JobToken| TlsStream::accept(socket, &credentials(token, Role::Server)).expect("a called end");
    let (one, other) = PipeEnd::pair(1 << 20);
    let [of_caller, of_called] = errors(&mut caller_of(one), &mut called_of(other, &job()));
    assert!(of_caller.contains("the same token file"), "{of_caller}");
    assert!(of_called.contains("belongs to another job"), "{of_called}");
    let (mut one, other) = PipeEnd::pair(1 << 20);
    one.write_all(b"SLKW plain bytes that are no TLS record, as an insecure node sends them").expect("room");
    let mut called = called_of(other, &token);
    let error = called.read(&mut [0; 10]).expect_err("no TLS").to_string();
    assert!(error.contains("does not speak TLS"), "{error}");
    let mut answer = [0; 2];
    one.read_exact(&mut answer).expect("an alert");
    assert_eq!(answer, [0x15, 3], "a plain peer can see that this is TLS");
}

#[test]
fn a_damaged_record_ends_the_connection() {
    let (mut caller, mut called) = pair(1 << 20);
    let mut arrived = Vec::new();
    while caller.peer().is_none() || called.peer().is_none() {
        read_some(&mut caller, 1, &mut arrived);
        read_some(&mut called, 1, &mut arrived);
    }
    assert_eq!(write_some(&mut caller, &[7; 1000]), 1000);
    called.socket().inward.borrow_mut()[500] ^= 1;
    let error = called.read(&mut [0; 1000]).expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

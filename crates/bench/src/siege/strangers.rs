//! Attacks of a peer without a token of the job: none of its frames may reach a machine.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use types::{NodeId, Role, SplitMix64};
use wire::{Control, Frame, Head, Message, Sample, sample_frame, sample_of_each_kind};

use super::attacker::Tally;
use super::line::{Line, Mask, bytes_of, client_hello, connect};
use super::tokens::{Forged, forged};

/// How long a stranger waits for an answer that must not come. The connection closes at once where
/// the node refuses it.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);
/// Connections that are left open without a whole handshake, at most.
const HALF_OPEN: usize = 32;
/// Connections of one flood.
const FLOOD: usize = 30;
/// Bytes of garbage.
const GARBAGE: usize = 4 << 10;

/// A stranger: what it shows, and the connections that it holds open.
pub(super) struct Stranger {
    masks: Vec<(Forged, Mask)>,
    half_open: VecDeque<TcpStream>,
}

impl Stranger {
    pub(super) fn new(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self { masks: forged(folder)?, half_open: VecDeque::new() })
    }

    /// Tries everything once on one node. Shows forged certificates to the coordinator, which
    /// would answer.
    pub(super) fn try_everything(
        &mut self,
        address: SocketAddr,
        coordinator: SocketAddr,
        random: &mut SplitMix64,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        self.speak_plainly(address, random, tally);
        for (forged, mask) in &self.masks {
            tally.tried(forged.name());
            let answered = Line::call(coordinator, mask).is_ok_and(|line| is_answered(line, random));
            tally.answered_stranger(answered);
        }
        self.stay_half_open(address, &client_hello()?, random, tally);
        tally.tried("garbage");
        let garbage: Vec<u8> = (0..GARBAGE).map(|_| random.draw() as u8).collect();
        tally.answered_stranger(is_plain_answer(address, &garbage));
        for _ in 0..FLOOD {
            tally.tried("connections_without_a_byte");
            drop(connect(address));
        }
        Ok(())
    }

    /// Frames of a random kind without TLS, and headers that announce the longest frames.
    fn speak_plainly(&self, address: SocketAddr, random: &mut SplitMix64, tally: &mut Tally) {
        for message in sample_of_each_kind(random) {
            // A frame of every kind takes a connection of its own: the node closes it at the first.
            if random.below(4) > 0 {
                continue;
            }
            tally.tried("plaintext_frame");
            let from = NodeId::sample(random);
            let frame = sample_frame(message, from, NodeId::Coordinator, random);
            tally.answered_stranger(is_plain_answer(address, &bytes_of(&frame)));
        }
        tally.tried("plaintext_long_header");
        let mut header = bytes_of(&ask_status(NodeId::Worker(0)));
        header[8..20].copy_from_slice(&[0xff, 0xff, 0x3f, 0, 0, 0, 16, 0, 0, 0, 16, 0]);
        tally.answered_stranger(is_plain_answer(address, &header));
        tally.tried("long_tls_record");
        // A record of a handshake with the largest length, and nothing in it.
        tally.answered_stranger(is_plain_answer(address, &[0x16, 3, 1, 0xff, 0xff]));
    }

    /// Leaves handshakes half done, and goes on with some of them byte by byte.
    fn stay_half_open(&mut self, address: SocketAddr, hello: &[u8], random: &mut SplitMix64, tally: &mut Tally) {
        let Ok(mut stream) = connect(address) else { return };
        tally.tried("half_handshake");
        let sent = random.below(hello.len() as u64) as usize;
        stream.write_all(&hello[..sent]).ok();
        self.half_open.push_back(stream);
        if self.half_open.len() > HALF_OPEN {
            self.half_open.pop_front();
        }
        for stream in &mut self.half_open {
            tally.tried("slow_loris_byte");
            stream.write_all(&[0]).ok();
        }
    }
}

/// The question that every node with a certificate may ask.
pub(super) fn ask_status(from: NodeId) -> Frame {
    Frame { head: Head::plain(from, NodeId::Coordinator), message: Message::Control(Control::AskStatus) }
}

/// Whether a node answers a stranger who has done its part of a handshake.
fn is_answered(mut line: Line, random: &mut SplitMix64) -> bool {
    // Without a mistake in it, so that only the missing certificate can be the reason.
    let from = super::members::provisional(Role::Worker, random);
    line.send(&ask_status(from)).is_ok() && matches!(line.next(ANSWER_LIMIT), Ok(Some(_)))
}

/// Whether a node answers these bytes by a frame.
fn is_plain_answer(address: SocketAddr, bytes: &[u8]) -> bool {
    let Ok(mut stream) = connect(address) else { return false };
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok();
    if stream.write_all(bytes).is_err() {
        return false;
    }
    stream.shutdown(std::net::Shutdown::Write).ok();
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        answer.extend_from_slice(&piece[..count]);
        if answer.len() > GARBAGE {
            break;
        }
    }
    answer.starts_with(b"SLKW")
}

//! Go-back-N retransmission, the sender's side: the numbered stream of messages to one shard. The
//! stream keeps each message until it is acknowledged. A resend starts at the first missing one.
//!
//! Reads are not part of the numbered stream. Each has a request number of its own, and at most
//! [`READS_AT_ONCE`] are under way.

use super::message::{ReadKeys, Reading, StreamMessage};
use super::push_codec::KeyForm;
use codec::{Formats, PayloadFormat, Signatures};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, NodeId, NumberType, Placed, PositionRange, READS_AT_ONCE, ShardId, Span, TableId, Time};
use wire::{
    CodecPipeline, Frame, Head, KeyPart, KeySlice, Marker, Message, Outbox, Pull, Push, Signature, Tune, Wants,
};

/// One numbered message of the stream, kept as it was first sent.
pub(crate) struct SentMessage {
    pub number: u64,
    clock: Clock,
    examples: u64,
    pub message: StreamMessage,
}

/// A read of no rows, which the shard answers when it has reached this frontier.
#[derive(Clone, Copy)]
struct FrontierRequest {
    request: u64,
    frontier: Clock,
}

/// A worker's end of the stream to one shard.
pub(crate) struct ShardStream {
    placed: Placed,
    table: TableId,
    number: NumberType,
    /// The sequence number of the next message.
    next: u64,
    /// The highest sequence number that the shard has acknowledged.
    acknowledged: u64,
    unacknowledged: VecDeque<SentMessage>,
    /// Unanswered parts of reads, by request number.
    reads: BTreeMap<u64, Reading>,
    /// The reads among them that are not sent yet: enough are under way, or they wait for
    /// bandwidth.
    unsent: BTreeSet<u64>,
    /// Whether bandwidth is bounded: then [`ShardStream::send_unsent`] sends reads one by one.
    paced: bool,
    /// The highest frontier that the shard has told.
    frontier: Clock,
    /// The open request to be told when the frontier is high enough for another push.
    frontier_request: Option<FrontierRequest>,
    /// Key lists that the shard knows by their signatures.
    known: Signatures,
    /// The form of key lists that go in full.
    key_form: KeyForm,
    /// How many examples the shard has not been told of.
    untold: u64,
    /// The first clock that the worker took part in.
    since: Clock,
    /// When the worker last sent to the shard or heard from it: the resend timeout counts from
    /// here.
    moved: Time,
}

impl ShardStream {
    pub fn new(placed: Placed, table: TableId, number: NumberType, since: Clock) -> Self {
        Self {
            placed,
            since,
            table,
            number,
            next: 1,
            acknowledged: 0,
            unacknowledged: VecDeque::new(),
            reads: BTreeMap::new(),
            unsent: BTreeSet::new(),
            paced: false,
            frontier: Clock(0),
            frontier_request: None,
            known: Signatures::default(),
            key_form: KeyForm::Plain,
            untold: 0,
            moved: Time::default(),
        }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.placed.shard
    }

    /// The server that answers for the shard.
    pub fn owner(&self) -> NodeId {
        self.placed.owner
    }

    /// The positions of the shard.
    pub fn range(&self) -> PositionRange {
        self.placed.range
    }

    /// Sets the form of key lists that go in full.
    pub fn set_key_form(&mut self, key_form: KeyForm) {
        self.key_form = key_form;
    }

    /// Sets whether reads wait for bandwidth.
    pub fn set_paced(&mut self, paced: bool) {
        self.paced = paced;
    }

    /// Adds examples that a later message tells the shard.
    pub fn add_examples(&mut self, examples: u64) {
        self.untold = self.untold.saturating_add(examples);
    }

    /// Takes the examples that the shard has not been told of, for the caller to tell it.
    pub fn take_examples(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }

    /// The sequence number of the last message so far.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Whether all of these sorted positions belong to this shard.
    pub fn owns(&self, positions: &[u64]) -> bool {
        let owned = |position: &u64| self.placed.range.contains(types::Position(*position));
        positions.first().is_none_or(owned) && positions.last().is_none_or(owned)
    }

    /// Whether the shard has answered everything, and no read waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.unacknowledged.is_empty() && self.reads.is_empty() && self.frontier_request.is_none()
    }

    /// Whether the shard has acknowledged every message of the stream.
    pub fn is_acknowledged(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Whether the shard has not answered something that was sent.
    pub fn awaits_answer(&self) -> bool {
        !self.unacknowledged.is_empty() || self.reads.len() > self.unsent.len() || self.frontier_request.is_some()
    }

    /// How many messages are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// The messages with numbers above `contains`, which an answer does not reflect. `None` if the
    /// worker has freed some of them, because the shard has acknowledged them since.
    pub fn unseen(&self, contains: u64) -> Option<impl Iterator<Item = &StreamMessage>> {
        let known = contains >= self.acknowledged;
        let unseen = move |sent: &&SentMessage| sent.number > contains;
        known.then(|| self.unacknowledged.iter().filter(unseen).map(|sent| &sent.message))
    }

    /// Frees the values of messages, in a run that is over.
    pub fn free_values(&mut self) {
        self.unacknowledged.iter_mut().for_each(|sent| sent.message.free_values());
    }

    /// Whether an answer is missing, and nothing was sent or heard for the resend timeout `after`.
    pub fn is_overdue(&self, now: Time, after: Span) -> bool {
        self.awaits_answer() && now.since(self.moved) >= after
    }

    /// Restarts the resend timeout, because something was sent or heard.
    pub fn touch(&mut self, now: Time) {
        self.moved = now;
    }

    /// The highest frontier that the shard has told.
    pub fn frontier(&self) -> Clock {
        self.frontier
    }

    /// The shard has told its frontier.
    pub fn reaches(&mut self, frontier: Clock) {
        self.frontier = self.frontier.max(frontier);
    }

    /// Asks the shard to tell when it has reached a frontier. `None` if a request for it is open.
    pub fn request_frontier(&mut self, head: Head, request: u64, frontier: Clock) -> Option<Frame> {
        if self.frontier_request.is_some_and(|asked| asked.frontier >= frontier) {
            return None;
        }
        let asked = FrontierRequest { request, frontier };
        self.frontier_request = Some(asked);
        Some(self.frontier_frame(head, asked))
    }

    /// Whether `request` is the open request for a frontier.
    pub fn is_frontier_request(&self, request: u64) -> bool {
        self.frontier_request.is_some_and(|asked| asked.request == request)
    }

    /// Closes the request for a frontier, if this is its number. Returns whether it is.
    pub fn take_frontier_answer(&mut self, request: u64) -> bool {
        let is_answer = self.is_frontier_request(request);
        if is_answer {
            self.frontier_request = None;
        }
        is_answer
    }

    fn frontier_frame(&self, mut head: Head, asked: FrontierRequest) -> Frame {
        head.to = self.placed.owner;
        let keys = KeyPart::Run { first: self.placed.range.first, count: 0 };
        // At clock 0 the table's own consistency rule never holds the read back.
        head.clock = Clock(0);
        Frame {
            head,
            message: Message::Pull(Pull {
                table: self.table,
                shard: self.placed.shard,
                request: asked.request,
                after: 0,
                frontier: asked.frontier,
                subscribe: false,
                deltas: None,
                wants: Wants::Values,
                keys,
            }),
        }
    }

    fn may_send_read(&self) -> bool {
        self.reads.len() - self.unsent.len() < READS_AT_ONCE
    }

    /// Adds a part of a read. Sends it at once, unless enough are under way or reads wait for
    /// bandwidth.
    pub fn read(&mut self, head: Head, request: u64, reading: Reading, out: &mut Outbox) {
        if !self.paced && self.may_send_read() {
            out.send(self.read_frame(head, request, &reading));
        } else {
            self.unsent.insert(request);
        }
        self.reads.insert(request, reading);
    }

    /// Takes a part of a read that is answered, or that the caller sends anew.
    pub fn take_read(&mut self, request: u64) -> Option<Reading> {
        self.unsent.remove(&request);
        self.reads.remove(&request)
    }

    /// Sends the next unsent read, if one more may be under way and bandwidth is not bounded.
    /// Returns whether it sent one.
    pub fn next_read(&mut self, head: Head, out: &mut Outbox) -> bool {
        let frame = if self.paced { None } else { self.send_unsent(head) };
        let sent = frame.is_some();
        frame.into_iter().for_each(|frame| out.send(frame));
        sent
    }

    /// The request number of the first read that only waits for bandwidth.
    pub fn first_unsent(&self) -> Option<u64> {
        self.unsent.first().copied().filter(|_| self.may_send_read())
    }

    /// The frame of [`ShardStream::first_unsent`], which counts as sent from now on.
    pub fn send_unsent(&mut self, head: Head) -> Option<Frame> {
        let request = self.first_unsent()?;
        self.unsent.remove(&request);
        let reading = self.reads.remove(&request)?;
        let frame = self.read_frame(head, request, &reading);
        self.reads.insert(request, reading);
        Some(frame)
    }

    /// Adds a message to the stream, with the examples that the shard has not been told of, and
    /// returns its frame.
    pub fn append(&mut self, mut head: Head, message: StreamMessage) -> Frame {
        head.examples = self.take_examples();
        self.append_with_examples(head, message)
    }

    /// Adds a message with the examples that its head already has. A message that waited for
    /// bandwidth needs this: examples added since may belong to a later clock.
    pub fn append_with_examples(&mut self, head: Head, message: StreamMessage) -> Frame {
        let sent = SentMessage { number: self.next, clock: head.clock, examples: head.examples, message };
        self.next += 1;
        let frame = self.frame(head, &sent);
        self.unacknowledged.push_back(sent);
        frame
    }

    fn frame(&mut self, mut head: Head, sent: &SentMessage) -> Frame {
        head.to = self.placed.owner;
        head.number = sent.number;
        head.clock = sent.clock;
        head.examples = sent.examples;
        let table = self.table;
        let shard = self.placed.shard;
        let settled = self.acknowledged;
        let message = match &sent.message {
            StreamMessage::Push { keys, values, formats, writes, .. } => {
                let none = KeyPart::Run { first: self.placed.range.first, count: 0 };
                let keys = if keys.is_empty() { none } else { self.key_part(keys) };
                head.codecs = pipeline_of(&keys, *formats);
                Message::Push(Push {
                    table,
                    shard,
                    settled,
                    number: self.number,
                    writes: *writes,
                    keys,
                    values: values.clone(),
                })
            }
            StreamMessage::Marker => Message::Marker(Marker { table, shard, settled, since: self.since }),
            StreamMessage::Tune { at, setting, .. } => {
                Message::Tune(Tune { table, shard, settled, at: *at, setting: *setting })
            }
        };
        Frame { head, message }
    }

    /// The form in which a list goes: in full the first time, and by its signature from then on.
    /// Keys chosen from a list that the shard knows go as bits.
    fn key_part(&mut self, keys: &KeySlice) -> KeyPart {
        if let Some(part) = self.choice(keys) {
            return part;
        }
        let Some(signature) = keys.signature() else { return keys.by_signature() };
        let is_new = self.known.is_new(signature.0, keys.range().start as u64, keys.len() as u32);
        if is_new || self.key_form == KeyForm::Spelt { self.key_form.in_full(keys) } else { keys.by_signature() }
    }

    /// The keys as a choice, if the shard knows a part of a list that all of them were chosen from.
    fn choice(&self, keys: &KeySlice) -> Option<KeyPart> {
        if self.key_form == KeyForm::Spelt {
            return None;
        }
        let (signature, span) = keys.chosen_from()?;
        let (start, count) = self.known.piece(signature.0, span.start as u64..span.end as u64)?;
        keys.by_choice(start, count)
    }

    /// Another server answers for the shard from now on. It knows no key lists.
    pub fn move_to(&mut self, owner: NodeId) {
        self.placed.owner = owner;
        self.known = Signatures::default();
    }

    /// The shard has forgotten a list.
    pub fn forget(&mut self, signature: Signature) {
        self.known.forget(signature.0);
    }

    /// The frame of a read.
    fn read_frame(&mut self, mut head: Head, request: u64, reading: &Reading) -> Frame {
        head.to = self.placed.owner;
        head.clock = reading.clock;
        let keys = match &reading.keys {
            ReadKeys::Scan { range, .. } => KeyPart::Scan { range: *range },
            ReadKeys::Straight { keys, .. } | ReadKeys::Scattered { keys, .. } => self.key_part(keys),
            ReadKeys::Deltas { .. } => KeyPart::Run { first: self.placed.range.first, count: 0 },
            // The answer names its rows, so the shard needs the keys themselves.
            ReadKeys::RowState { keys, .. } => self.key_form.in_full(keys),
        };
        head.codecs = pipeline_of(&keys, Formats::default());
        let pull = Pull {
            table: self.table,
            shard: self.placed.shard,
            request,
            after: reading.after,
            frontier: Clock(0),
            subscribe: reading.subscribe,
            deltas: reading.deltas,
            wants: reading.wants,
            keys,
        };
        Frame { head, message: Message::Pull(pull) }
    }

    /// The unacknowledged messages from number `next` on, as they were first sent.
    pub fn resend(&mut self, head: Head, next: u64) -> Vec<Frame> {
        let messages = std::mem::take(&mut self.unacknowledged);
        let missing = messages.iter().filter(|sent| sent.number >= next);
        let frames = missing.map(|sent| self.frame(head, sent)).collect();
        self.unacknowledged = messages;
        frames
    }

    /// Every read under way, to send again.
    pub fn resend_reads(&mut self, head: Head) -> Vec<Frame> {
        let reads = std::mem::take(&mut self.reads);
        let unsent = std::mem::take(&mut self.unsent);
        let sent = reads.iter().filter(|(request, _)| !unsent.contains(request));
        let mut frames: Vec<Frame> = sent.map(|(request, reading)| self.read_frame(head, *request, reading)).collect();
        (self.reads, self.unsent) = (reads, unsent);
        frames.extend(self.frontier_request.map(|asked| self.frontier_frame(head, asked)));
        frames
    }

    /// Takes the messages that the shard acknowledges by finishing everything up to `through`.
    pub fn finish(&mut self, through: u64) -> Vec<SentMessage> {
        self.acknowledged = self.acknowledged.max(through.min(self.last()));
        let done = self.unacknowledged.partition_point(|sent| sent.number <= through);
        self.unacknowledged.drain(..done).collect()
    }
}

/// The formats that the payloads of a frame are in, for its head.
fn pipeline_of(keys: &KeyPart, values: Formats) -> CodecPipeline {
    let mut pipeline = if let KeyPart::Packed { .. } = keys {
        Formats::default().then(PayloadFormat::Keys)
    } else {
        Formats::default()
    };
    for id in values.0.into_iter().take_while(|id| *id != 0) {
        if let Some(format) = PayloadFormat::from_id(id) {
            pipeline = pipeline.then(format);
        }
    }
    CodecPipeline(pipeline.0)
}

#[cfg(test)]
pub(crate) mod tests;

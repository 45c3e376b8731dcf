//! Go-back-N retransmission, the sender's side: the numbered stream of messages to one shard. Each
//! message is kept until it is acknowledged, and a resend starts at the first one that is missing.
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

/// One numbered message of the stream, kept as first made until it is acknowledged.
pub(crate) struct SentMessage {
    pub number: u64,
    clock: Clock,
    examples: u64,
    pub message: StreamMessage,
}

/// A read of no rows, which the shard answers when its frontier is there.
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
    next: u64,
    acknowledged: u64,
    unacknowledged: VecDeque<SentMessage>,
    reads: BTreeMap<u64, Reading>,
    /// Those of the reads that have not been sent, because enough are under way or they wait for
    /// bandwidth.
    unsent: BTreeSet<u64>,
    /// Whether reads wait until they are sent with [`ShardStream::send_unsent`], for bandwidth is
    /// bounded.
    paced: bool,
    /// The highest frontier that the shard has told of.
    frontier: Clock,
    /// A request to be told when the frontier is far enough for another push.
    frontier_request: Option<FrontierRequest>,
    known: Signatures,
    /// How key lists are spelt out.
    key_form: KeyForm,
    /// Examples that the shard has not been told of.
    untold: u64,
    /// The first clock that the worker took part in.
    since: Clock,
    /// When something was last sent or heard, for resending.
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

    /// Key lists are spelt out in this form from now on.
    pub fn set_key_form(&mut self, key_form: KeyForm) {
        self.key_form = key_form;
    }

    /// Whether reads wait for bandwidth from now on.
    pub fn set_paced(&mut self, paced: bool) {
        self.paced = paced;
    }

    /// The shard is to be told of so many more examples.
    pub fn add_examples(&mut self, examples: u64) {
        self.untold = self.untold.saturating_add(examples);
    }

    /// Examples that the shard has not been told of: the caller tells it.
    pub fn take_examples(&mut self) -> u64 {
        std::mem::take(&mut self.untold)
    }

    /// The number of the last message of the stream so far.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Whether rising positions are all of this shard.
    pub fn owns(&self, positions: &[u64]) -> bool {
        let owned = |position: &u64| self.placed.range.contains(types::Position(*position));
        positions.first().is_none_or(owned) && positions.last().is_none_or(owned)
    }

    pub fn is_idle(&self) -> bool {
        self.unacknowledged.is_empty() && self.reads.is_empty() && self.frontier_request.is_none()
    }

    /// Whether everything that was pushed is acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Whether something was sent that has not been answered.
    pub fn awaits_answer(&self) -> bool {
        !self.unacknowledged.is_empty() || self.reads.len() > self.unsent.len() || self.frontier_request.is_some()
    }

    /// How many messages are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Messages that an answer lacks which holds the stream up to `contains`; `None` if some of
    /// them are not known any more, because they were acknowledged since.
    pub fn unseen(&self, contains: u64) -> Option<impl Iterator<Item = &StreamMessage>> {
        let known = contains >= self.acknowledged;
        let unseen = move |sent: &&SentMessage| sent.number > contains;
        known.then(|| self.unacknowledged.iter().filter(unseen).map(|sent| &sent.message))
    }

    /// Frees the values of messages, in a run that is over.
    pub fn free_values(&mut self) {
        self.unacknowledged.iter_mut().for_each(|sent| sent.message.free_values());
    }

    /// Whether something was sent, and nothing sent or heard for this long.
    pub fn is_overdue(&self, now: Time, after: Span) -> bool {
        self.awaits_answer() && now.since(self.moved) >= after
    }

    /// Something was sent or heard.
    pub fn touch(&mut self, now: Time) {
        self.moved = now;
    }

    /// The highest frontier that the shard has told of.
    pub fn frontier(&self) -> Clock {
        self.frontier
    }

    /// The shard has told of its frontier.
    pub fn reaches(&mut self, frontier: Clock) {
        self.frontier = self.frontier.max(frontier);
    }

    /// Asks to be told when the frontier is there, unless that has been asked.
    pub fn request_frontier(&mut self, head: Head, request: u64, frontier: Clock) -> Option<Frame> {
        if self.frontier_request.is_some_and(|asked| asked.frontier >= frontier) {
            return None;
        }
        let asked = FrontierRequest { request, frontier };
        self.frontier_request = Some(asked);
        Some(self.frontier_frame(head, asked))
    }

    /// Whether `request` asks to be told of a frontier.
    pub fn is_frontier_request(&self, request: u64) -> bool {
        self.frontier_request.is_some_and(|asked| asked.request == request)
    }

    /// Takes the answer to a request for a frontier, if it is one.
    pub fn take_frontier_answer(&mut self, request: u64) -> bool {
        let is_answer = self.is_frontier_request(request);
        if is_answer {
            self.frontier_request = None;
        }
        is_answer
    }

    fn frontier_frame(&self, mut head: Head, asked: FrontierRequest) -> Frame {
        head.to = self.placed.owner;
        let (table, shard, request, frontier) = (self.table, self.placed.shard, asked.request, asked.frontier);
        let keys = KeyPart::Run { first: self.placed.range.first, count: 0 };
        // Of clock 0, so that the table's own rule lets it through.
        head.clock = Clock(0);
        Frame {
            head,
            message: Message::Pull(Pull {
                table,
                shard,
                request,
                after: 0,
                frontier,
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

    /// Adds a read. It is sent at once, unless enough are under way or reads wait for bandwidth.
    pub fn read(&mut self, head: Head, request: u64, reading: Reading, out: &mut Outbox) {
        if !self.paced && self.may_send_read() {
            out.send(self.read_frame(head, request, &reading));
        } else {
            self.unsent.insert(request);
        }
        self.reads.insert(request, reading);
    }

    /// Takes a read that was answered, or is to be sent anew.
    pub fn take_read(&mut self, request: u64) -> Option<Reading> {
        self.unsent.remove(&request);
        self.reads.remove(&request)
    }

    /// Sends the next read that waits for another to be answered, if one more may be under way and
    /// bandwidth is not bounded. Returns whether it sent one.
    pub fn next_read(&mut self, head: Head, out: &mut Outbox) -> bool {
        let frame = if self.paced { None } else { self.send_unsent(head) };
        let sent = frame.is_some();
        frame.into_iter().for_each(|frame| out.send(frame));
        sent
    }

    /// The first read that could be sent but for bandwidth.
    pub fn first_unsent(&self) -> Option<u64> {
        self.unsent.first().copied().filter(|_| self.may_send_read())
    }

    /// Sends that one.
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

    /// Adds a message whose head has examples of its own. If it has waited for bandwidth, the
    /// examples that the shard has not been told of may be of a later clock.
    pub fn append_with_examples(&mut self, head: Head, message: StreamMessage) -> Frame {
        let (number, clock, examples) = (self.next, head.clock, head.examples);
        let sent = SentMessage { number, clock, examples, message };
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
        let (table, shard, settled) = (self.table, self.placed.shard, self.acknowledged);
        let message = match &sent.message {
            StreamMessage::Push { keys, values, formats, writes, .. } => {
                let none = KeyPart::Run { first: self.placed.range.first, count: 0 };
                let keys = if keys.is_empty() { none } else { self.key_part(keys) };
                head.codecs = pipeline_of(&keys, *formats);
                let (number, writes, values) = (self.number, *writes, values.clone());
                Message::Push(Push { table, shard, settled, number, writes, keys, values })
            }
            StreamMessage::Marker => Message::Marker(Marker { table, shard, settled, since: self.since }),
            StreamMessage::Tune { at, setting, .. } => {
                Message::Tune(Tune { table, shard, settled, at: *at, setting: *setting })
            }
        };
        Frame { head, message }
    }

    /// A list goes in full the first time and by signature from then on. Keys chosen from a list
    /// that the shard knows go as bits.
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

    /// Another server answers for the shard. It knows no lists.
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
            // The shard is to name its rows, and may know no more of a list than where they lie.
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

    /// Everything unacknowledged from `next` on, as first made, once more.
    pub fn resend(&mut self, head: Head, next: u64) -> Vec<Frame> {
        let messages = std::mem::take(&mut self.unacknowledged);
        let missing = messages.iter().filter(|sent| sent.number >= next);
        let frames = missing.map(|sent| self.frame(head, sent)).collect();
        self.unacknowledged = messages;
        frames
    }

    /// Every read under way, once more.
    pub fn resend_reads(&mut self, head: Head) -> Vec<Frame> {
        let reads = std::mem::take(&mut self.reads);
        let unsent = std::mem::take(&mut self.unsent);
        let sent = reads.iter().filter(|(request, _)| !unsent.contains(request));
        let mut frames: Vec<Frame> = sent.map(|(request, reading)| self.read_frame(head, *request, reading)).collect();
        (self.reads, self.unsent) = (reads, unsent);
        frames.extend(self.frontier_request.map(|asked| self.frontier_frame(head, asked)));
        frames
    }

    /// Messages that are finished now that the shard has finished everything up to `through`.
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

//! Go-back-N retransmission, the sender's side: the numbered stream of messages to one shard. Each
//! message is kept until it is acknowledged, and a resend starts at the first one that is missing.
//!
//! Reads are not part of the numbered stream. Each has a request number of its own, and at most
//! [`READS_AT_ONCE`] are under way.

use crate::TicketId;
use crate::push_codec::KeyForm;
use codec::{Formats, PayloadFormat, Signatures};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::{Clock, NodeId, NumberType, Placed, READS_AT_ONCE, Setting, TableId, Time};
use wire::{
    CodecPipeline, Frame, HEADER_BYTES, Head, KeyPart, KeySlice, Marker, Message, Outbox, Payload, Pull, Push,
    Signature, Tune, Wants, Writes,
};

/// About how long the body of a message to a shard is: that of a read is the longest.
const BODY_BYTES: usize = 64;

/// About how many bytes a frame takes on the wire: its head, body, keys and values.
pub(crate) fn frame_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + BODY_BYTES + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>()
}

/// One numbered message of the stream, kept as first made until it is acknowledged.
pub(crate) struct SentMessage {
    pub number: u64,
    clock: Clock,
    examples: u64,
    pub message: StreamMessage,
}

/// A message of the stream that shards apply in order: a part of a push, the end of a clock or a
/// setting.
pub(crate) enum StreamMessage {
    Push {
        ticket: TicketId,
        keys: KeySlice,
        /// As they travel.
        values: Payload,
        formats: Formats,
        /// What the shard decodes them to, where the cache needs it and it differs.
        plain: Option<Payload>,
        /// What it does to its rows.
        writes: Writes,
    },
    Marker,
    Tune {
        ticket: TicketId,
        at: Clock,
        setting: Setting,
    },
}

impl StreamMessage {
    /// Frees the values, in a run that is over.
    pub fn free_values(&mut self) {
        if let Self::Push { values, plain, .. } = self {
            (*values, *plain) = (Payload::EMPTY, None);
        }
    }

    /// Bytes that a worker holds for it until it is acknowledged.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Push { values, plain, .. } => values.len() + plain.as_ref().map_or(0, Payload::len),
            Self::Marker | Self::Tune { .. } => 0,
        }
    }
}

/// One part of a read under way.
pub(crate) struct Reading {
    pub ticket: TicketId,
    pub clock: Clock,
    pub after: u64,
    pub subscribe: bool,
    /// For a delta cache: the last delta it has, and how many rows later deltas are to bring up to
    /// date.
    pub deltas: Option<(u64, u64)>,
    pub wants: Wants,
    pub keys: ReadKeys,
}

/// Which rows a part of a read asks for, and where they go.
pub(crate) enum ReadKeys {
    /// Rows of the target from `row` on.
    Straight { keys: KeySlice, row: usize },
    /// Rows of the target at these places.
    Scattered { keys: KeySlice, rows: Vec<u32> },
    /// No rows, but the deltas that bring these cached rows up to date. Then the rows go to these
    /// places of the target.
    Deltas { keys: KeySlice, rows: Vec<u32> },
    /// A scan: the rows found are collected, shard by shard.
    Scan { range: types::PositionRange, shard: usize },
    /// Rows as they are kept, collected part by part: the answer tells how wide they are.
    RowState { keys: KeySlice, part: usize },
}

impl ReadKeys {
    pub fn slice(&self) -> Option<&KeySlice> {
        match self {
            Self::Straight { keys, .. } | Self::Scattered { keys, .. } => Some(keys),
            Self::Scan { .. } | Self::Deltas { .. } | Self::RowState { .. } => None,
        }
    }
}

/// A read of no rows, which the shard answers when its frontier is there.
#[derive(Clone, Copy)]
struct FrontierRequest {
    request: u64,
    frontier: Clock,
}

/// A worker's end of the stream to one shard.
pub(crate) struct ShardStream {
    pub placed: Placed,
    table: TableId,
    number: NumberType,
    next: u64,
    pub acknowledged: u64,
    pub unacknowledged: VecDeque<SentMessage>,
    reads: BTreeMap<u64, Reading>,
    /// Those of the reads that have not been sent, because enough are under way or they wait for
    /// bandwidth.
    unsent: BTreeSet<u64>,
    /// Whether reads wait until they are sent with [`ShardStream::send_unsent`], for bandwidth is
    /// bounded.
    pub paced: bool,
    /// The highest frontier that the shard has told of.
    frontier: Clock,
    /// A request to be told when the frontier is far enough for another push.
    frontier_request: Option<FrontierRequest>,
    known: Signatures,
    /// How key lists are spelt out.
    pub key_form: KeyForm,
    /// Examples that the shard has not been told of.
    pub untold: u64,
    /// The first clock that the worker took part in.
    since: Clock,
    /// When something was last sent or heard, for resending.
    pub moved: Time,
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
        head.examples = std::mem::take(&mut self.untold);
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

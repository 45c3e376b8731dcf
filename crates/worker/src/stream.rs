//! What a worker has sent to one shard and not yet seen acknowledged, and what it knows of that shard.

use super::TicketId;
use super::push_codec::KeyForm;
use codec::{Formats, PayloadFormat, Signatures};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::READS_AT_ONCE;
use types::{Clock, NodeId, NumberType, Placed, Setting, TableId};
use wire::{
    CodecPipeline, Frame, HEADER_BYTES, Head, KeyPart, Marker, Message, Payload, Pull, Push, Signature, Slice, Tune,
    Wants, Writes,
};

/// The body of what a worker sends to a shard, about: that of a read is the longest.
const BODY_BYTES: usize = 64;

/// What a frame takes on the wire: its head, about its body, keys and values.
pub fn frame_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + BODY_BYTES + frame.message.payloads().iter().map(|payload| payload.len()).sum::<usize>()
}

/// One numbered message of the stream, kept as first made until it is acknowledged.
pub struct Item {
    pub number: u64,
    clock: Clock,
    examples: u64,
    /// Bytes on the wire by which the link is measured: those of pushes.
    pub bytes: usize,
    pub kind: ItemKind,
}

pub enum ItemKind {
    Push {
        ticket: TicketId,
        keys: Slice,
        /// As they travel.
        values: Payload,
        formats: Formats,
        /// What the shard will make of them, where copies need to know and it is not the same.
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

impl ItemKind {
    /// Forgets the values, in a run that is over.
    pub fn let_go(&mut self) {
        if let Self::Push { values, plain, .. } = self {
            (*values, *plain) = (Payload::EMPTY, None);
        }
    }

    /// Bytes that a worker keeps of it until it is acknowledged.
    pub fn kept(&self) -> usize {
        match self {
            Self::Push { values, plain, .. } => values.len() + plain.as_ref().map_or(0, Payload::len),
            Self::Marker | Self::Tune { .. } => 0,
        }
    }
}

/// One part of a read under way.
pub struct Reading {
    pub ticket: TicketId,
    pub clock: Clock,
    pub after: u64,
    pub subscribe: bool,
    /// Where copies grow by steps: the last one they have, and how many rows are to be brought up to date by others.
    pub steps: Option<(u64, u64)>,
    pub wants: Wants,
    pub keys: ReadKeys,
}

/// Which rows a part of a read asks for, and where they go.
pub enum ReadKeys {
    /// Rows of the target from `row` on.
    Straight { keys: Slice, row: usize },
    /// Rows of the target at these places.
    Scattered { keys: Slice, rows: Vec<u32> },
    /// No rows, but the steps that bring the copies of these up to date; then they go to these places of the target.
    Steps { keys: Slice, rows: Vec<u32> },
    /// A scan: whatever is found is collected, shard by shard.
    Scan { range: types::PositionRange, shard: usize },
    /// Rows as they are kept, collected part by part: the answer tells how wide they are.
    Kept { keys: Slice, part: usize },
}

impl ReadKeys {
    pub fn slice(&self) -> Option<&Slice> {
        match self {
            Self::Straight { keys, .. } | Self::Scattered { keys, .. } => Some(keys),
            Self::Scan { .. } | Self::Steps { .. } | Self::Kept { .. } => None,
        }
    }
}

/// A read of no rows, answered when the frontier is there.
#[derive(Clone, Copy)]
struct Room {
    request: u64,
    frontier: Clock,
}

/// A worker's end of the stream to one shard.
pub struct ShardLink {
    pub placed: Placed,
    table: TableId,
    number: NumberType,
    next: u64,
    pub acknowledged: u64,
    pub unacknowledged: VecDeque<Item>,
    reads: BTreeMap<u64, Reading>,
    /// Those of the reads that have not been sent, because enough are under way or they wait for bandwidth.
    unsent: BTreeSet<u64>,
    /// Whether reads wait until they are sent with [`ShardLink::send_unsent`], for bandwidth is bounded.
    pub paced: bool,
    /// The highest frontier that the shard has told of.
    frontier: Clock,
    /// A request to be told when the frontier is far enough for another push.
    room: Option<Room>,
    known: Signatures,
    /// How key lists are spelt out.
    pub key_form: KeyForm,
    /// Examples that the shard has not been told of.
    pub untold: u64,
    /// The first clock that the worker took part in.
    since: Clock,
    /// When something was last sent or heard, for resending.
    pub moved: types::Time,
}

impl ShardLink {
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
            room: None,
            known: Signatures::default(),
            key_form: KeyForm::Plain,
            untold: 0,
            moved: types::Time::default(),
        }
    }

    /// The number of the last item of the stream so far.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    pub fn is_idle(&self) -> bool {
        self.unacknowledged.is_empty() && self.reads.is_empty() && self.room.is_none()
    }

    /// Whether everything that was pushed is acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        self.unacknowledged.is_empty()
    }

    /// Whether something was sent that has not been answered.
    pub fn awaits_answer(&self) -> bool {
        !self.unacknowledged.is_empty() || self.reads.len() > self.unsent.len() || self.room.is_some()
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
    pub fn ask_for_room(&mut self, head: Head, request: u64, frontier: Clock) -> Option<Frame> {
        if self.room.is_some_and(|room| room.frontier >= frontier) {
            return None;
        }
        let room = Room { request, frontier };
        self.room = Some(room);
        Some(self.room_frame(head, room))
    }

    /// Whether that is what a request asks for.
    pub fn asks_for_room(&self, request: u64) -> bool {
        self.room.is_some_and(|room| room.request == request)
    }

    /// Takes the answer to a request for room, if it is one.
    pub fn take_room(&mut self, request: u64) -> bool {
        let is_answer = self.asks_for_room(request);
        if is_answer {
            self.room = None;
        }
        is_answer
    }

    fn room_frame(&self, mut head: Head, room: Room) -> Frame {
        head.to = self.placed.owner;
        let (table, shard, request, frontier) = (self.table, self.placed.shard, room.request, room.frontier);
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
                steps: None,
                wants: Wants::Values,
                keys,
            }),
        }
    }

    fn may_send_read(&self) -> bool {
        self.reads.len() - self.unsent.len() < READS_AT_ONCE
    }

    /// Adds a read. It is sent at once, unless enough are under way or reads wait for bandwidth.
    pub fn read(&mut self, head: Head, request: u64, reading: Reading) -> Option<Frame> {
        let sent = !self.paced && self.may_send_read();
        let frame = sent.then(|| self.read_frame(head, request, &reading));
        if !sent {
            self.unsent.insert(request);
        }
        self.reads.insert(request, reading);
        frame
    }

    /// Takes a read that was answered, or is to be sent anew.
    pub fn take_read(&mut self, request: u64) -> Option<Reading> {
        self.unsent.remove(&request);
        self.reads.remove(&request)
    }

    /// The next read that waits for another to be answered, if there is room for it and bandwidth is not bounded.
    pub fn next_read(&mut self, head: Head) -> Option<Frame> {
        if self.paced { None } else { self.send_unsent(head) }
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

    /// Adds an item to the stream, with the examples that the shard has not been told of, and returns its frame.
    pub fn append(&mut self, mut head: Head, kind: ItemKind) -> Frame {
        head.examples = std::mem::take(&mut self.untold);
        self.append_held(head, kind)
    }

    /// Adds an item that has waited. Its head has examples of its own: by now, others may be of a later clock.
    pub fn append_held(&mut self, head: Head, kind: ItemKind) -> Frame {
        let mut item = Item { number: self.next, clock: head.clock, examples: head.examples, bytes: 0, kind };
        self.next += 1;
        let frame = self.frame(head, &item);
        if let ItemKind::Push { .. } = item.kind {
            item.bytes = frame_bytes(&frame);
        }
        self.unacknowledged.push_back(item);
        frame
    }

    fn frame(&mut self, mut head: Head, item: &Item) -> Frame {
        head.to = self.placed.owner;
        head.number = item.number;
        head.clock = item.clock;
        head.examples = item.examples;
        let (table, shard, settled) = (self.table, self.placed.shard, self.acknowledged);
        let message = match &item.kind {
            ItemKind::Push { keys, values, formats, writes, .. } => {
                let none = KeyPart::Run { first: self.placed.range.first, count: 0 };
                let keys = if keys.is_empty() { none } else { self.key_part(keys) };
                head.codecs = pipeline_of(&keys, *formats);
                let (number, writes, values) = (self.number, *writes, values.clone());
                Message::Push(Push { table, shard, settled, number, writes, keys, values })
            }
            ItemKind::Marker => Message::Marker(Marker { table, shard, settled, since: self.since }),
            ItemKind::Tune { at, setting, .. } => {
                Message::Tune(Tune { table, shard, settled, at: *at, setting: *setting })
            }
        };
        Frame { head, message }
    }

    /// A list goes in full the first time and by signature from then on; what is chosen from one that is known, by bits.
    fn key_part(&mut self, keys: &Slice) -> KeyPart {
        if let Some(part) = self.choice(keys) {
            return part;
        }
        let Some(signature) = keys.signature() else { return keys.by_signature() };
        let is_new = self.known.is_new(signature.0, keys.range().start as u64, keys.len() as u32);
        if is_new || self.key_form == KeyForm::Spelt { self.key_form.in_full(keys) } else { keys.by_signature() }
    }

    /// The keys as a choice, if the shard knows a piece of a list that all of them were chosen from.
    fn choice(&self, keys: &Slice) -> Option<KeyPart> {
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
            ReadKeys::Steps { .. } => KeyPart::Run { first: self.placed.range.first, count: 0 },
            // The shard is to name its rows, and may know no more of a list than where they lie.
            ReadKeys::Kept { keys, .. } => self.key_form.in_full(keys),
        };
        head.codecs = pipeline_of(&keys, Formats::default());
        let pull = Pull {
            table: self.table,
            shard: self.placed.shard,
            request,
            after: reading.after,
            frontier: Clock(0),
            subscribe: reading.subscribe,
            steps: reading.steps,
            wants: reading.wants,
            keys,
        };
        Frame { head, message: Message::Pull(pull) }
    }

    /// Everything unacknowledged from `next` on, as first made, once more.
    pub fn resend(&mut self, head: Head, next: u64) -> Vec<Frame> {
        let items = std::mem::take(&mut self.unacknowledged);
        let frames = items.iter().filter(|item| item.number >= next).map(|item| self.frame(head, item)).collect();
        self.unacknowledged = items;
        frames
    }

    /// Every read under way, once more.
    pub fn resend_reads(&mut self, head: Head) -> Vec<Frame> {
        let reads = std::mem::take(&mut self.reads);
        let unsent = std::mem::take(&mut self.unsent);
        let sent = reads.iter().filter(|(request, _)| !unsent.contains(request));
        let mut frames: Vec<Frame> = sent.map(|(request, reading)| self.read_frame(head, *request, reading)).collect();
        (self.reads, self.unsent) = (reads, unsent);
        frames.extend(self.room.map(|room| self.room_frame(head, room)));
        frames
    }

    /// Items that are finished now that the shard has finished everything up to `through`.
    pub fn finish(&mut self, through: u64) -> Vec<Item> {
        self.acknowledged = self.acknowledged.max(through.min(self.last()));
        let done = self.unacknowledged.partition_point(|item| item.number <= through);
        self.unacknowledged.drain(..done).collect()
    }
}

/// What the head says that payloads went through.
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

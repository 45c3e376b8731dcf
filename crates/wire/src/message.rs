//! The messages: each is one of its kinds, with every field documented.

use crate::field::{Field, Reader, fields, variants};
use crate::frame::WireError;
use crate::keys::KeyPart;
use crate::{Payload, Signature};
use std::fmt;
use types::{
    Clock, Key, NodeId, NumberType, Placement, Plan, Position, Setting, ShardId, Source, TableId, TableSpec, WorkerId,
};

/// What one node says to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Worker to shard, in its stream: one part of a push.
    Push(Push),
    /// Worker to shard, in its stream: a clock has ended.
    Marker(Marker),
    /// Worker to shard, in its stream: an updater's setting changes at a clock.
    Tune(Tune),
    /// Shard to worker: how much of the stream is finished.
    Acked(Acked),
    /// Shard to worker: go back in the stream.
    Resend(Resend),
    /// Worker to shard: one part of a read.
    Pull(Pull),
    /// Shard to worker: the rows.
    Pulled(Pulled),
    /// Shard to worker: no rows, and why.
    PullRefused(PullRefused),
    /// Shard to worker: a read is parked, and for whom it waits.
    Waiting(Waiting),
    /// Shard to worker: rows that changed since the last refresh.
    Refresh(Refresh),
    /// Worker to shard: a refresh has arrived.
    Refreshed(Refreshed),
    /// Everything about membership, tables and barriers.
    Control(Control),
}

/// One part of a push: the unit of identity, checking and atomic application. Source, number, clock and examples are in
/// the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
    /// The type of the values, so that a worker with another idea of the table is found out.
    pub number: NumberType,
    /// Which rows.
    pub keys: KeyPart,
    /// Row after row.
    pub values: Payload,
}

/// Ends the head's clock for one shard. It follows everything before it in the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Marker {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
}

/// Changes a setting of the updater for updates made in clock `at` and later ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Tune {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The sender will never ask about numbers up to this one again.
    pub settled: u64,
    /// The first clock it holds for.
    pub at: Clock,
    /// What changes.
    pub setting: Setting,
}

/// Everything in the stream up to `through` is finished: applied, held for its clock, or refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Acked {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The last finished number.
    pub through: u64,
    /// Which of them were refused, and why.
    pub refused: Vec<Refused>,
}

/// A part that was not applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its number in the stream.
    pub number: u64,
    /// Why.
    pub refusal: Refusal,
}

/// The shard needs the stream again from `next` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Resend {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The number it needs next.
    pub next: u64,
    /// Why.
    pub reason: ResendReason,
}

/// Why a stream must be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendReason {
    /// Something before the latest arrival is missing.
    Gap,
    /// The signature is of no list the shard remembers; spell the keys out.
    UnknownKeys {
        /// The 128 bits of the signature.
        signature: u128,
    },
}

/// One part of a read. The reader's clock is in the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The answer must hold the reader's own stream up to this number.
    pub after: u64,
    /// The answer must reflect this frontier or a later one, whatever the table's rule.
    pub frontier: Clock,
    /// Whether later changes of these rows shall be sent by themselves.
    pub subscribe: bool,
    /// Which rows.
    pub keys: KeyPart,
}

/// The rows of one part of a read. The frontier they reflect is the head's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Pulled {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The highest number of the reader's own stream that the rows hold.
    pub contains: u64,
    /// The chain of refreshes that keeps these rows fresh, if there is one, and its last link so far.
    pub chain: Option<(u64, u64)>,
    /// Where the read was parked: whose marker let it go.
    pub released_by: Option<WorkerId>,
    /// Clocks within the reader's view that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
    /// For a scan: where the next one should start, if this part ends before the range does.
    pub more: Option<Position>,
    /// For a scan: the keys found, u64 each.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// A clock whose update was skipped because a contribution to it was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedClock {
    /// The clock.
    pub clock: Clock,
    /// Whose contribution it was.
    pub worker: WorkerId,
    /// What was wrong with it.
    pub refusal: Refusal,
}

/// A read that gets no rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PullRefused {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// Why.
    pub refusal: Refusal,
}

/// A read has been parked for a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The reader's name for this part of the read.
    pub request: u64,
    /// The slowest workers: those at the frontier. Empty if the reader's own pushes are missing.
    pub on: Vec<WorkerId>,
}

/// The rows among a worker's subscription that changed while the frontier moved from `from` to the head's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Refresh {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The chain it belongs to; a new one starts when the shard gave the old one up.
    pub chain: u64,
    /// Its number in the chain, from 1.
    pub link: u64,
    /// Copies fresh at this frontier, or later, become fresh at the head's clock.
    pub from: Clock,
    /// Clocks on the way there that were failed for all workers alike.
    pub failed: Vec<FailedClock>,
    /// The highest number of the reader's own stream that the rows hold.
    pub contains: u64,
    /// The rows that changed, u64 each.
    pub positions: Payload,
    /// Row after row.
    pub values: Payload,
}

/// Receipt of a refresh: a subscriber that falls too many behind is dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct Refreshed {
    /// The table.
    pub table: TableId,
    /// The shard of it.
    pub shard: ShardId,
    /// The chain.
    pub chain: u64,
    /// The last link received.
    pub link: u64,
}

/// Why a part was not applied, or a read not answered. Nothing of the part was applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// A value is NaN or infinite.
    NotFinite {
        /// The row it is in.
        position: Position,
    },
    /// The values are not `width` numbers for each key.
    WrongLength {
        /// How many bytes they should have been.
        expected: u64,
        /// How many they were.
        found: u64,
    },
    /// The values are numbers of another type.
    WrongNumber {
        /// What the table holds.
        expected: NumberType,
        /// What came.
        found: NumberType,
    },
    /// The server has no such table.
    UnknownTable,
    /// The shard has no such row, or does not own it.
    OutOfRange {
        /// The row.
        position: Position,
    },
    /// Keys are not sorted and unique.
    Unsorted {
        /// The first key that is out of order.
        position: Position,
    },
    /// The shard is full.
    TooManyRows {
        /// What the spec allows.
        max_rows: u64,
    },
    /// The plan no longer counts this incarnation of the worker.
    Expelled,
    /// Reads only: the signature is of no list the shard remembers.
    UnknownKeys {
        /// The 128 bits of the signature.
        signature: u128,
    },
    /// The table's shape does not allow the call.
    NotOrdered,
    /// The part says it belongs to a clock that its worker has ended.
    PastClock,
    /// The part belongs to a clock too far ahead of the slowest worker's: the shard holds no more clocks apart.
    FarAhead {
        /// How many it holds.
        most: u64,
    },
    /// Reads only: the shard holds as many reads of this worker back as it ever does.
    TooManyReads {
        /// How many those are.
        most: u64,
    },
    /// A setting of the updater that makes no sense.
    BadSetting,
}

impl Refusal {
    /// The refusal in words, with the row named as the program knows it.
    #[must_use]
    pub fn describe(&self, table: &str, placement: Placement) -> String {
        let key = |position: &Position| -> Key { placement.key(*position) };
        match self {
            Self::NotFinite { position } => {
                format!("the value for {} of table '{table}' is not finite; its rows stay as they were", key(position))
            }
            Self::WrongLength { expected, found } => {
                format!("table '{table}' needs {expected} bytes of values for these keys, not {found}")
            }
            Self::WrongNumber { expected, found } => format!("table '{table}' holds {expected}, not {found}"),
            Self::UnknownTable => format!("the server has no table '{table}'"),
            Self::OutOfRange { position } => format!("table '{table}' has no {}", key(position)),
            Self::Unsorted { position } => {
                format!("{} of table '{table}' is out of order or stands there twice", key(position))
            }
            Self::TooManyRows { max_rows } => {
                format!("a shard of table '{table}' holds its {max_rows} rows already; raise max_rows or add servers")
            }
            Self::Expelled => "this worker was expelled from the run; join again as a new one".to_owned(),
            Self::UnknownKeys { .. } => "the key list was forgotten and must be sent again".to_owned(),
            Self::NotOrdered => format!("table '{table}' is not ordered, so it has no ranges; make it .ordered()"),
            Self::PastClock => "the part belongs to a clock that has ended".to_owned(),
            Self::FarAhead { most } => {
                format!("table '{table}' holds {most} clocks apart; wait for slower workers, for instance by reading")
            }
            Self::TooManyReads { most } => {
                format!("{most} reads of table '{table}' wait already; wait for some of them first")
            }
            Self::BadSetting => format!("table '{table}' needs a learning rate that is finite and not negative"),
        }
    }
}

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It holds shards.
    Server,
    /// It computes.
    Worker,
}

/// One party of the run and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub node: NodeId,
    /// Where it listens: `host:port`, or empty in one process.
    pub address: String,
}

/// Membership, tables and barriers.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Anyone to the coordinator, first of all.
    Join {
        /// What it is.
        role: Role,
        /// Where it listens.
        address: String,
        /// A random number that tells a repeated join from another process's.
        token: u64,
        /// The number it asks for among those of its role; without one it is given the first that is free.
        place: Option<u32>,
    },
    /// Coordinator: who you are.
    Welcome {
        /// The name given.
        node: NodeId,
        /// The incarnation, for workers.
        source: Source,
        /// The token of the join this answers.
        token: u64,
    },
    /// Coordinator: no place for you, and why.
    Turned {
        /// In words.
        reason: String,
        /// The token of the join this answers.
        token: u64,
    },
    /// Coordinator to all: everybody is here, this is the plan.
    Begin {
        /// The plan.
        plan: Plan,
        /// Where everybody listens.
        members: Vec<Member>,
    },
    /// Worker to coordinator: make this table, or tell me its number if it is there.
    MakeTable {
        /// The spec.
        spec: TableSpec,
    },
    /// Coordinator to servers: hold shards of this table. To workers: there is this table, so end your clocks for it.
    AddTable {
        /// Its number.
        table: TableId,
        /// The spec.
        spec: TableSpec,
    },
    /// The answer: it is known, or why it cannot be held.
    TableAdded {
        /// Its number.
        table: TableId,
        /// A problem, in words.
        problem: Option<String>,
    },
    /// Coordinator to worker: the table is there.
    TableMade {
        /// Its number.
        table: TableId,
        /// Its name.
        name: String,
    },
    /// Coordinator to worker: the table cannot be, and why.
    TableRefused {
        /// Its name.
        name: String,
        /// In words.
        problem: String,
    },
    /// Worker to coordinator: I am at the barrier with this number.
    Barrier {
        /// The worker's count of barriers, from 1.
        number: u64,
    },
    /// Coordinator to workers: everybody is at the barrier.
    BarrierPassed {
        /// Which.
        number: u64,
    },
    /// Coordinator to a waiting worker: who is missing.
    BarrierWaiting {
        /// Which barrier.
        number: u64,
        /// Who is missing.
        on: Vec<WorkerId>,
    },
    /// Anyone to the coordinator and back: alive.
    Beat,
    /// Node to coordinator: done, not dead. A worker says it when everything it pushed is acknowledged.
    Bye,
    /// Coordinator to servers: the frontier no longer waits for this worker. And back: heard.
    Left {
        /// Which.
        worker: WorkerId,
    },
    /// Coordinator to all: a node is lost, and how that was noticed.
    Lost {
        /// Which.
        node: NodeId,
        /// In words.
        reason: String,
    },
    /// Coordinator to servers: every worker has left.
    Finish,
}

variants!(ResendReason { 0 => Gap, 1 => UnknownKeys { signature } });
variants!(Role { 0 => Server, 1 => Worker });
variants!(Refusal {
    0 => NotFinite { position },
    1 => WrongLength { expected, found },
    2 => WrongNumber { expected, found },
    3 => UnknownTable,
    4 => OutOfRange { position },
    5 => Unsorted { position },
    6 => TooManyRows { max_rows },
    7 => Expelled,
    8 => UnknownKeys { signature },
    9 => NotOrdered,
    10 => PastClock,
    11 => FarAhead { most },
    12 => TooManyReads { most },
    13 => BadSetting,
});
variants!(Control {
    0 => Join { role, address, token, place },
    1 => Welcome { node, source, token },
    2 => Turned { reason, token },
    3 => Begin { plan, members },
    4 => MakeTable { spec },
    5 => AddTable { table, spec },
    6 => TableAdded { table, problem },
    7 => TableMade { table, name },
    8 => TableRefused { name, problem },
    9 => Barrier { number },
    10 => BarrierPassed { number },
    11 => BarrierWaiting { number, on },
    12 => Beat,
    13 => Bye,
    14 => Lost { node, reason },
    15 => Finish,
    16 => Left { worker },
});
fields!(Member { node, address });
fields!(Refused { number, refusal });
fields!(FailedClock { clock, worker, refusal });
fields!(Marker { table, shard, settled });
fields!(Tune { table, shard, settled, at, setting });
fields!(Acked { table, shard, through, refused });
fields!(Resend { table, shard, next, reason });
fields!(PullRefused { table, shard, request, refusal });
fields!(Waiting { table, shard, request, on });
fields!(Refreshed { table, shard, chain, link });

impl Message {
    /// The byte that names the kind.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Push(_) => 0,
            Self::Marker(_) => 1,
            Self::Tune(_) => 2,
            Self::Acked(_) => 3,
            Self::Resend(_) => 4,
            Self::Pull(_) => 5,
            Self::Pulled(_) => 6,
            Self::PullRefused(_) => 7,
            Self::Waiting(_) => 8,
            Self::Refresh(_) => 9,
            Self::Refreshed(_) => 10,
            Self::Control(_) => 11,
        }
    }

    /// The bulk data that rides behind: positions, then values.
    #[must_use]
    pub fn payloads(&self) -> [&Payload; 2] {
        const NONE: &Payload = &Payload::EMPTY;
        match self {
            Self::Push(push) => [push.keys.payload().unwrap_or(NONE), &push.values],
            Self::Pull(pull) => [pull.keys.payload().unwrap_or(NONE), NONE],
            Self::Pulled(pulled) => [&pulled.positions, &pulled.values],
            Self::Refresh(refresh) => [&refresh.positions, &refresh.values],
            _ => [NONE, NONE],
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Push(push) => {
                push.table.put(out);
                push.shard.put(out);
                push.settled.put(out);
                push.number.put(out);
                push.keys.put(out);
            }
            Self::Marker(marker) => marker.put(out),
            Self::Tune(tune) => tune.put(out),
            Self::Acked(acked) => acked.put(out),
            Self::Resend(resend) => resend.put(out),
            Self::Pull(pull) => {
                pull.table.put(out);
                pull.shard.put(out);
                pull.request.put(out);
                pull.after.put(out);
                pull.frontier.put(out);
                pull.subscribe.put(out);
                pull.keys.put(out);
            }
            Self::Pulled(pulled) => {
                pulled.table.put(out);
                pulled.shard.put(out);
                pulled.request.put(out);
                pulled.contains.put(out);
                pulled.chain.put(out);
                pulled.released_by.put(out);
                pulled.failed.put(out);
                pulled.more.put(out);
            }
            Self::PullRefused(refused) => refused.put(out),
            Self::Waiting(waiting) => waiting.put(out),
            Self::Refresh(refresh) => {
                refresh.table.put(out);
                refresh.shard.put(out);
                refresh.chain.put(out);
                refresh.link.put(out);
                refresh.from.put(out);
                refresh.failed.put(out);
                refresh.contains.put(out);
            }
            Self::Refreshed(refreshed) => refreshed.put(out),
            Self::Control(control) => control.put(out),
        }
    }

    pub(crate) fn get(kind: u8, body: &[u8], payloads: [Payload; 2]) -> Result<Self, WireError> {
        let input = &mut Reader(body);
        let announced = [payloads[0].len(), payloads[1].len()];
        let [positions, values] = payloads;
        let message = match kind {
            0 => Self::Push(Push {
                table: Field::get(input)?,
                shard: Field::get(input)?,
                settled: Field::get(input)?,
                number: Field::get(input)?,
                keys: KeyPart::get(input, positions)?,
                values,
            }),
            1 => Self::Marker(Field::get(input)?),
            2 => Self::Tune(Field::get(input)?),
            3 => Self::Acked(Field::get(input)?),
            4 => Self::Resend(Field::get(input)?),
            5 => Self::Pull(Pull {
                table: Field::get(input)?,
                shard: Field::get(input)?,
                request: Field::get(input)?,
                after: Field::get(input)?,
                frontier: Field::get(input)?,
                subscribe: Field::get(input)?,
                keys: KeyPart::get(input, positions)?,
            }),
            6 => Self::Pulled(Pulled {
                table: Field::get(input)?,
                shard: Field::get(input)?,
                request: Field::get(input)?,
                contains: Field::get(input)?,
                chain: Field::get(input)?,
                released_by: Field::get(input)?,
                failed: Field::get(input)?,
                more: Field::get(input)?,
                positions,
                values,
            }),
            7 => Self::PullRefused(Field::get(input)?),
            8 => Self::Waiting(Field::get(input)?),
            9 => Self::Refresh(Refresh {
                table: Field::get(input)?,
                shard: Field::get(input)?,
                chain: Field::get(input)?,
                link: Field::get(input)?,
                from: Field::get(input)?,
                failed: Field::get(input)?,
                contains: Field::get(input)?,
                positions,
                values,
            }),
            10 => Self::Refreshed(Field::get(input)?),
            11 => Self::Control(Field::get(input)?),
            _ => return Err(WireError::Malformed("an unknown kind of message")),
        };
        if !input.0.is_empty() {
            return Err(WireError::Malformed("bytes left over behind a message"));
        }
        if message.payloads().map(Payload::len) != announced {
            return Err(WireError::Malformed("a payload that this message does not have"));
        }
        Ok(message)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

//! What a recording is made of, and how much room that takes.

use coordinator::{CoordinatorInput, Membership, Size};
use shard::ServerInput;
use types::{Clock, NodeId, Plan, Source, Span, WorkerId};
use wire::{Field, Frame, Reader, WireError};
use worker::{KeyListDictionary, WorkerInput, WorkerSettings};

/// What an entry costs beside its bytes.
const ENTRY_COST: usize = 128;
/// No run of ours has so many slices; a file that says so is damaged.
const MOST_SLICES: usize = 1 << 16;

/// What is recorded, with all that it was made from beside what it was told: the registry alone is code.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Server { node: NodeId, plan: Plan, list_bytes: usize, lease: Option<Span> },
    Coordinator { size: Size, membership: Membership, patience: Span },
    Worker { id: WorkerId, source: Source, plan: Plan, clock: Clock, barriers: u64, settings: WorkerSettings },
}

/// One thing a machine was told.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Server(ServerInput),
    Coordinator(CoordinatorInput),
    Worker(WorkerInput),
}

/// One step of a recording.
pub(crate) enum Entry {
    Begin(Subject),
    Input(Input),
    Output(Vec<u8>),
}

impl From<ServerInput> for Input {
    fn from(input: ServerInput) -> Self {
        Self::Server(input)
    }
}

impl From<CoordinatorInput> for Input {
    fn from(input: CoordinatorInput) -> Self {
        Self::Coordinator(input)
    }
}

impl From<WorkerInput> for Input {
    fn from(input: WorkerInput) -> Self {
        Self::Worker(input)
    }
}

impl Entry {
    /// About the memory that it keeps from being used again.
    pub fn cost(&self) -> usize {
        let bytes = match self {
            Self::Begin(_) => 0,
            Self::Input(input) => input.bytes(),
            Self::Output(bytes) => bytes.len(),
        };
        ENTRY_COST + bytes
    }
}

impl Input {
    fn bytes(&self) -> usize {
        let of_frame = |frame: &Frame| frame.message.payloads().iter().map(|payload| payload.len()).sum();
        match self {
            Self::Server(ServerInput::Frame(_, frame))
            | Self::Coordinator(CoordinatorInput::Frame(_, frame))
            | Self::Worker(WorkerInput::Frame(_, frame)) => of_frame(frame),
            Self::Worker(WorkerInput::Push(_, _, batch, _) | WorkerInput::PushPull(_, _, batch, _)) => {
                batch.values.bytes.len() + batch.keys.len() * 8
            }
            Self::Worker(WorkerInput::Pull(_, _, keys, _) | WorkerInput::BeginPush(_, keys, _)) => keys.len() * 8,
            Self::Worker(WorkerInput::PushRows(_, part)) => part.values.len() + part.rows.len() * 8,
            Self::Server(_) | Self::Coordinator(_) | Self::Worker(_) => 0,
        }
    }

    pub fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        match self {
            Self::Server(input) => input.put(out),
            Self::Coordinator(input) => input.put(out),
            Self::Worker(input) => input.put(lists, out),
        }
    }

    /// Reads an input of a machine of the subject's kind.
    pub fn get(subject: &Subject, input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(match subject {
            Subject::Server { .. } => Self::Server(Field::get(input)?),
            Subject::Coordinator { .. } => Self::Coordinator(Field::get(input)?),
            Subject::Worker { .. } => Self::Worker(WorkerInput::get(input, lists)?),
        })
    }
}

impl Subject {
    /// What its recording is called.
    pub fn file_name(&self) -> String {
        let name = match self {
            Self::Server { node, .. } => node.to_string(),
            Self::Coordinator { .. } => NodeId::Coordinator.to_string(),
            Self::Worker { id, .. } => NodeId::from(*id).to_string(),
        };
        name.replace(' ', "-") + ".recording"
    }
}

impl Field for Subject {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Server { node, plan, list_bytes, lease } => {
                out.push(0);
                node.put(out);
                plan.put(out);
                (*list_bytes as u64).put(out);
                lease.put(out);
            }
            Self::Coordinator { size, membership, patience } => {
                out.push(1);
                (size.servers, size.workers).put(out);
                let open = match membership {
                    Membership::Fixed => None,
                    Membership::Open { copies, slices } => Some((*copies, *slices)),
                };
                open.put(out);
                patience.0.put(out);
            }
            Self::Worker { id, source, plan, clock, barriers, settings } => {
                out.push(2);
                id.put(out);
                source.put(out);
                plan.put(out);
                clock.put(out);
                barriers.put(out);
                settings.resend_after.map(|span| span.0).put(out);
            }
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match u8::get(input)? {
            0 => {
                let (node, plan) = (Field::get(input)?, plan(input)?);
                let list_bytes = usize::try_from(u64::get(input)?).unwrap_or(usize::MAX);
                Self::Server { node, plan, list_bytes, lease: Field::get(input)? }
            }
            1 => {
                let (servers, workers) = Field::get(input)?;
                let open = Option::<(u32, u32)>::get(input)?;
                let membership = open.map_or(Membership::Fixed, |(copies, slices)| Membership::Open { copies, slices });
                Self::Coordinator { size: Size { servers, workers }, membership, patience: Span(Field::get(input)?) }
            }
            2 => {
                let (id, source, plan) = (Field::get(input)?, Field::get(input)?, plan(input)?);
                let (clock, barriers) = (Field::get(input)?, Field::get(input)?);
                let resend_after = Option::<u64>::get(input)?.map(Span);
                // The meters of codecs stand still in a replay: what a machine says never depends on them.
                let settings = WorkerSettings { resend_after, ..WorkerSettings::default() };
                Self::Worker { id, source, plan, clock, barriers, settings }
            }
            _ => return Err(WireError::Malformed("a recording of an unknown machine")),
        })
    }
}

fn plan(input: &mut Reader<'_>) -> Result<Plan, WireError> {
    let plan = Plan::get(input)?;
    if plan.chains.is_empty() || plan.chains.len() > MOST_SLICES {
        return Err(WireError::Malformed("a plan that no run has"));
    }
    Ok(plan)
}

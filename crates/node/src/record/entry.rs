//! The entries of a recording: what is recorded, the machine's inputs and its frames; and how much
//! memory each takes.

use coordinator::{CoordinatorInput, LivenessLimits, Membership, RunSize};
use shard::ServerInput;
use types::{Clock, NodeId, Plan, Source, Span, WorkerId};
use wire::{Field, Frame, Reader, WireError};
use worker::{KeyListDictionary, WorkerInput, WorkerSettings};

/// Bytes of memory that an entry takes beside its payloads, as an estimate.
const ENTRY_COST: usize = 128;
/// More shards than any run has: a plan with more is damage.
const MOST_SHARDS: usize = 1 << 16;

/// The machine that is recorded, with everything that it was made from. The updaters are not part
/// of it: they are code, and the replay is given them.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Server { node: NodeId, plan: Plan, list_bytes: usize, lease: Option<Span> },
    Coordinator { size: RunSize, membership: Membership, failure_timeout: Span, limits: LivenessLimits },
    Worker { id: WorkerId, source: Source, plan: Plan, clock: Clock, barriers: u64, settings: WorkerSettings },
}

/// One input of a machine.
#[derive(Clone, Debug)]
pub(crate) enum MachineInput {
    Server(ServerInput),
    Coordinator(CoordinatorInput),
    Worker(WorkerInput),
}

/// One entry of a recording.
pub(crate) enum RecordEntry {
    Begin(Subject),
    Input(MachineInput),
    Output(Vec<u8>),
}

impl From<ServerInput> for MachineInput {
    fn from(input: ServerInput) -> Self {
        Self::Server(input)
    }
}

impl From<CoordinatorInput> for MachineInput {
    fn from(input: CoordinatorInput) -> Self {
        Self::Coordinator(input)
    }
}

impl From<WorkerInput> for MachineInput {
    fn from(input: WorkerInput) -> Self {
        Self::Worker(input)
    }
}

impl RecordEntry {
    /// The memory that it holds, as an estimate.
    pub fn cost(&self) -> usize {
        let bytes = match self {
            Self::Begin(_) => 0,
            Self::Input(input) => input.bytes(),
            Self::Output(bytes) => bytes.len(),
        };
        ENTRY_COST + bytes
    }
}

impl MachineInput {
    fn bytes(&self) -> usize {
        match self {
            Self::Server(input) => match input {
                ServerInput::Frame(_, frame) => payload_bytes(frame),
                ServerInput::Settle
                | ServerInput::Tick(_)
                | ServerInput::Heartbeat(_)
                | ServerInput::Restore(..)
                | ServerInput::Work(_) => 0,
            },
            Self::Coordinator(input) => match input {
                CoordinatorInput::Frame(_, frame, _) => payload_bytes(frame),
                CoordinatorInput::Tick(_)
                | CoordinatorInput::Gone(_)
                | CoordinatorInput::Resume(_)
                | CoordinatorInput::Checkpoint(..)
                | CoordinatorInput::GiveUp(_)
                | CoordinatorInput::LastCheckpoint(_)
                | CoordinatorInput::Locations(_) => 0,
            },
            Self::Worker(input) => input.held_bytes(),
        }
    }

    pub fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        match self {
            Self::Server(input) => input.put(out),
            Self::Coordinator(input) => input.put(out),
            Self::Worker(input) => input.put(lists, out),
        }
    }

    /// Reads an input of the kind of machine that `subject` is.
    pub fn get(subject: &Subject, input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(match subject {
            Subject::Server { .. } => Self::Server(Field::get(input)?),
            Subject::Coordinator { .. } => Self::Coordinator(Field::get(input)?),
            Subject::Worker { .. } => Self::Worker(WorkerInput::get(input, lists)?),
        })
    }
}

impl Subject {
    /// The name of its recording's file.
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
            Self::Coordinator { size, membership, failure_timeout, limits } => {
                out.push(1);
                (size.servers, size.workers).put(out);
                let elastic = match membership {
                    Membership::Static => None,
                    Membership::Elastic { replicas, shards_per_server } => Some((*replicas, *shards_per_server)),
                };
                elastic.put(out);
                failure_timeout.0.put(out);
                let LivenessLimits { adoption, deaf, link, deadlock, first_clock, clock } = *limits;
                [adoption, deaf, link, deadlock, first_clock, clock].iter().for_each(|limit| limit.put(out));
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
                let node = Field::get(input)?;
                let plan = plan(input)?;
                let list_bytes = usize::try_from(u64::get(input)?).unwrap_or(usize::MAX);
                Self::Server { node, plan, list_bytes, lease: Field::get(input)? }
            }
            1 => {
                let (servers, workers) = Field::get(input)?;
                let elastic = Option::<(u32, u32)>::get(input)?;
                let membership = elastic.map_or(Membership::Static, |(replicas, shards_per_server)| {
                    Membership::Elastic { replicas, shards_per_server }
                });
                Self::Coordinator {
                    size: RunSize { servers, workers },
                    membership,
                    failure_timeout: Span(Field::get(input)?),
                    limits: LivenessLimits {
                        adoption: Field::get(input)?,
                        deaf: Field::get(input)?,
                        link: Field::get(input)?,
                        deadlock: Field::get(input)?,
                        first_clock: Field::get(input)?,
                        clock: Field::get(input)?,
                    },
                }
            }
            2 => {
                let id = Field::get(input)?;
                let source = Field::get(input)?;
                let plan = plan(input)?;
                let clock = Field::get(input)?;
                let barriers = Field::get(input)?;
                let resend_after = Option::<u64>::get(input)?.map(Span);
                // A replay has no stopwatch for codecs: what a machine sends never depends on it.
                let settings = WorkerSettings { resend_after, ..WorkerSettings::default() };
                Self::Worker { id, source, plan, clock, barriers, settings }
            }
            _ => return Err(WireError::Malformed("a recording of an unknown machine")),
        })
    }
}

fn payload_bytes(frame: &Frame) -> usize {
    frame.message.payloads().iter().map(|payload| payload.len()).sum()
}

fn plan(input: &mut Reader<'_>) -> Result<Plan, WireError> {
    let plan = Plan::get(input)?;
    if plan.chains.is_empty() || plan.chains.len() > MOST_SHARDS {
        return Err(WireError::Malformed("a plan without shards, or with too many"));
    }
    Ok(plan)
}

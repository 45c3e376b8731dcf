//! How a run stands, as its coordinator knows it.

use crate::field::{fields, variants};
use types::{Clock, NodeId, Plan, Span, WorkerId};

/// How a run stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The plan in force.
    pub plan: Plan,
    /// Servers that have not adopted it.
    pub adopting: Vec<NodeId>,
    /// Everybody who ever was in the run.
    pub members: Vec<MemberStatus>,
    /// Workers that are missing at a barrier at which others stand.
    pub awaited: Vec<WorkerId>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// A node that is silent for this long is given up.
    pub patience: Span,
    /// How long a server may answer after it has asked to, where others could take its slices over.
    pub lease: Option<Span>,
    /// How many servers hold each slice.
    pub copies: u32,
}

/// How one node stands.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// Its name.
    pub node: NodeId,
    /// Where it listens.
    pub address: String,
    /// What it is up to.
    pub standing: Standing,
    /// How long ago it was heard.
    pub silent: Span,
    /// A worker's clock, when it was last heard.
    pub clock: Clock,
}

/// What a node is up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was given a place, and does not take part yet.
    Joining,
    /// It takes part.
    Present,
    /// It has left.
    Left,
    /// The run went on without it.
    Lost {
        /// Why.
        reason: String,
    },
}

variants!(Standing { 0 => Joining, 1 => Present, 2 => Left, 3 => Lost { reason } });
fields!(MemberStatus { node, address, standing, silent, clock });
fields!(Status { plan, adopting, members, awaited, tables, patience, lease, copies });

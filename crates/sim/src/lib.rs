//! Deterministic simulation: a whole cluster in virtual time, from one seed. It drives the same
//! machines that run in production, through faults, and checks what programs saw.
//!
//! - A [`Cluster`] drives a coordinator, servers and workers. Each worker runs a program, a list of
//!   [`Action`]s.
//! - [`Faults`] says how often frames are delayed, reordered, duplicated or lost, and how often
//!   connections break. Nodes can also crash, be cut off, and run on skewed clocks.
//! - The [`History`] records what the programs did and saw. A [`Checker`] judges one rule by the
//!   history alone.
//! - A [`Sabotage`] breaks a machine on purpose, which shows that a checker notices.
//!
//! A seed replays a run exactly. [`for_seeds`] runs a property over many seeds, and counts a seed
//! only if all its faults happened.
//!
//! ```
//! use sim::{Cluster, Faults, RunSize, Action, Write, staleness_at_most};
//! use types::{Consistency, NumberType, TableSpec};
//!
//! let mut cluster = Cluster::new(7, RunSize { servers: 1, workers: 2 }, Faults::NONE);
//! let spec = TableSpec::dense("t", 4, 2).number(NumberType::I64);
//! let table = cluster.table(spec.consistency(Consistency::LOCK_STEP));
//! for worker in 0..2 {
//!     let push = Action::push(table, &[0, 3], Write::Marks);
//!     let pull = Action::pull(table, &[0, 3]);
//!     cluster.program(worker, vec![Action::MakeTable(table), push, Action::EndClock, pull]);
//! }
//! cluster.run();
//! cluster.check(staleness_at_most(0));
//! ```

mod check;
mod cluster;
mod decode;
mod faults;
mod history;
mod inputs;
mod network;
mod program;
mod random;
mod sabotage;
mod seeds;

pub use check::{
    Checker, Violation, all_finished, assigned_values_never_go_back, barriers_hold, delay_at_most,
    deletes_follow_the_update_of_their_clock, every_lease_counted_once, failed_clocks_are_seen_alike,
    feeds_show_rows_as_they_are, fifo_per_worker, held_clocks_at_most, no_acknowledged_push_lost_or_doubled,
    no_silent_wait, not_finite_is_refused, nothing_that_counts_is_left_out, one_head_at_a_time, open_reads_at_most,
    pushes_are_counted_once, reads_hold_exactly_the_clocks_below_the_reported_one, reads_own_writes,
    reported_clock_is_true, rows_are_as_their_writer_left_them, runs_after, scans_show_no_row_before_its_clock,
    staleness_at_most,
};
pub use cluster::{Cluster, Moment, SavedCheckpoint, StoppedInbox, Stuck};
pub use coordinator::{LivenessLimits, MembershipEvent};
pub use faults::{FaultCounts, Faults};
pub use history::{Entry, HeadSaid, History, HistoryEvent, ReadRecord};
pub use inputs::{MachineOutput, replay_server, replay_worker};
pub use network::{Isolation, LinkFault, Packed};
pub use program::{Action, Lessons, TableIndex, Workload, Write};
pub use random::Xoshiro256;
pub use sabotage::Sabotage;
pub use seeds::{caught_by, for_seeds, some_seed};
pub use types::RunSize;

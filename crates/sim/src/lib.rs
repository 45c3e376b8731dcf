//! A seeded cluster in virtual time: the same machines that run in production, with delay,
//! reordering, duplication, loss, disconnection, and checkers that judge from the history alone.
//!
//! A [`Cluster`] drives a coordinator, servers and workers from one seed. Each worker runs a
//! program, a list of
//! [`Action`]s; what the programs did and saw is the [`History`], and a [`Checker`] judges by nothing else. A seed replays
//! a run exactly, and [`for_seeds`] runs a property over many, counting a seed only if its faults
//! fired.
//!
//! ```
//! use sim::{Cluster, Faults, RunSize, Action, Write, staleness_at_most};
//! use types::{Consistency, NumberType, TableSpec};
//!
//! let mut cluster = Cluster::new(7, RunSize { servers: 1, workers: 2 }, Faults::NONE);
//! let spec = TableSpec::dense("t", 4, 2).number(NumberType::I64).consistency(Consistency::LOCK_STEP);
//! let table = cluster.table(spec);
//! for worker in 0..2 {
//!     let push = Action::push(table, &[0, 3], Write::Marks);
//!     cluster.program(worker, vec![Action::MakeTable(table), push, Action::EndClock, Action::pull(table, &[0, 3])]);
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
pub use cluster::{Cluster, Moment, SavedCheckpoint, Stuck};
pub use faults::{FaultCounts, Faults};
pub use history::{Entry, HeadSaid, History, HistoryEvent, ReadRecord};
pub use inputs::{MachineOutput, replay_server, replay_worker};
pub use network::{Isolation, LinkFault, Packed};
pub use program::{Action, Lessons, TableIndex, Workload, Write};
pub use random::Xoshiro256;
pub use sabotage::Sabotage;
pub use seeds::{caught_by, for_seeds, some_seed};
pub use types::RunSize;

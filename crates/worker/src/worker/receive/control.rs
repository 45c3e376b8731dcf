//! What a worker does with the coordinator's messages.
#![deny(clippy::wildcard_enum_match_arm)]

use crate::Notice;
use crate::worker::Worker;
use lease::LeaseId;
use std::collections::BTreeSet;
use types::{Clock, Plan, Time};
use wire::{Control, Outbox};

impl Worker {
    /// Handles a message of the coordinator.
    pub(super) fn controlled(&mut self, now: Time, control: Control, out: &mut Outbox) {
        match control {
            Control::TableMade { table, name } => {
                if let Some(spec) = self.asked.table_made(name, table) {
                    self.attach(table, spec, true, out);
                }
            }
            Control::AddTable { table, spec } => {
                self.attach(table, spec, false, out);
                self.control(Control::TableAdded { table, problem: None }, out);
            }
            Control::TableRefused { name, problem } => self.asked.table_refused(name, problem),
            Control::Adopt { plan, enacted, .. } => self.adopt(now, plan, enacted, out),
            Control::Checkpoint { number, clock, .. } => self.save_residuals(number, clock, out),
            Control::BarrierPassed { number } => self.asked.barrier_passed(number),
            Control::BarrierWaiting { on, .. } => self.notices.push(Notice::Barrier { on }),
            Control::LeasesOpened { name, set } => self.leases.answer_open(name, set),
            Control::Leased { set, number, leases, share } => self.leases.granted(set, number, leases, share),
            Control::LeasesOver { set, number, clock } => self.leases.over(set, number, clock),
            Control::LeasesEnded { set, number, clock } => self.leases.ended_by_all(set, number, clock),
            Control::EndLeases { set } => self.leases.ended_by_another(set),
            Control::LeasesAwaited { set, number, clock, on } => {
                self.notices.extend(self.leases.awaited(set, number, clock, on))
            }
            Control::LeaseCommitted { set, lease, problem } => {
                self.leases.committed(LeaseId { set, number: lease }, problem);
            }
            // Messages for the coordinator, for servers, or for the process that drives the worker.
            Control::Join { .. }
            | Control::Welcome { .. }
            | Control::JoinRefused { .. }
            | Control::Begin { .. }
            | Control::Adopted { .. }
            | Control::MakeTable { .. }
            | Control::TableAdded { .. }
            | Control::Barrier { .. }
            | Control::Heartbeat { .. }
            | Control::Bye
            | Control::Lost { .. }
            | Control::Finish
            | Control::Backfilled { .. }
            | Control::Follow { .. }
            | Control::AskStatus
            | Control::Status { .. }
            | Control::Fail { .. }
            | Control::Missed { .. }
            | Control::Written { .. }
            | Control::Unwritten { .. }
            | Control::ResidualsWritten { .. }
            | Control::Passed { .. }
            | Control::Restore { .. }
            | Control::OpenLeases { .. }
            | Control::AskLeases { .. }
            | Control::Learning { .. }
            | Control::CommitLease { .. }
            | Control::ForgetLeases { .. }
            | Control::Retire
            | Control::Released
            | Control::LeaveDeferred { .. }
            | Control::Report { .. }
            | Control::LeasesForgotten { .. } => {}
        }
    }

    /// Adopts a plan, unless it is an old one, and confirms the plan that the worker goes by.
    fn adopt(&mut self, now: Time, plan: Plan, enacted: bool, out: &mut Outbox) {
        if self.identity.adopt(plan) {
            let mut moved = BTreeSet::new();
            for table in self.tables.values_mut() {
                for (stream, placed) in table.streams.iter_mut().zip(self.identity.plan().shards(table.spec.shape)) {
                    if stream.owner() != placed.owner {
                        stream.move_to(placed.owner);
                        moved.insert(placed.owner);
                    }
                }
            }
            // Resends everything unacknowledged to the new servers before it sends them anything
            // else.
            moved.into_iter().for_each(|owner| self.reconnected(now, owner, out));
        }
        self.control(Control::Adopted { plan: self.identity.plan().number, enacted, frontier: Clock(0) }, out);
    }
}

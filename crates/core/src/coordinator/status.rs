//! How the run stands, for whoever asks.

use super::{Coordinator, Membership, Seat};
use types::{NodeId, Time, WorkerId};
use wire::{MemberStatus, Standing, Status};

impl Coordinator {
    /// How the run stands now.
    pub(super) fn status(&self, now: Time) -> Status {
        let member = |(node, seat): (&NodeId, &Seat)| MemberStatus {
            node: *node,
            address: seat.address.clone(),
            standing: match (&seat.expelled, seat.gone, seat.since) {
                (Some(reason), ..) => Standing::Lost { reason: reason.clone() },
                (None, true, _) => Standing::Left,
                (None, false, Some(_)) => Standing::Present,
                (None, false, None) => Standing::Joining,
            },
            silent: now.since(seat.heard),
            clock: seat.clock,
        };
        let awaited = self.live_workers().filter(|worker| !self.barriers.contains_key(worker));
        let awaited: Vec<WorkerId> = if self.barriers.is_empty() { Vec::new() } else { awaited.collect() };
        Status {
            plan: self.plan.clone(),
            adopting: self.adopting(),
            members: self.seats.iter().map(member).collect(),
            awaited,
            tables: self.tables.keys().cloned().collect(),
            patience: self.patience,
            lease: (self.membership != Membership::Fixed).then_some(crate::server_lease(self.patience)),
            copies: self.copies() as u32,
        }
    }
}

//! The pieces of leases that a shard holds, told apart by whether their values are in its rows yet.
//!
//! In a table that applies each push as it comes, a piece is in the rows as soon as it is held. In one that combines by clock it is in
//! the sum of its clock first, and in the rows when the frontier has passed that. A checkpoint keeps rows and no sums of clocks that
//! are open: a run that goes on from it must not believe that it holds what was in those, so it forgets them, and the leases that
//! they are of, which are not done, bring them again.

pub(crate) mod applied;

use crate::leases::applied::LeaseWindow;
use std::collections::BTreeMap;
use types::Clock;
use wire::{Field, LeasedPiece, Reader, WireError};

/// The pieces that a shard holds, of leases that are not over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// In the rows.
    applied: LeaseWindow,
    /// In sums of clocks that are open.
    open: BTreeMap<Clock, LeaseWindow>,
}

impl Pieces {
    /// Whether this piece was pushed before: the clock that it is in the sum of, or the first if it is in the rows.
    pub fn held_in(&self, piece: LeasedPiece) -> Option<Clock> {
        let open = || self.open.iter().find(|(_, window)| window.holds(piece)).map(|(clock, _)| *clock);
        if self.applied.holds(piece) { Some(Clock(0)) } else { open() }
    }

    /// Whether there is room for any piece.
    pub fn is_full(&self) -> bool {
        self.applied.is_full() || self.open.values().any(LeaseWindow::is_full)
    }

    /// This piece is held from now on: in the rows, or in the sum of a clock.
    pub fn hold(&mut self, piece: LeasedPiece, open: Option<Clock>) {
        match open {
            None => self.applied.hold(piece),
            Some(clock) => self.open.entry(clock).or_default().hold(piece),
        }
    }

    /// Clocks before this one are in the rows.
    pub fn apply_before(&mut self, end: Clock) {
        while let Some(entry) = self.open.first_entry().filter(|entry| *entry.key() < end) {
            self.applied.join(&entry.remove());
        }
    }

    /// The sums of open clocks are lost, and what was in them with them.
    pub fn lose_open(&mut self) {
        self.open.clear();
    }

    /// Forgets leases of a data set that are over.
    pub fn forget(&mut self, of: u32, is_over: impl Fn(u64) -> bool) {
        self.applied.forget(of, &is_over);
        self.open.values_mut().for_each(|window| window.forget(of, &is_over));
    }

    /// How many leases it knows of. One that is in several clocks counts in each.
    pub fn leases(&self) -> usize {
        self.applied.leases() + self.open.values().map(LeaseWindow::leases).sum::<usize>()
    }
}

impl Field for Pieces {
    fn put(&self, out: &mut Vec<u8>) {
        self.applied.put(out);
        (self.open.len() as u32).put(out);
        for (clock, window) in &self.open {
            clock.put(out);
            window.put(out);
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let applied = Field::get(input)?;
        let mut open = BTreeMap::new();
        for _ in 0..u32::get(input)? {
            let clock = Clock::get(input)?;
            if open.last_key_value().is_some_and(|(last, _)| *last >= clock) {
                return Err(WireError::Malformed("pieces of clocks out of order"));
            }
            open.insert(clock, LeaseWindow::get(input)?);
        }
        Ok(Self { applied, open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(piece: u64) -> LeasedPiece {
        LeasedPiece { set: 0, lease: 3, piece }
    }

    #[test]
    fn what_was_in_open_clocks_is_lost_with_them_and_nothing_else() {
        let mut pieces = Pieces::default();
        pieces.hold(piece(0), None);
        for number in 1..6 {
            pieces.hold(piece(number), Some(Clock(number)));
        }
        assert!((0..6).all(|number| pieces.held_in(piece(number)).is_some()) && pieces.held_in(piece(6)).is_none());
        let mut bytes = Vec::new();
        pieces.put(&mut bytes);
        assert_eq!(Pieces::get(&mut Reader(&bytes)).as_ref(), Ok(&pieces));
        for length in 0..bytes.len() {
            assert!(Pieces::get(&mut Reader(&bytes[..length])).is_err(), "{length} of {} bytes", bytes.len());
        }
        pieces.apply_before(Clock(4));
        assert!((0..6).all(|number| pieces.held_in(piece(number)).is_some()));
        pieces.lose_open();
        let held: Vec<u64> = (0..7).filter(|number| pieces.held_in(piece(*number)).is_some()).collect();
        assert_eq!(held, [0, 1, 2, 3]);
        pieces.forget(0, |lease| lease == 3);
        assert_eq!(pieces.leases(), 0);
    }
}

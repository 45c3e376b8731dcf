//! The change feed through the parts of a shard: answers one question of a reader with one page of
//! rows.
//!
//! The shard answers at once. The reader need not be a member of the run, so nothing in the run
//! waits for it.

use crate::follow::Followers;
use crate::shard::Shard;
use crate::view::Row;
use types::{PART_BYTES, PositionRange, Time};
use update::{ABSENT, Number, Slots};
use wire::{ASK_AGAIN, FeedCursor, Frame, Head, KeyPart, Message, Outbox, Payload, Pull, Pulled, Refusal};

impl<T: Number> Shard<T> {
    /// Answers with rows that changed. Tells the reader to ask again while this replica may not
    /// answer, or while its rows are ahead of the frontier that readers may see.
    pub(super) fn answer_feed(&mut self, now: Time, head: &Head, cursor: FeedCursor, pull: &Pull, out: &mut Outbox) {
        let message = if let KeyPart::Scan { range } = pull.keys {
            let empty = Pulled::empty(self.identity.table, self.identity.shard(), pull.request);
            Message::Pulled(self.feed_page(now, cursor, range, Pulled { sequence: Some(ASK_AGAIN), ..empty }))
        } else {
            Message::PullRefused(self.refused(pull.request, Refusal::Undecodable))
        };
        let head = Head { source: head.source, clock: self.announced(), ..self.identity.head(head.from) };
        out.send(Frame { head, message });
    }

    /// Fills `answer` with the next rows that changed, as they are now, followed by the positions
    /// of deleted rows. Returns it as it is if the reader must ask again.
    fn feed_page(&mut self, now: Time, cursor: FeedCursor, range: PositionRange, mut answer: Pulled) -> Pulled {
        if !self.serving.may_answer() {
            return answer;
        }
        let named = self.followers.need_changes();
        self.followers.read_feed(now, self.rows.len());
        self.name_changes(named);
        if !self.is_exact() {
            return answer;
        }
        let most = (PART_BYTES / (self.spec.row_bytes() + 8)).max(1);
        let (view, Followers { feed, log, .. }) = self.view_and_followers();
        let positions = feed.page(cursor, range, most, log, view.rows, &mut answer);
        let slots = view.slots(&positions);
        // A pending row counts as deleted: scans do not show it either.
        let (there, gone): (Vec<Row>, Vec<Row>) =
            positions.into_iter().zip(slots).partition(|row| row.1 != ABSENT && view.rows.shows(row.0));
        let slots: Vec<u32> = there.iter().map(|row| row.1).collect();
        let mut values = view.pool.take(slots.len() * view.rows.width() * size_of::<T>());
        view.rows.read(view.clocks.frontier(), Slots::List(&slots), values.numbers_mut::<T>());
        let positions: Vec<u64> = there.into_iter().chain(gone).map(|row| row.0).collect();
        Pulled { positions: Payload::new(positions), values: values.freeze(), ..answer }
    }

    /// Time has passed: stops a feed without readers, or bounds its history.
    pub(super) fn tick_feed(&mut self) {
        let named = self.followers.need_changes();
        self.followers.tick_feed(self.now, self.rows.len());
        self.name_changes(named);
    }
}

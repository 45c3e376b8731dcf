//! One question of a reader of the change feed through the parts of a shard. It waits for nobody,
//! and nobody waits for it: the reader may be no worker at all.

use crate::follow::Followers;
use crate::shard::Shard;
use crate::view::Row;
use types::{PART_BYTES, PositionRange, Time};
use update::{ABSENT, Number, Slots};
use wire::{ASK_AGAIN, FeedCursor, Frame, Head, KeyPart, Message, Outbox, Payload, Pull, Pulled, Refusal};

impl<T: Number> Shard<T> {
    /// Answers with rows that changed. Says to ask again while rows are not those of a frontier
    /// that readers may see.
    pub(super) fn answer_feed(&mut self, now: Time, head: &Head, cursor: FeedCursor, pull: &Pull, out: &mut Outbox) {
        let (table, shard, request) = (self.identity.table, self.identity.shard(), pull.request);
        let message = match pull.keys {
            KeyPart::Scan { range } => {
                let (positions, values) = (Payload::EMPTY, Payload::EMPTY);
                let (sequence, contains, released_by, failed, more) = (Some(ASK_AGAIN), 0, None, Vec::new(), None);
                let answer =
                    Pulled { table, shard, request, contains, sequence, released_by, failed, more, positions, values };
                let may_answer = self.is_exact() && self.serving.may_answer();
                Message::Pulled(if may_answer { self.feed_page(now, cursor, range, answer) } else { answer })
            }
            _ => Message::PullRefused(self.refused(request, Refusal::Undecodable)),
        };
        let head = Head { source: head.source, clock: self.announced(), ..self.identity.head(head.from) };
        out.send(Frame { head, message });
    }

    /// The next rows that changed, as they are now, and behind them those that were deleted.
    fn feed_page(&mut self, now: Time, cursor: FeedCursor, range: PositionRange, answer: Pulled) -> Pulled {
        let named = self.followers.need_changes();
        let Followers { feed, log, .. } = &mut self.followers;
        feed.read(now, log);
        feed.bound(self.rows.len(), log);
        self.followers.trim();
        self.name_changes(named);
        let most = (PART_BYTES / (self.spec.row_bytes() + 8)).max(1);
        let (view, Followers { feed, log, .. }) = self.view_and_followers();
        let page = feed.page(cursor, range, most, log, view.rows);
        let slots = view.slots(&page.positions);
        let rows = page.positions.iter().copied().zip(slots);
        // A row that was deleted and made anew in a clock that is open still is gone until then.
        let (there, gone): (Vec<Row>, Vec<Row>) =
            rows.partition(|(position, slot)| *slot != ABSENT && view.rows.shows(*position));
        let slots: Vec<u32> = there.iter().map(|row| row.1).collect();
        let positions: Vec<u64> = there.into_iter().chain(gone).map(|row| row.0).collect();
        let mut values = view.pool.take(slots.len() * view.rows.width() * size_of::<T>());
        view.rows.read(view.clocks.frontier(), Slots::List(&slots), values.numbers_mut::<T>());
        let (contains, sequence, more) = (log.last(), page.reaches, page.more);
        Pulled { contains, sequence, more, positions: Payload::new(positions), values: values.freeze(), ..answer }
    }

    /// Time has passed: a feed that nobody reads ends.
    pub(super) fn tick_feed(&mut self) {
        if self.followers.feed.is_idle(self.now) {
            self.followers.feed.stop();
            self.followers.trim();
            self.name_changes(true);
        }
    }
}

//! The change feed through the parts of a shard: one question of a reader, and one page of rows.
//! The shard answers at once. The reader may be no member of the run, so nothing in the run waits
//! for it.

use crate::follow::Followers;
use crate::shard::Shard;
use crate::view::Row;
use types::{PART_BYTES, PositionRange, Time};
use update::{ABSENT, Number, Slots};
use wire::{ASK_AGAIN, FeedCursor, Frame, Head, KeyPart, Message, Outbox, Payload, Pull, Pulled, Refusal};

impl<T: Number> Shard<T> {
    /// Answers with rows that changed. Tells the reader to ask again while this replica may not
    /// answer, and while the rows are not those of a frontier that readers may see.
    pub(super) fn answer_feed(&mut self, now: Time, head: &Head, cursor: FeedCursor, pull: &Pull, out: &mut Outbox) {
        let (table, shard, request) = (self.identity.table, self.identity.shard(), pull.request);
        let message = match pull.keys {
            KeyPart::Scan { range } => {
                let (sequence, contains, released_by, failed, more) = (Some(ASK_AGAIN), 0, None, Vec::new(), None);
                let (positions, values) = (Payload::EMPTY, Payload::EMPTY);
                let answer =
                    Pulled { table, shard, request, contains, sequence, released_by, failed, more, positions, values };
                Message::Pulled(self.answer_page(now, cursor, range, answer))
            }
            KeyPart::Run { .. }
            | KeyPart::List { .. }
            | KeyPart::Packed { .. }
            | KeyPart::Known { .. }
            | KeyPart::Chosen { .. } => Message::PullRefused(self.refused(request, Refusal::Undecodable)),
        };
        let head = Head { source: head.source, clock: self.announced(), ..self.identity.head(head.from) };
        out.send(Frame { head, message });
    }

    fn answer_page(&mut self, now: Time, cursor: FeedCursor, range: PositionRange, answer: Pulled) -> Pulled {
        if !self.serving.may_answer() {
            return answer;
        }
        let named = self.followers.need_changes();
        self.followers.read_feed(now, self.rows.len());
        self.name_changes(named);
        if self.is_exact() { self.feed_page(cursor, range, answer) } else { answer }
    }

    /// The next rows that changed, as they are now, and behind them the deleted ones.
    fn feed_page(&mut self, cursor: FeedCursor, range: PositionRange, answer: Pulled) -> Pulled {
        let most = (PART_BYTES / (self.spec.row_bytes() + 8)).max(1);
        let (view, Followers { feed, log, .. }) = self.view_and_followers();
        let page = feed.page(cursor, range, most, log, view.rows);
        let slots = view.slots(&page.positions);
        let rows = page.positions.iter().copied().zip(slots);
        // A row that only contributions to open clocks have made is not shown yet, where scans do
        // not show it either.
        let (there, gone): (Vec<Row>, Vec<Row>) =
            rows.partition(|(position, slot)| *slot != ABSENT && view.rows.shows(*position));
        let slots: Vec<u32> = there.iter().map(|row| row.1).collect();
        let positions: Vec<u64> = there.into_iter().chain(gone).map(|row| row.0).collect();
        let mut values = view.pool.take(slots.len() * view.rows.width() * size_of::<T>());
        view.rows.read(view.clocks.frontier(), Slots::List(&slots), values.numbers_mut::<T>());
        let (contains, sequence, more) = (log.last(), page.reaches, page.more);
        Pulled { contains, sequence, more, positions: Payload::new(positions), values: values.freeze(), ..answer }
    }

    /// Time has passed: stops a feed without readers, and bounds its history.
    pub(super) fn tick_feed(&mut self) {
        let named = self.followers.need_changes();
        self.followers.tick_feed(self.now, self.rows.len());
        self.name_changes(named);
    }
}

//! Checkpoints of a server: its shards are copied when their frontiers reach a clock, and made from
//! such copies when a run is resumed.

use super::Server;
use crate::checkpoint::ShardImage;
use crate::follow::replica::peers::ChainRole;
use crate::residual_rows::ResidualRows;
use types::{Clock, NodeId, ShardId, TableId, TableSpec, Time};
use wire::{Control, Field, Frame, Head, Message, Outbox, Reader, WireError};

/// A table of a checkpoint, as a server is to hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// The table's number in this run.
    pub table: TableId,
    /// How it is made.
    pub spec: TableSpec,
    /// The clock of the checkpoint.
    pub clock: Clock,
    /// Those shards that the server has a part in.
    pub images: Vec<ShardImage>,
    /// What workers had still to send to its rows.
    pub residuals: Vec<ResidualRows>,
}

impl Restored {
    /// Whether a shard is among them.
    #[must_use]
    pub fn has(&self, id: ShardId) -> bool {
        self.images.iter().any(|image| image.shard == id)
    }
}

impl Field for Restored {
    fn put(&self, out: &mut Vec<u8>) {
        self.table.put(out);
        self.spec.put(out);
        self.clock.put(out);
        self.images.put(out);
        self.residuals.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (table, spec) = (Field::get(input)?, Field::get(input)?);
        Ok(Self { table, spec, clock: Field::get(input)?, images: Field::get(input)?, residuals: Field::get(input)? })
    }
}

impl Server {
    /// Copies that were made for a checkpoint since this was last asked. Whoever drives the server
    /// writes them, beside it.
    pub fn take_images(&mut self) -> Vec<ShardImage> {
        std::mem::take(&mut self.images)
    }

    /// The shards of such a table that this server has a part in.
    #[must_use]
    pub fn shards_of(&self, spec: &TableSpec) -> Vec<ShardId> {
        let chains = self.plan.shards(spec.shape).into_iter().zip(&self.plan.chains);
        chains.filter(|(_, chain)| ChainRole::of(chain, self.node).is_some()).map(|(placed, _)| placed.shard).collect()
    }

    /// Whether it holds a table already.
    #[must_use]
    pub fn has_table(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Holds a table as a checkpoint has it, before any worker knows of it, and tells the
    /// coordinator so, or why it cannot.
    pub fn restore(&mut self, now: Time, restored: &Restored, out: &mut Outbox) {
        self.now = now;
        let table = restored.table;
        let problem = if self.has_table(table) { None } else { self.restore_table(restored, out).err() };
        if problem.is_some() {
            self.tables.remove(&table);
            self.shards.retain(|(of, _), _| *of != table);
        }
        let message = Message::Control(Control::TableAdded { table, problem });
        out.send(Frame { head: Head::plain(self.node, NodeId::Coordinator), message });
    }

    fn restore_table(&mut self, restored: &Restored, out: &mut Outbox) -> Result<(), String> {
        let Restored { table, spec, clock, images, residuals } = restored;
        self.add_table(*table, spec, out)?;
        for ((_, id), shard) in self.shards.iter_mut().filter(|((of, _), _)| of == table) {
            let name = &spec.name;
            let image = images.iter().find(|image| image.shard == *id);
            let image = image.ok_or_else(|| format!("the checkpoint lacks shard {} of table '{name}'", id.0))?;
            let restored = shard.restore(*clock, image, residuals);
            restored.map_err(|problem| format!("shard {} of table '{name}' in the checkpoint: {problem}", id.0))?;
        }
        Ok(())
    }

    /// A checkpoint is wanted. What it can have no more is said, each time.
    pub(super) fn checkpoint(&mut self, number: u64, clock: Clock, last: bool, out: &mut Outbox) {
        if self.checkpoint.is_none_or(|(known, ..)| known < number) {
            self.checkpoint = Some((number, clock, last));
        }
        self.touched.extend(self.shards.keys().copied());
        for ((table, id), shard) in &mut self.shards {
            shard.checkpoint(number, clock, last);
            if let Some((_, frontier)) = shard.missed().filter(|(missed, _)| *missed == number) {
                let missed = Control::Missed { number, table: *table, shard: *id, frontier };
                let head = Head::plain(self.node, NodeId::Coordinator);
                out.send(Frame { head, message: Message::Control(missed) });
            }
        }
    }

    /// The furthest frontier of any shard that it answers for.
    pub(super) fn furthest(&self) -> Clock {
        let heads = self.shards.values().filter(|shard| shard.is_head());
        heads.map(|shard| shard.frontier()).max().unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one message among others")]
mod tests {
    use super::*;
    use types::{Combine, NumberType, Plan, Position, Reduce, Source, UpdaterSpec};
    use update::Updaters;
    use wire::{KeyPart, Marker, Payload, Pool, Push, Writes};

    const NODE: NodeId = NodeId::Server(0);
    const TABLE: TableId = TableId(0);

    struct Run {
        server: Server,
        out: Outbox,
        sent: Vec<u64>,
    }

    impl Run {
        /// One server, and workers whose incarnations have these numbers.
        fn new(workers: &[u64]) -> Self {
            let plan = Plan::first(1, workers.iter().map(|source| Source(*source)).collect());
            let server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
            Self { server, out: Outbox::new(), sent: vec![0; workers.len()] }
        }

        fn says(&mut self, worker: u32, source: u64, clock: u64, message: Message) {
            self.sent[worker as usize] += 1;
            let mut head = Head::plain(NodeId::Worker(worker), NODE);
            (head.source, head.number, head.clock) = (Source(source), self.sent[worker as usize], Clock(clock));
            self.server.handle(Time(0), Frame { head, message }, &mut self.out);
            self.server.settle(&mut self.out);
        }

        fn push(&mut self, worker: u32, source: u64, clock: u64, row: u64) {
            let keys = KeyPart::Run { first: Position(row), count: 1 };
            let values = Payload::new(vec![1i64 << (8 * clock)]);
            let (table, shard, number) = (TABLE, ShardId(0), NumberType::I64);
            let push = Push { table, shard, settled: 0, number, writes: Writes::GRADIENTS, keys, values };
            self.says(worker, source, clock, Message::Push(push));
        }

        fn end(&mut self, worker: u32, source: u64, clock: u64) {
            let marker = Marker { table: TABLE, shard: ShardId(0), settled: 0, since: Clock(0) };
            self.says(worker, source, clock, Message::Marker(marker));
        }

        fn told(&mut self, control: Control) -> Vec<Control> {
            let head = Head::plain(NodeId::Coordinator, NODE);
            self.out.drain().for_each(drop);
            self.server.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut self.out);
            self.server.settle(&mut self.out);
            let said = self.out.drain().filter_map(|frame| match frame.message {
                Message::Control(control) => Some(control),
                _ => None,
            });
            said.collect()
        }

        fn asked(&mut self, number: u64, clock: u64) -> Vec<Control> {
            let (location, name) = (String::new(), String::new());
            self.told(Control::Checkpoint { number, clock: Clock(clock), last: false, location, name })
        }

        fn rows(&mut self) -> Vec<Vec<i64>> {
            let images = self.server.take_images().into_iter();
            images.map(|image| image.rows.numbers::<i64>().expect("i64").to_vec()).collect()
        }
    }

    fn spec(combine: Combine) -> TableSpec {
        TableSpec::dense("t", 2, 1).number(NumberType::I64).combine(combine).updater(UpdaterSpec::Sum)
    }

    /// Two workers: one is at clock 3, and the other ends clock 0, then clock 1, of which a
    /// checkpoint is made.
    fn copied(combine: Combine) -> (Run, Vec<Vec<i64>>) {
        let mut run = Run::new(&[1, 2]);
        run.server.add_table(TABLE, &spec(combine), &mut run.out).expect("made");
        for clock in 0..3 {
            run.push(0, 1, clock, 0);
            run.end(0, 1, clock);
        }
        run.push(1, 2, 0, 1);
        run.end(1, 2, 0);
        assert_eq!(run.asked(1, 2), [], "it comes by clock 2 yet");
        assert_eq!(run.rows().len(), 0);
        run.push(1, 2, 1, 1);
        run.end(1, 2, 1);
        run.push(1, 2, 2, 1);
        run.end(1, 2, 2);
        let rows = run.rows();
        (run, rows)
    }

    #[test]
    fn a_copy_of_a_clock_table_holds_every_clock_before_and_nothing_of_later_ones() {
        let (mut run, rows) = copied(Combine::Clock(Reduce::Sum));
        assert_eq!(rows, [[0x0101, 0x0101]]);
        assert_eq!(run.asked(1, 2), [], "it was made once, and is not missed");
        let missed = Control::Missed { number: 2, table: TABLE, shard: ShardId(0), frontier: Clock(3) };
        assert_eq!(run.asked(2, 2), [missed], "clock 2 has passed");
        run.end(0, 1, 3);
        run.end(1, 2, 3);
        assert_eq!(run.rows().len(), 0, "and is not copied later");
        assert_eq!(run.asked(3, 4), []);
        assert_eq!(run.rows(), [[0x01_0101, 0x01_0101]], "the frontier stands there");
    }

    #[test]
    fn a_frontier_that_passes_several_clocks_at_once_is_copied_at_the_right_one() {
        let mut run = Run::new(&[1, 2]);
        run.server.add_table(TABLE, &spec(Combine::Clock(Reduce::Sum)), &mut run.out).expect("made");
        for clock in 0..3 {
            run.push(0, 1, clock, 0);
            run.end(0, 1, clock);
        }
        run.asked(1, 2);
        let plan =
            Plan { number: types::PlanNumber(2), workers: vec![Some(Source(1)), None], ..run.server.plan.clone() };
        run.told(Control::Adopt { plan, members: Vec::new(), enacted: true });
        assert_eq!(run.rows(), [[0x0101, 0]]);
    }

    #[test]
    fn a_copy_of_a_table_that_applies_each_push_holds_what_was_there() {
        let (_, rows) = copied(Combine::Each);
        assert_eq!(rows, [[0x01_0101, 0x0101]], "of worker 0 clock 2, too");
    }

    #[test]
    fn a_copy_is_handed_over_when_the_last_of_the_chain_is_as_far() {
        let mut run = Run::new(&[1]);
        let mut plan = run.server.plan.clone();
        plan.chains = vec![types::Chain { replicas: vec![0, 1], backfilling: Vec::new() }];
        run.server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
        run.server.add_table(TABLE, &spec(Combine::Each), &mut run.out).expect("made");
        run.asked(1, 1);
        run.push(0, 1, 0, 0);
        run.end(0, 1, 0);
        run.server.tick(Time(1_000_000_000), &mut run.out);
        assert_eq!(run.rows().len(), 0, "whoever took over now would be at clock 0");
        for batch in 1..=2 {
            let replicated = wire::Replicated { table: TABLE, shard: ShardId(0), through: batch, backfill: None };
            let head = Head { plan: run.server.plan.number, ..Head::plain(NodeId::Server(1), NODE) };
            let frame = Frame { head, message: Message::Replicated(replicated) };
            run.server.handle(Time(1_000_000_000), frame, &mut run.out);
            run.server.settle(&mut run.out);
            run.server.tick(Time(2_000_000_000), &mut run.out);
        }
        assert_eq!(run.rows(), [[1, 0]]);
    }

    #[test]
    fn the_last_copy_holds_every_clock_that_anybody_has_ended() {
        for combine in [Combine::Clock(Reduce::Sum), Combine::Each] {
            let mut run = Run::new(&[1, 2]);
            run.server.add_table(TABLE, &spec(combine), &mut run.out).expect("made");
            for clock in 0..3 {
                run.push(0, 1, clock, 0);
                run.end(0, 1, clock);
            }
            // The other one has left in the middle of clock 1: what it has pushed counts.
            run.push(1, 2, 0, 1);
            run.end(1, 2, 0);
            run.push(1, 2, 1, 1);
            let (number, clock, location, name) = (1, Clock(3), String::new(), String::new());
            run.told(Control::Checkpoint { number, clock, last: true, location, name });
            assert_eq!(run.rows(), [[0x01_0101, 0x0101]]);
        }
    }

    #[test]
    fn bookkeeping_is_not_copied() {
        let mut run = Run::new(&[1]);
        run.server
            .add_table(TABLE, &TableSpec { name: ".t".into(), ..spec(Combine::Each) }, &mut run.out)
            .expect("made");
        run.asked(1, 1);
        run.end(0, 1, 0);
        run.end(0, 1, 1);
        assert_eq!((run.rows().len(), run.asked(1, 1)), (0, Vec::new()), "neither copied nor missed");
    }

    #[test]
    fn a_run_of_other_workers_goes_on_from_a_copy() {
        let mut run = Run::new(&[1, 2]);
        let spec = spec(Combine::Clock(Reduce::Sum));
        run.server.add_table(TABLE, &spec, &mut run.out).expect("made");
        for clock in 0..2 {
            run.push(0, 1, clock, 0);
            run.end(0, 1, clock);
        }
        run.push(1, 2, 0, 1);
        run.asked(1, 1);
        run.end(1, 2, 0);
        let images = run.server.take_images();
        let mut bytes = Vec::new();
        let restored = Restored { table: TABLE, spec, clock: Clock(1), images, residuals: Vec::new() };
        restored.put(&mut bytes);
        let restored = Restored::get(&mut Reader(&bytes)).expect("what was written");

        let mut next = Run::new(&[7]);
        next.server.restore(Time(0), &restored, &mut next.out);
        let added = Message::Control(Control::TableAdded { table: TABLE, problem: None });
        assert_eq!(next.out.drain().map(|frame| frame.message).collect::<Vec<_>>(), [added]);
        next.asked(1, 2);
        next.push(0, 7, 1, 1);
        next.end(0, 7, 1);
        assert_eq!(next.rows(), [[0x01, 0x0101]], "clock 0 from before, and clock 1 of those who are here alone");

        let mut other = Run::new(&[7]);
        let wide = Restored { spec: TableSpec { width: 2, ..restored.spec.clone() }, ..restored.clone() };
        other.server.restore(Time(0), &wide, &mut other.out);
        let lacking = Restored { images: Vec::new(), ..restored };
        other.server.restore(Time(0), &lacking, &mut other.out);
        let problems: Vec<String> = other.out.drain().map(|frame| format!("{:?}", frame.message)).collect();
        assert!(problems[0].contains("its rows are 1 numbers of type i64, and the table's 2"), "{problems:?}");
        assert!(problems[1].contains("the checkpoint lacks shard 0 of table 't'"), "{problems:?}");
    }
}

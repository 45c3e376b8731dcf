//! Checkpoints of a server: shards are copied when their frontiers reach a clock, and restored from
//! such copies when a run resumes.

use super::Server;
use crate::checkpoint::ShardImage;
use crate::follow::replica::peers::ChainRole;
use crate::residual_rows::ResidualRows;
use std::sync::Arc;
use types::{Clock, NodeId, ShardId, TableId, TableSpec, Time};
use wire::{Control, Field, Frame, Head, Message, Outbox, Reader, WireError};

/// A table of a checkpoint, as the shell gives it to a server to restore.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// The table's number in this run.
    pub table: TableId,
    /// The table's spec.
    pub spec: TableSpec,
    /// The clock of the checkpoint.
    pub clock: Clock,
    /// The shards of which the server has a replica.
    pub images: Vec<ShardImage>,
    /// Residuals of workers for its rows.
    pub residuals: Vec<ResidualRows>,
}

impl Restored {
    /// Whether it has an image of this shard.
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
        Ok(Self {
            table: Field::get(input)?,
            spec: Field::get(input)?,
            clock: Field::get(input)?,
            images: Field::get(input)?,
            residuals: Field::get(input)?,
        })
    }
}

impl Server {
    /// Takes the copies that were made for a checkpoint since the last call. The shell writes them
    /// in a thread of its own.
    pub fn take_images(&mut self) -> Vec<ShardImage> {
        std::mem::take(&mut self.images)
    }

    /// The shards of a table with this spec of which this server has a replica.
    #[must_use]
    pub fn shards_of(&self, spec: &TableSpec) -> Vec<ShardId> {
        let chains = self.plan.shards(spec.shape).into_iter().zip(&self.plan.chains);
        chains.filter(|(_, chain)| ChainRole::of(chain, self.node).is_some()).map(|(placed, _)| placed.shard).collect()
    }

    /// Whether it has the table already.
    #[must_use]
    pub fn has_table(&self, table: TableId) -> bool {
        self.tables.contains_key(&table)
    }

    /// Begins to restore a table from a checkpoint, before any worker knows of it. Tells the
    /// coordinator when the table is added, or why it cannot be.
    pub fn restore(&mut self, now: Time, restored: Restored, out: &mut Outbox) {
        self.now = now;
        let table = restored.table;
        if self.has_table(table) {
            return self.answer_when_made(table, out);
        }
        match self.restore_table(restored, out) {
            Ok(()) => self.answer_when_made(table, out),
            Err(problem) => self.refuse_table(table, problem, out),
        }
    }

    /// Makes the table and begins to fill its shards from the images.
    fn restore_table(&mut self, restored: Restored, out: &mut Outbox) -> Result<(), String> {
        let Restored { table, spec, clock, mut images, residuals } = restored;
        self.add_table(table, &spec, out)?;
        let residuals = Arc::new(residuals);
        for (name, shard) in self.shards.iter_mut().filter(|((of, _), _)| *of == table) {
            let id = name.1;
            let image = images.iter().position(|image| image.shard == id).map(|at| images.swap_remove(at));
            let image = image.ok_or_else(|| format!("the checkpoint lacks shard {} of table '{}'", id.0, spec.name))?;
            let begun = shard.restore(clock, image, residuals.clone());
            begun.map_err(|problem| cannot_restore(id, &spec.name, &problem))?;
            self.work.note(*name, shard.has_work());
        }
        Ok(())
    }

    /// The coordinator asks for a checkpoint. Tells it, each time it asks, of shards whose frontier
    /// has passed the clock without a copy.
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

    /// The highest frontier of the shards of which it is the head.
    pub(super) fn furthest(&self) -> Clock {
        let heads = self.shards.values().filter(|shard| shard.is_head());
        heads.map(|shard| shard.frontier()).max().unwrap_or_default()
    }
}

/// Why a shard of a table cannot be restored.
pub(super) fn cannot_restore(shard: ShardId, table: &str, problem: &str) -> String {
    format!("cannot restore shard {} of table '{table}' from the checkpoint: {problem}", shard.0)
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

        /// A worker sends a message, at its clock.
        fn says(&mut self, worker: u32, source: u64, clock: u64, message: Message) {
            self.sent[worker as usize] += 1;
            let mut head = Head::plain(NodeId::Worker(worker), NODE);
            head.source = Source(source);
            head.number = self.sent[worker as usize];
            head.clock = Clock(clock);
            self.server.handle(Time(0), Frame { head, message }, &mut self.out);
            self.server.settle(&mut self.out);
        }

        fn push(&mut self, worker: u32, source: u64, clock: u64, row: u64) {
            let keys = KeyPart::Run { first: Position(row), count: 1 };
            let values = Payload::new(vec![1i64 << (8 * clock)]);
            let push = Push {
                table: TABLE,
                shard: ShardId(0),
                settled: 0,
                number: NumberType::I64,
                writes: Writes::GRADIENTS,
                keys,
                values,
            };
            self.says(worker, source, clock, Message::Push(push));
        }

        fn end(&mut self, worker: u32, source: u64, clock: u64) {
            let marker = Marker { table: TABLE, shard: ShardId(0), settled: 0, since: Clock(0) };
            self.says(worker, source, clock, Message::Marker(marker));
        }

        /// The coordinator sends a message. Returns what the server answers.
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

        /// The coordinator asks for a checkpoint. Returns what the server answers.
        fn asked(&mut self, number: u64, clock: u64) -> Vec<Control> {
            self.told(Control::Checkpoint {
                number,
                clock: Clock(clock),
                last: false,
                location: String::new(),
                name: String::new(),
            })
        }

        fn restore(&mut self, restored: Restored) {
            self.server.restore(Time(0), restored, &mut self.out);
            while self.server.has_work() {
                self.server.work(Time(0), &mut self.out);
            }
        }

        fn rows(&mut self) -> Vec<Vec<i64>> {
            let images = self.server.take_images().into_iter();
            images.map(|image| image.rows.numbers::<i64>().expect("i64").to_vec()).collect()
        }
    }

    fn spec(combine: Combine) -> TableSpec {
        TableSpec::dense("t", 2, 1).number(NumberType::I64).combine(combine).updater(UpdaterSpec::Sum)
    }

    /// A run of two workers and the rows of its checkpoint at clock 2. One worker is at clock 3
    /// when the other ends clock 1, which brings the frontier to clock 2.
    fn copied(combine: Combine) -> (Run, Vec<Vec<i64>>) {
        let mut run = Run::new(&[1, 2]);
        run.server.add_table(TABLE, &spec(combine), &mut run.out).expect("made");
        for clock in 0..3 {
            run.push(0, 1, clock, 0);
            run.end(0, 1, clock);
        }
        run.push(1, 2, 0, 1);
        run.end(1, 2, 0);
        assert_eq!(run.asked(1, 2), [], "the frontier has yet to reach clock 2");
        assert_eq!(run.rows().len(), 0);
        run.push(1, 2, 1, 1);
        run.end(1, 2, 1);
        run.push(1, 2, 2, 1);
        run.end(1, 2, 2);
        let rows = run.rows();
        (run, rows)
    }

    #[test]
    fn checkpoint_of_a_clock_table_holds_every_earlier_clock_and_no_later_one() {
        let (mut run, rows) = copied(Combine::Clock(Reduce::Sum));
        assert_eq!(rows, [[0x0101, 0x0101]]);
        assert_eq!(run.asked(1, 2), [], "it was made once, and is not missed");
        let missed = Control::Missed { number: 2, table: TABLE, shard: ShardId(0), frontier: Clock(3) };
        assert_eq!(run.asked(2, 2), [missed], "clock 2 has passed");
        run.end(0, 1, 3);
        run.end(1, 2, 3);
        assert_eq!(run.rows().len(), 0, "a missed checkpoint is not made later");
        assert_eq!(run.asked(3, 4), []);
        assert_eq!(run.rows(), [[0x01_0101, 0x01_0101]], "the frontier is at that clock");
    }

    #[test]
    fn checkpoint_is_copied_at_its_clock_when_the_frontier_passes_several_at_once() {
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
    fn checkpoint_of_an_each_table_holds_every_push_so_far() {
        let (_, rows) = copied(Combine::Each);
        assert_eq!(rows, [[0x01_0101, 0x0101]], "worker 0 has pushed in clock 2 too");
    }

    #[test]
    fn checkpoint_is_taken_once_the_tail_has_reached_its_clock() {
        let mut run = Run::new(&[1]);
        let mut plan = run.server.plan.clone();
        plan.chains = vec![types::Chain { replicas: vec![0, 1], backfilling: Vec::new() }];
        run.server = Server::new(NODE, plan, Updaters::builtin(), Pool::new());
        run.server.add_table(TABLE, &spec(Combine::Each), &mut run.out).expect("made");
        run.asked(1, 1);
        run.push(0, 1, 0, 0);
        run.end(0, 1, 0);
        run.server.tick(Time(1_000_000_000), &mut run.out);
        assert_eq!(run.rows().len(), 0, "a replica that took over now would be at clock 0");
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
    fn last_checkpoint_holds_every_clock_that_any_worker_has_ended() {
        for combine in [Combine::Clock(Reduce::Sum), Combine::Each] {
            let mut run = Run::new(&[1, 2]);
            run.server.add_table(TABLE, &spec(combine), &mut run.out).expect("made");
            for clock in 0..3 {
                run.push(0, 1, clock, 0);
                run.end(0, 1, clock);
            }
            // The other worker leaves in the middle of clock 1. Its push in that clock counts.
            run.push(1, 2, 0, 1);
            run.end(1, 2, 0);
            run.push(1, 2, 1, 1);
            run.told(Control::Checkpoint {
                number: 1,
                clock: Clock(3),
                last: true,
                location: String::new(),
                name: String::new(),
            });
            assert_eq!(run.rows(), [[0x01_0101, 0x0101]]);
        }
    }

    #[test]
    fn checkpoint_leaves_out_bookkeeping_tables() {
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
    fn restored_server_serves_a_run_of_other_workers() {
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
        next.restore(restored.clone());
        let added = Message::Control(Control::TableAdded { table: TABLE, problem: None });
        assert_eq!(next.out.drain().map(|frame| frame.message).collect::<Vec<_>>(), [added]);
        next.asked(1, 2);
        next.push(0, 7, 1, 1);
        next.end(0, 7, 1);
        assert_eq!(next.rows(), [[0x01, 0x0101]], "clock 0 of the run before, and clock 1 of this run's worker only");

        let mut other = Run::new(&[7]);
        let wide = Restored { spec: TableSpec { width: 2, ..restored.spec.clone() }, ..restored.clone() };
        other.restore(wide);
        let lacking = Restored { images: Vec::new(), ..restored };
        other.restore(lacking);
        let problems: Vec<String> = other.out.drain().map(|frame| format!("{:?}", frame.message)).collect();
        assert!(problems[0].contains("its rows have 1 numbers of type i64, and the table's 2"), "{problems:?}");
        assert!(problems[1].contains("the checkpoint lacks shard 0 of table 't'"), "{problems:?}");
    }
}

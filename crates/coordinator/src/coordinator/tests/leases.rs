use crate::leases::Leases;
use crate::{Coordinator, Membership, RunSize};
use std::collections::BTreeMap;
use types::{Clock, NodeId, Source, Span, Time, WorkerId};
use wire::{Control, Frame, Head, LeaseTerms, Message, NodeRole, Outbox, Reader};

const SERVER: NodeId = NodeId::Server(0);
const ONE: NodeId = NodeId::Worker(0);
const TWO: NodeId = NodeId::Worker(1);
const FAILURE_TIMEOUT: Span = Span::from_secs(2);

struct Bench {
    coordinator: Coordinator,
    sources: BTreeMap<NodeId, Source>,
    now: Time,
}

fn terms() -> LeaseTerms {
    LeaseTerms { ranges: 4, epochs: 1, shuffle: None, per_clock: 4, fingerprint: 7, input: "numbers".into() }
}

impl Bench {
    /// An elastic run of one server and two workers, and a data set of four leases.
    fn new() -> Self {
        let mut bench = Self::begun(None);
        for node in [ONE, TWO] {
            let opened = bench.say(node, Control::OpenLeases { name: "train".into(), terms: terms() });
            assert_eq!(opened, [(node, Control::LeasesOpened { name: "train".into(), set: Ok(0) })]);
        }
        bench
    }

    /// Such a run, resumed from a checkpoint, without the data set.
    fn resumed(resume: crate::Resume) -> Self {
        Self::begun(Some(resume))
    }

    fn begun(resume: Option<crate::Resume>) -> Self {
        let open = Membership::Elastic { replicas: 1, shards_per_server: 1 };
        let mut coordinator = Coordinator::new(RunSize { servers: 1, workers: 2 }, open, FAILURE_TIMEOUT);
        resume.into_iter().for_each(|resume| coordinator.resume(resume));
        let mut bench = Self { coordinator, sources: BTreeMap::new(), now: Time(0) };
        for (token, (node, role)) in
            [(SERVER, NodeRole::Server), (ONE, NodeRole::Worker), (TWO, NodeRole::Worker)].iter().enumerate()
        {
            let join = Control::Join {
                role: *role,
                address: String::new(),
                token: token as u64,
                place: None,
                job: String::new(),
            };
            for (_, control) in bench.say(*node, join) {
                if let Control::Welcome { node, source, .. } = control {
                    bench.sources.insert(node, source);
                }
            }
        }
        [SERVER, ONE, TWO].into_iter().for_each(|node| drop(bench.say(node, Control::Heartbeat { heard: 0 })));
        bench
    }

    /// A node sends `control` at clock 5. Returns what the coordinator sends, and to which nodes.
    fn say(&mut self, from: NodeId, control: Control) -> Vec<(NodeId, Control)> {
        let mut head = Head::plain(from, NodeId::Coordinator);
        head.source = self.sources.get(&from).copied().unwrap_or_default();
        head.clock = Clock(5);
        let mut out = Outbox::new();
        self.coordinator.handle(self.now, Frame { head, message: Message::Control(control) }, &mut out);
        said(&mut out)
    }

    fn ask(&mut self, from: NodeId, number: u64, wanted: u64) -> Vec<(NodeId, Control)> {
        self.say(from, Control::AskLeases { set: 0, number, wanted })
    }

    fn commit(&mut self, from: NodeId, lease: u64) -> Vec<(NodeId, Control)> {
        self.say(from, Control::CommitLease { set: 0, lease, clock: Clock(5), examples: 10, busy: Span(10) })
    }

    /// A node is silent for so long that the coordinator counts it as lost.
    fn lose(&mut self, silent: NodeId) -> Vec<(NodeId, Control)> {
        let others: Vec<NodeId> = [SERVER, ONE, TWO].into_iter().filter(|node| *node != silent).collect();
        let mut said = Vec::new();
        // The coordinator runs all the time, so it does not take the silence for its own sleep.
        for _ in 0..4 {
            self.now = self.now + Span(FAILURE_TIMEOUT.0 / 4);
            others.iter().for_each(|node| drop(self.say(*node, Control::Heartbeat { heard: 0 })));
            said.extend(self.tick(Span(1)));
        }
        said
    }

    fn tick(&mut self, after: Span) -> Vec<(NodeId, Control)> {
        self.now = self.now + after;
        let mut out = Outbox::new();
        self.coordinator.tick(self.now, &mut out);
        said(&mut out)
    }
}

fn said(out: &mut Outbox) -> Vec<(NodeId, Control)> {
    let control = |frame: Frame| match frame.message {
        Message::Control(control) => Some((frame.head.to, control)),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

fn leased(to: NodeId, number: u64, leases: &[u64]) -> (NodeId, Control) {
    (to, Control::Leased { set: 0, number, leases: leases.to_vec(), share: 4 })
}

#[test]
fn a_repeated_question_gets_the_same_answer() {
    let mut bench = Bench::new();
    assert_eq!(bench.ask(ONE, 1, 2), [leased(ONE, 1, &[0, 1])]);
    assert_eq!(bench.ask(ONE, 1, 2), [leased(ONE, 1, &[0, 1])]);
    assert_eq!(bench.ask(TWO, 1, 1), [leased(TWO, 1, &[2])]);
    assert_eq!(bench.ask(ONE, 2, 1), [leased(ONE, 2, &[0, 1, 3])], "with the leases that it knows of");
    assert_eq!(bench.ask(ONE, 1, 1), [], "an old question");
}

#[test]
fn a_waiting_worker_gets_the_leases_of_a_lost_worker() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 2);
    bench.ask(TWO, 1, 1);
    bench.ask(TWO, 2, 1);
    for lease in [2, 3] {
        let committed = Control::LeaseCommitted { set: 0, lease, problem: None };
        assert!(bench.commit(TWO, lease).contains(&(TWO, committed)));
    }
    let waits = bench.ask(TWO, 3, 2);
    let awaited = Control::LeasesAwaited { set: 0, number: 3, clock: Clock(5), on: Vec::new() };
    assert_eq!(waits, [(TWO, awaited)]);
    let said = bench.lose(ONE);
    assert!(said.contains(&leased(TWO, 3, &[0, 1])), "{said:?}");
    let late = bench.commit(ONE, 0);
    assert!(matches!(late[..], [(ONE, Control::Lost { .. })]), "{late:?}");
    bench.commit(TWO, 0);
    bench.commit(TWO, 1);
    let over = Control::LeasesOver { set: 0, number: 4, clock: Clock(6) };
    assert_eq!(bench.ask(TWO, 4, 2), [(TWO, over)], "after the clock of the last commit");
}

#[test]
fn a_worker_that_waits_long_is_told_who_holds_leases() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 4);
    bench.ask(TWO, 1, 4);
    bench.commit(TWO, 2);
    bench.commit(TWO, 3);
    bench.ask(TWO, 2, 4);
    [SERVER, ONE, TWO].into_iter().for_each(|node| drop(bench.say(node, Control::Heartbeat { heard: 0 })));
    bench.tick(Span::from_secs(1));
    for _ in 0..3 {
        [SERVER, ONE, TWO].into_iter().for_each(|node| drop(bench.say(node, Control::Heartbeat { heard: 0 })));
        let said = bench.tick(Span::from_secs(1));
        let named = |control: &Control| matches!(control, Control::LeasesAwaited { on, .. } if *on == [WorkerId(0)]);
        if said.iter().any(|(to, control)| *to == TWO && named(control)) {
            return;
        }
    }
    panic!("the waiting worker is told nothing");
}

#[test]
fn servers_forget_leases_step_by_step_when_all_have_a_plan_without_the_lost_worker() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 1);
    bench.ask(TWO, 1, 1);
    let forget =
        |through| (SERVER, Control::ForgetLeases { set: 0, ranges: 4, shuffle: None, through, clock: Clock(6) });
    let is_forget = |(_, control): &(NodeId, Control)| matches!(control, Control::ForgetLeases { .. });
    assert!(!bench.commit(TWO, 1).iter().any(is_forget), "lease 0 comes before it and is open");
    assert!(bench.commit(ONE, 0).contains(&forget(2)));
    bench.ask(TWO, 2, 1);
    assert!(!bench.commit(TWO, 2).iter().any(is_forget), "the server has not answered");
    assert!(bench.tick(crate::timeouts::ASK_AGAIN_AFTER).contains(&forget(2)), "and is asked again");
    assert_eq!(bench.say(SERVER, Control::LeasesForgotten { set: 0, through: 2 }), [forget(3)]);
    bench.say(SERVER, Control::LeasesForgotten { set: 0, through: 3 });
    // Worker one has lease 3 and is lost, and worker two learns from it. Until the server adopts a
    // plan without worker one, that worker may still push parts of the lease.
    bench.ask(ONE, 2, 1);
    let lost = bench.lose(ONE);
    assert!(lost.iter().any(|(to, control)| *to == SERVER && matches!(control, Control::Adopt { .. })), "{lost:?}");
    bench.ask(TWO, 3, 1);
    assert!(!bench.commit(TWO, 3).iter().any(is_forget));
    let plan = bench.coordinator.plan().number;
    bench.say(SERVER, Control::Adopted { plan, enacted: false, frontier: Clock(0) });
    assert!(bench.tick(Span(1)).contains(&forget(4)));
}

#[test]
fn a_successor_knows_which_leases_are_held_and_done() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 2);
    bench.commit(ONE, 0);
    let mut bytes = Vec::new();
    bench.coordinator.leases.put(&mut bytes);
    for length in 0..bytes.len() {
        assert!(Leases::get(&mut Reader(&bytes[..length]), Time(0)).is_err());
    }
    bench.coordinator.leases = Leases::get(&mut Reader(&bytes), Time(0)).expect("as written");
    assert_eq!(
        bench.ask(ONE, 1, 1),
        [leased(ONE, 1, &[1, 2])],
        "lease 1, which it holds and may not know of, and one more"
    );
}

impl Bench {
    /// Makes a table, and begins a checkpoint at clock 7.
    fn begin_checkpoint(&mut self) {
        let spec = types::TableSpec::dense("t", 4, 1);
        self.say(ONE, Control::MakeTable { spec });
        self.say(SERVER, Control::TableAdded { table: types::TableId(0), problem: None });
        self.say(SERVER, Control::Heartbeat { heard: 0 });
        assert!(self.coordinator.may_checkpoint());
        let mut out = Outbox::new();
        self.coordinator.checkpoint(self.now, "place".into(), "one".into(), &mut out);
        assert_eq!(self.coordinator.checkpoints.underway(), Some(Clock(7)));
    }

    /// The server writes its shard, which ends the checkpoint. Returns what was written.
    fn end_checkpoint(&mut self) -> crate::WrittenCheckpoint {
        for worker in [ONE, TWO] {
            self.say(worker, Control::ResidualsWritten { number: 1, entry: None });
        }
        let table = types::TableId(0);
        let shard = types::ShardId(0);
        self.say(SERVER, Control::Written { number: 1, table, shard, entry: String::new() });
        match self.coordinator.take_checkpoint_end() {
            Some(crate::CheckpointOutcome::Whole(gathered)) => gathered,
            other => panic!("{other:?} is no whole checkpoint"),
        }
    }

    fn commit_at(&mut self, from: NodeId, lease: u64, clock: u64) {
        self.say(from, Control::CommitLease { set: 0, lease, clock: Clock(clock), examples: 10, busy: Span(10) });
    }
}

#[test]
fn a_checkpoint_counts_leases_committed_before_its_clock_as_done() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 4);
    bench.begin_checkpoint();
    bench.commit_at(ONE, 0, 6);
    bench.say(SERVER, Control::LeasesForgotten { set: 0, through: 1 });
    bench.commit_at(ONE, 1, 9);
    bench.say(SERVER, Control::LeasesForgotten { set: 0, through: 2 });
    let gathered = bench.end_checkpoint();
    let done = gathered.leases[0].done();
    assert_eq!((0..4).filter(|lease| done.contains(*lease)).collect::<Vec<_>>(), [0], "1 was committed in clock 9");
}

#[test]
fn a_resumed_run_keeps_the_numbers_of_its_data_sets_and_may_read_more_epochs() {
    let mut bench = Bench::new();
    let other = LeaseTerms { fingerprint: 8, input: "letters".into(), ..terms() };
    bench.say(ONE, Control::OpenLeases { name: "test".into(), terms: other.clone() });
    bench.ask(ONE, 1, 2);
    bench.begin_checkpoint();
    bench.commit_at(ONE, 1, 6);
    let crate::WrittenCheckpoint { name, clock, shards, tables, leases, .. } = bench.end_checkpoint();
    let tables = tables.into_iter().map(|(spec, _)| spec).collect();
    let resume = crate::Resume { location: "place".into(), name, clock, shards, tables, leases };

    let mut next = Bench::resumed(resume);
    let opened = |next: &mut Bench, name: &str, terms: &LeaseTerms| {
        let terms = terms.clone();
        match next.say(ONE, Control::OpenLeases { name: name.into(), terms }).remove(0).1 {
            Control::LeasesOpened { set, .. } => set,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(opened(&mut next, "more", &terms()), Ok(2), "data sets of the checkpoint keep numbers 0 and 1");
    assert_eq!(opened(&mut next, "test", &other), Ok(1));
    let wrong = opened(&mut next, "train", &other).expect_err("other files");
    assert!(wrong.contains("a run that read numbers, and this worker reads letters"), "{wrong}");
    let fewer = opened(&mut next, "train", &LeaseTerms { ranges: 2, ..terms() }).expect_err("cut otherwise");
    assert!(fewer.contains("was cut into 4 ranges in order, and is now cut into 2"), "{fewer}");
    let memory = next.coordinator.memory();
    let open = Membership::Elastic { replicas: 1, shards_per_server: 1 };
    let recalled = Coordinator::recall(next.now, &memory, RunSize { servers: 1, workers: 2 }, open, FAILURE_TIMEOUT);
    next.coordinator = recalled.expect("its own memory");
    assert_eq!(opened(&mut next, "train", &LeaseTerms { epochs: 2, ..terms() }), Ok(0));
    let granted = [leased(ONE, 1, &[0, 2, 3, 4])];
    assert_eq!(next.ask(ONE, 1, 4), granted, "lease 1 is done, and a second epoch follows the first");
}

#[test]
fn a_data_set_that_is_ended_early_ends_when_no_worker_holds_leases() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 1);
    bench.ask(TWO, 1, 1);
    let set = 0;
    let clock = Clock(5);
    let end = Control::EndLeases { set };
    let said = bench.say(ONE, end.clone());
    assert!([ONE, TWO].iter().all(|worker| said.contains(&(*worker, end.clone()))), "{said:?}");
    assert!(
        !bench.say(ONE, end.clone()).contains(&(TWO, end.clone())),
        "worker two is told once, and again when it goes on learning"
    );
    assert!(bench.say(TWO, Control::Learning { set }).contains(&(TWO, end.clone())));
    // The lease that worker one gave back is granted to no worker. Worker one hears the end when
    // worker two ends the data set too.
    let ended = |to, number| (to, Control::LeasesEnded { set, number, clock });
    assert!(!bench.ask(ONE, 2, 1).contains(&ended(ONE, 2)));
    assert!(bench.say(TWO, end).contains(&ended(ONE, 2)));
    assert_eq!(bench.ask(TWO, 2, 1), [ended(TWO, 2)]);
    assert_eq!(bench.ask(TWO, 2, 1), [ended(TWO, 2)], "a repeated question gets the same answer");
}

#[test]
fn a_data_set_that_is_ended_after_its_last_commit_is_over() {
    let mut bench = Bench::new();
    bench.ask(ONE, 1, 4);
    bench.ask(ONE, 2, 4);
    (0..4).for_each(|lease| drop(bench.commit(ONE, lease)));
    bench.say(ONE, Control::EndLeases { set: 0 });
    let over = Control::LeasesOver { set: 0, number: 3, clock: Clock(6) };
    assert_eq!(bench.ask(ONE, 3, 1), [(ONE, over)]);
}

#[test]
fn a_resumed_run_begins_its_own_bookkeeping_sets_anew_under_their_numbers() {
    let mut bench = Bench::new();
    bench.say(ONE, Control::OpenLeases { name: ".once".into(), terms: terms() });
    let ask = Control::AskLeases { set: 1, number: 1, wanted: 4 };
    bench.say(ONE, ask);
    bench.begin_checkpoint();
    for lease in 0..4 {
        bench.say(ONE, Control::CommitLease { set: 1, lease, clock: Clock(6), examples: 10, busy: Span(10) });
    }
    let crate::WrittenCheckpoint { name, clock, shards, tables, leases, .. } = bench.end_checkpoint();
    assert!(!leases[1].done().contains(0));
    let tables = tables.into_iter().map(|(spec, _)| spec).collect();
    let mut next = Bench::resumed(crate::Resume { location: "place".into(), name, clock, shards, tables, leases });
    let other = LeaseTerms { fingerprint: 8, ranges: 1, ..terms() };
    let opened = next.say(ONE, Control::OpenLeases { name: ".once".into(), terms: other }).remove(0).1;
    assert!(matches!(opened, Control::LeasesOpened { set: Ok(1), .. }), "{opened:?}");
}

use super::*;
use crate::members::tests::begun;

const SERVER: NodeId = NodeId::Server(0);
const WORKER: NodeId = NodeId::Worker(0);
const SHARD: (TableId, ShardId) = (TableId(0), ShardId(0));

/// A run of one server and one worker, with one table that every server has made.
struct Run {
    members: Members,
    tables: Tables,
    leases: Leases,
}

impl Run {
    fn new() -> Self {
        let members = begun(1, 1);
        let mut tables = Tables::default();
        let mut out = Outbox::new();
        let spec = TableSpec::dense("t", 4, 1);
        tables.ask(Time(0), (WORKER, spec), true, &members, &Checkpoints::default(), &mut out);
        tables.added(Time(0), SERVER, TableId(0), None, &mut out);
        Self { members, tables, leases: Leases::default() }
    }

    fn view(&self) -> RunView<'_> {
        RunView { members: &self.members, tables: &self.tables, leases: &self.leases, shards: 1, is_lost: false }
    }

    /// Begins a checkpoint and returns its clock.
    fn begin(&self, checkpoints: &mut Checkpoints) -> u64 {
        assert!(checkpoints.may_begin(&self.view()));
        checkpoints.begin(Time(0), ("place".into(), "one".into()), &self.view(), &mut Outbox::new());
        assert!(!checkpoints.may_begin(&self.view()), "one is under way");
        checkpoints.underway().expect("it was begun").0
    }
}

#[test]
fn a_missed_checkpoint_sets_the_next_further_ahead() {
    let run = Run::new();
    let mut checkpoints = Checkpoints::default();
    // (the frontier that the shard has reached, the clock of the checkpoint)
    for (number, (frontier, clock)) in (1..).zip([(5, 2), (5, 9), (30, 13), (30, 46)]) {
        assert_eq!(run.begin(&mut checkpoints), clock);
        checkpoints.shard_missed(number, SHARD, Clock(frontier));
        assert!(matches!(checkpoints.take_end(), Some(CheckpointOutcome::Missed { .. })));
        assert_eq!(checkpoints.underway(), None);
    }
}

#[test]
fn a_checkpoint_is_whole_when_every_shard_and_every_worker_has_answered() {
    type Answer = fn(&mut Checkpoints);
    // (an answer of a node, whether it makes the checkpoint whole)
    let cases: [(Answer, bool); 5] = [
        (|checkpoints| checkpoints.written(9, SHARD, "of another".into()), false),
        (|checkpoints| checkpoints.residuals_written(1, WORKER, None), false),
        (|checkpoints| checkpoints.written(1, (TableId(0), ShardId(3)), "of no shard".into()), false),
        (|checkpoints| checkpoints.worker_passed(9, WORKER, Clock(9)), false),
        (|checkpoints| checkpoints.written(1, SHARD, "entry".into()), true),
    ];
    let run = Run::new();
    let mut checkpoints = Checkpoints::default();
    run.begin(&mut checkpoints);
    for (step, (answer, is_whole)) in cases.into_iter().enumerate() {
        answer(&mut checkpoints);
        assert!(!checkpoints.gather(&run.view()), "it is not the last of the run");
        match checkpoints.take_end() {
            Some(CheckpointOutcome::Whole(written)) if is_whole => assert_eq!(written.tables[0].1, ["entry"]),
            None if !is_whole => {}
            other => panic!("step {step}: {other:?}"),
        }
    }
}

#[test]
fn a_shard_that_an_earlier_head_has_written_is_not_missed() {
    let run = Run::new();
    let mut checkpoints = Checkpoints::default();
    run.begin(&mut checkpoints);
    checkpoints.written(1, SHARD, "entry".into());
    checkpoints.shard_missed(1, SHARD, Clock(9));
    assert!(checkpoints.underway().is_some());
}

#[test]
fn a_run_waits_for_its_last_checkpoint_until_it_is_written_or_cannot_be() {
    type End = fn(&mut Checkpoints, &RunView<'_>);
    let ends: [End; 4] = [
        |checkpoints, _| checkpoints.want_last(false),
        |checkpoints, run| checkpoints.lose_last(SERVER, run),
        |checkpoints, run| {
            checkpoints.begin(Time(0), Default::default(), run, &mut Outbox::new());
            checkpoints.unwritten(1, SERVER, "the disk is full");
        },
        |checkpoints, run| {
            checkpoints.begin(Time(0), Default::default(), run, &mut Outbox::new());
            checkpoints.written(1, SHARD, String::new());
            assert!(checkpoints.gather(run), "it is the last");
        },
    ];
    for (case, end) in ends.into_iter().enumerate() {
        let mut run = Run::new();
        let mut checkpoints = Checkpoints::default();
        checkpoints.want_last(true);
        assert!(!checkpoints.awaits_last(&run.view()), "a worker is there");
        run.members.depart(WORKER);
        assert!(checkpoints.awaits_last(&run.view()));
        end(&mut checkpoints, &run.view());
        assert!(!checkpoints.awaits_last(&run.view()), "case {case}");
        checkpoints.want_last(true);
        assert!(!checkpoints.awaits_last(&run.view()), "case {case}: it is over for good");
    }
}

#[test]
fn a_table_of_the_checkpoint_is_restored_if_it_has_the_same_spec() {
    let saved = TableSpec::sparse("t", 1);
    let resume = Resume {
        location: "place".into(),
        name: "one".into(),
        clock: Clock(4),
        shards: 2,
        tables: vec![saved.clone()],
        leases: Vec::new(),
    };
    let mut checkpoints = Checkpoints::default();
    assert_eq!((checkpoints.first_clock(), checkpoints.resumed_shards()), (Clock(0), None));
    checkpoints.resume(resume);
    assert_eq!((checkpoints.first_clock(), checkpoints.resumed_shards()), (Clock(4), Some(2)));
    let adding = |spec: &TableSpec| checkpoints.adding(TableId(0), spec);
    assert!(matches!(adding(&saved), Ok(Control::Restore { clock: Clock(4), .. })));
    assert!(matches!(adding(&TableSpec::sparse("u", 1)), Ok(Control::AddTable { .. })));
    assert!(adding(&TableSpec::sparse("t", 2)).is_err_and(|problem| problem.contains("has another spec")));
}

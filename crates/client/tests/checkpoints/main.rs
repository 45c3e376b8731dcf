//! Checkpoints of a running run, and runs that resume from one with other numbers of servers and
//! workers.

mod leases;
mod residuals;
mod support;

use slackwater::cluster::{CheckpointSettings, Membership, ResumeFrom};
use slackwater::policy::{Combine, NumberType, Reduce};
use slackwater::security::Access;
use slackwater::{Connect, Consistency, Error, Keys, RunSize, Serve, Session, Table, TableSpec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Folder, LIMIT, clock_of, run, settings};

const ROWS: u64 = 64;
const SLACK: u64 = 3;

/// A table that combines by clock, one that applies each push, and one with fewer rows than there
/// are shards.
struct Tables {
    exact: Table<i64>,
    each: Table<i64>,
    small: Table<i64>,
}

impl Tables {
    fn of(session: &Session) -> Result<Self, Error> {
        let slack = Consistency::slack(SLACK);
        let exact = TableSpec::dense("exact", ROWS, 1).combine(Combine::Clock(Reduce::Sum));
        let each = TableSpec::sparse("each", 1).ordered();
        let small = TableSpec::dense("small", 1, 1).combine(Combine::Clock(Reduce::Sum));
        let [exact, each, small] = [exact, each, small].map(|spec| spec.number(NumberType::I64).consistency(slack));
        Ok(Self { exact: session.table(exact)?, each: session.table(each)?, small: session.table(small)? })
    }

    /// One clock of a worker: adds 1 to a row of each table.
    fn count(&self, session: &Session) -> Result<(), Error> {
        let row = session.now().0 % ROWS;
        drop(self.exact.push(&Keys::run(row..row + 1), vec![1])?);
        drop(self.each.push(&Keys::run(row..row + 1), vec![1])?);
        drop(self.small.push(&Keys::run(0..1), vec![1])?);
        session.clock()?;
        self.exact.pull(&Keys::run(0..1))?.wait()?;
        Ok(())
    }

    fn read(&self) -> Result<[Vec<i64>; 3], Error> {
        let exact = self.exact.pull(&Keys::run(0..ROWS))?.wait()?;
        let each = self.each.pull(&Keys::run(0..ROWS))?.wait()?;
        let small = self.small.pull(&Keys::run(0..1))?.wait()?;
        Ok([exact.values().to_vec(), each.values().to_vec(), small.values().to_vec()])
    }
}

/// Counts until there are enough checkpoints. All workers stop at the same clock, so that a
/// checkpoint made while they leave has all counts of every worker.
fn count_until(session: &Session, folder: &Folder, enough: usize, last: &AtomicU64) -> Result<(), Error> {
    let tables = Tables::of(session)?;
    let begin = Instant::now();
    loop {
        let clock = session.now().0;
        if folder.published().len() >= enough {
            // No worker is ahead of this clock.
            last.fetch_min(clock + SLACK + 2, Ordering::Relaxed);
        }
        if clock >= last.load(Ordering::Relaxed) {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "no checkpoint comes");
        tables.count(session)?;
        std::thread::sleep(Duration::from_millis(1 + u64::from(session.rank())));
    }
    Ok(())
}

/// How often `workers` workers count each row in the clocks before `end`.
fn counted(workers: i64, end: u64) -> Vec<i64> {
    (0..ROWS).map(|row| workers * (0..end).filter(|clock| clock % ROWS == row).count() as i64).collect()
}

/// A run with slack resumes from its last checkpoint with other numbers of servers and workers. The
/// tables hold every count of the clocks before the checkpoint once. Tables that combine by clock
/// hold no count of later clocks.
fn goes_on(membership: Membership) {
    let folder = Folder::new();
    let with_checkpoints =
        |serve: &mut Serve| (serve.checkpoints, serve.membership) = (Some(settings(&folder)), membership);
    let last = AtomicU64::new(u64::MAX);
    run(RunSize { servers: 2, workers: 3 }, with_checkpoints, |session| count_until(session, &folder, 3, &last))
        .expect("a run");
    let published = folder.published();
    assert_eq!(published.len(), 3, "the last three are kept");
    let clock = clock_of(&published[2]);
    assert!(clock_of(&published[1]) < clock);

    let resumed = |serve: &mut Serve| (serve.resume, serve.membership) = (Some(folder.resume()), membership);
    let found = run(RunSize { servers: 3, workers: 2 }, resumed, |session| {
        let tables = Tables::of(session)?;
        let began = session.now().0;
        let before = tables.read()?;
        session.barrier()?;
        for _ in 0..=SLACK {
            tables.count(session)?;
        }
        // A read may lack the last clocks within the slack, even after a barrier: end as many empty
        // clocks.
        (0..SLACK).try_for_each(|_| session.clock())?;
        session.barrier()?;
        Ok((began, before, tables.read()?))
    });
    for (began, [exact, each, small], [exact_after, _, small_after]) in found.expect("a resumed run") {
        assert_eq!(began, clock, "every worker begins at the checkpoint's clock");
        assert_eq!(exact, counted(3, clock));
        assert_eq!(small, [3 * clock as i64]);
        let most = counted(3, clock + SLACK + 1);
        let is_between = |row: usize| (exact[row]..=most[row]).contains(&each[row]);
        assert!((0..ROWS as usize).all(is_between), "{each:?} is not between {exact:?} and {most:?}");
        let more = |row: u64| 2 * i64::from((clock..=clock + SLACK).any(|clock| clock % ROWS == row));
        let expected: Vec<i64> = (0..ROWS).map(|row| exact[row as usize] + more(row)).collect();
        assert_eq!(exact_after, expected, "counting goes on from there");
        assert_eq!(small_after, [small[0] + 2 * (SLACK as i64 + 1)]);
    }
}

#[test]
fn run_resumes_from_a_checkpoint_with_other_numbers_of_servers_and_workers() {
    goes_on(Membership::Static);
}

#[test]
fn run_with_replicas_resumes_from_a_checkpoint() {
    goes_on(Membership::Elastic { replicas: 2, shards_per_server: 2 });
}

#[test]
fn resume_refuses_another_job_another_spec_and_damaged_files() {
    let folder = Folder::new();
    let with_checkpoints = |serve: &mut Serve| serve.checkpoints = Some(settings(&folder));
    let last = AtomicU64::new(u64::MAX);
    run(RunSize { servers: 1, workers: 1 }, with_checkpoints, |session| count_until(session, &folder, 2, &last))
        .expect("a run");

    let coordinator_address = slackwater::cluster::free_address().expect("a free port");
    let refused = |resume: ResumeFrom| {
        let size = RunSize { servers: 1, workers: 1 };
        let connect = Connect { access: Access::Insecure, ..Connect::to(&coordinator_address.to_string()) };
        let serve = Serve { coordinate: Some(size), resume: Some(resume), ..Serve::new(connect) };
        serve.run().expect_err("refused").to_string()
    };
    let other = refused(ResumeFrom { job: "clicks".into(), ..folder.resume() });
    assert!(other.contains("is of job 'counts', not of 'clicks'"), "{other}");

    let resumed = |serve: &mut Serve| serve.resume = Some(folder.resume());
    let refusal = run(RunSize { servers: 1, workers: 1 }, resumed, |session| {
        let spec = TableSpec::dense("exact", ROWS, 2).number(NumberType::I64);
        Ok(session.table::<i64>(spec).map(drop).expect_err("another width").to_string())
    });
    let refusal = refusal.expect("the run itself goes on").remove(0);
    assert!(refusal.contains("has another spec: width is 1 in one and 2 in the other"), "{refusal}");

    let published = folder.published();
    let [before, newest] = &published[published.len() - 2..] else { panic!("two at least") };
    let files = std::fs::read_dir(newest).expect("readable").map(|entry| entry.expect("one").path());
    let file = files.filter(|path| path.to_string_lossy().contains("table-exact")).min().expect("a shard");
    let whole = std::fs::read(&file).expect("readable");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    std::fs::write(&file, changed).expect("writable");
    let offered = before.file_name().expect("a name").to_string_lossy().into_owned();
    let damaged = refused(folder.resume());
    assert!(damaged.contains("shard 0 of table `exact`") && damaged.contains(&offered), "{damaged}");
    std::fs::remove_file(&file).expect("removed");
    let missing = refused(folder.resume());
    assert!(missing.contains("shard 0 of table `exact`") && missing.contains(&offered), "{missing}");
    let named = ResumeFrom { location: before.to_str().expect("text").into(), ..folder.resume() };
    let resumed = |serve: &mut Serve| serve.resume = Some(named);
    let began =
        run(RunSize { servers: 1, workers: 1 }, resumed, |session| Ok(session.now().0)).expect("the one before");
    assert_eq!(began, [clock_of(before)]);
}

#[test]
fn run_goes_on_when_checkpoints_cannot_be_written() {
    let folder = Folder::new();
    let with_checkpoints = |serve: &mut Serve| serve.checkpoints = Some(settings(&folder));
    let counted = run(RunSize { servers: 2, workers: 1 }, with_checkpoints, |session| {
        count_until(session, &folder, 1, &AtomicU64::new(u64::MAX))?;
        // Put a file in the folder's place, so that checkpoints cannot be written.
        let away = folder.0.with_extension("away");
        std::fs::rename(&folder.0, &away).and_then(|()| std::fs::write(&folder.0, "")).expect("moved");
        let tables = Tables::of(session)?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(400) {
            tables.count(session)?;
        }
        std::fs::remove_file(&folder.0).and_then(|()| std::fs::rename(&away, &folder.0)).expect("moved back");
        count_until(session, &folder, 2, &AtomicU64::new(u64::MAX))?;
        Ok(session.now().0)
    });
    assert_eq!(counted.expect("a run").len(), 1);

    let file = folder.0.join("file");
    let coordinator_address = slackwater::cluster::free_address();
    std::fs::write(&file, "").expect("written");
    let checkpoints = CheckpointSettings::new(file.to_str().expect("text"), "counts");
    let coordinator_address = coordinator_address.expect("an address").to_string();
    let connect = Connect { access: Access::Insecure, ..Connect::to(&coordinator_address) };
    let size = RunSize { servers: 1, workers: 1 };
    let serve = Serve { coordinate: Some(size), checkpoints: Some(checkpoints), ..Serve::new(connect) };
    let refused = serve.run().expect_err("found before the run").to_string();
    assert!(refused.contains("is a file, not a folder"), "{refused}");
}

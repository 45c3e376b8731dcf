//! The training loop over leased data: workers lease ranges of the input, learn from them and
//! commit them, instead of having fixed shares. Workers may come and go, none has a special role,
//! and there are no barriers.
//!
//! - **Lost workers.** The leases that a lost worker had not committed are granted to others. What
//!   shards applied of them is not applied again, so every example counts once.
//! - **Stopping early.** A worker that is told to stop ends the loop for all workers.
//! - **Leaving.** A worker that is told to leave goes, and others are granted its leases. If no
//!   other worker stays, it ends the loop instead.

use crate::rounds::{Go, Learnt, Lesson, RoundsEnd, TrainError, weight_of};
use crate::tally::{Counted, Tally};
use data::{Batches, Cuts, DataError, DataReader, Format, Loan, Minibatch, ReadProgress};
use slackwater::data_leases::{DataLease, DataLeases, LeasedInput, NextLease};
use slackwater::policy::NumberType;
use slackwater::{Consistency, Session, TableSpec};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Large input is cut into about so many ranges: enough that no worker waits long for the last of
/// them.
const RANGES: u64 = 256;
/// A range has at least about so many minibatches. With fewer, a large part of the minibatches
/// would be the short last ones of ranges.
const FEWEST_MINIBATCHES: u64 = 4;
/// About how many bytes a row takes in a file.
const ROW_BYTES: u64 = 128;
/// By default, how many minibatches a worker of average speed learns from in a clock: enough that
/// slower workers can have fewer, and faster ones more.
pub const PER_CLOCK: u32 = 4;
/// While a worker waits for a lease, it checks this often whether the training has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Files to lease. Workers that open them in the same way share them: each learns from other
/// ranges.
#[derive(Clone, Debug)]
pub struct Leased {
    reader: DataReader,
    cuts: Cuts,
    /// A hash of the training's settings: the same for all workers that were started with the same.
    settings_hash: u64,
    per_clock: u32,
}

impl Leased {
    /// Cuts the files of `reader` into ranges, which depend only on the files and the size of
    /// minibatches. `settings_hash` is a hash of the training's settings. A worker with another
    /// hash than the other workers is refused.
    pub fn of(reader: &DataReader, settings_hash: u64) -> Result<Self, DataError> {
        let settings = reader.settings();
        let row_bytes = match (&settings.format, reader.files().first()) {
            (Format::Idx, Some(images)) => data::image_shape(images)?.pixels,
            _ => ROW_BYTES,
        };
        let fewest = row_bytes.saturating_mul(FEWEST_MINIBATCHES).saturating_mul(settings.minibatch_rows as u64);
        let cuts = Cuts::of(reader, fewest.max(reader.bytes() / RANGES).max(1))?;
        Ok(Self { reader: reader.clone(), cuts, settings_hash, per_clock: PER_CLOCK })
    }

    /// Sets how many minibatches a worker of average speed has in a clock. Others have more or
    /// fewer, so that all end their clocks together. With 1, all workers have the same number, and
    /// a permanently slow worker makes all others wait at the bound.
    #[must_use]
    pub fn per_clock(self, minibatches: u32) -> Self {
        Self { per_clock: minibatches.max(1), ..self }
    }

    /// The same files, read once and in order.
    pub(crate) fn once(&self) -> Result<Self, DataError> {
        Self::of(&self.reader.once(), self.settings_hash)
    }

    /// How the files are read.
    #[must_use]
    pub fn settings(&self) -> &data::ReaderSettings {
        self.reader.settings()
    }

    /// How many ranges there are. At most so many workers learn at a time.
    #[must_use]
    pub fn ranges(&self) -> u64 {
        self.cuts.ranges()
    }

    /// How many leases there are: one for each range in each epoch.
    pub(crate) fn leases(&self) -> u64 {
        self.cuts.ranges().saturating_mul(self.settings().epochs.into())
    }

    /// Opens the leases under this name, in the run of the session.
    pub(crate) fn open(&self, session: &Session, name: &str) -> Result<DataLeases, slackwater::Error> {
        let settings = self.settings();
        let input = LeasedInput::new(self.cuts.ranges()).epochs(settings.epochs).per_clock(self.per_clock);
        let input = if settings.shuffle.is_some() { input.shuffled(settings.seed) } else { input };
        let fingerprint = self.cuts.fingerprint() ^ u128::from(self.settings_hash) << 64;
        session.leases(name, &input.named(&self.to_string(), fingerprint))
    }

    /// The reader of a lease's range.
    pub(crate) fn range(&self, lease: &DataLease) -> Result<DataReader, DataError> {
        self.cuts.open(lease.number())
    }
}

/// The files, ranges and settings as text, to help find out why two workers do not match.
impl fmt::Display for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with settings {:016x}", self.cuts, self.settings_hash)
    }
}

/// Runs one worker's training loop over the ranges that it is granted, until every lease of every
/// epoch is committed by some worker. `watch` gets a report of each minibatch, and may end the loop
/// early, for all workers. After the loop all workers are at the same clock.
pub(crate) fn make_leased_rounds<P: Default + Send + 'static>(
    session: &Session,
    leased: &Leased,
    prepare: impl FnMut(&Minibatch, &mut P) + Send + 'static,
    mut learn: impl FnMut(&Loan<P>, Option<&DataLease>) -> Result<Lesson, TrainError>,
    mut watch: impl FnMut(Learnt) -> Go,
) -> Result<RoundsEnd, TrainError> {
    let number = session.unique_number();
    let tally = Tally::open(session, number, leased.leases())?;
    let mut leases = leased.open(session, &format!("train {number}"))?;
    let mut reading =
        Reading { leased, prepare: Arc::new(Mutex::new(prepare)), ahead: None, done: ReadProgress::default() };
    // Minibatches in the current clock.
    let mut in_clock = 0;
    let mut told_to_stop = false;
    while !told_to_stop && !leases.is_ended() {
        let Some((lease, mut batches)) = reading.next(session, &mut leases)? else { break };
        let place = lease.place() as f64 / leased.leases() as f64;
        let mut lease = Some(lease);
        let mut counted = Counted::default();
        let mut next = batches.next().transpose()?;
        while let Some(batch) = next.take() {
            let Lesson { loss, staleness, parked } = learn(&batch, lease.as_ref())?;
            let epoch = batch.epoch();
            let examples = batch.rows() as u64;
            let weight = weight_of(&batch);
            drop(batch);
            counted = counted.and(Counted::minibatch(examples, weight, loss));
            next = batches.next().transpose()?;
            let progress = reading.progress(&batches);
            let done = lease.take_if(|_| next.is_none());
            done.map(|lease| finish(&tally, &mut leases, lease, counted, &batches)).transpose()?;
            in_clock += 1;
            if in_clock >= leases.share() {
                session.clock()?;
                in_clock = 0;
            }
            let share = Some(place);
            let learnt = Learnt { epoch, examples, weight, loss, staleness, parked, progress, share };
            let go = watch(learnt);
            told_to_stop = match if session.is_draining() { Go::Leave } else { go } {
                Go::On => false,
                Go::Leave if others_stay(session)? => return Err(TrainError::Left),
                Go::Stop | Go::Leave => true,
            };
            if told_to_stop || leases.is_ended() {
                break;
            }
            reading.look_ahead(&mut leases)?;
        }
        match lease {
            // The training has ended, so no worker learns the rest of this lease. The learnt part
            // counts.
            Some(lease) if counted != Counted::default() => tally.add_part(&lease, counted)?,
            // A range without rows.
            Some(lease) if !told_to_stop => finish(&tally, &mut leases, lease, counted, &batches)?,
            _ => {}
        }
        reading.done = reading.progress(&batches);
    }
    if told_to_stop || leases.is_ended() {
        if in_clock > 0 {
            session.clock()?;
        }
        leases.end()?;
    }
    Ok(RoundsEnd { stopped: leases.is_ended(), progress: reading.done, tally: Some(tally) })
}

/// Whether a worker may leave: at least one has to stay, to give the result. All workers may be
/// told to leave at once. So a worker first records that it wants to leave, and then reads which
/// live workers have not. The last one to record it sees that no other worker stays.
fn others_stay(session: &Session) -> Result<bool, slackwater::Error> {
    let spec = TableSpec::sparse(".leaving", 1).number(NumberType::I64).consistency(Consistency::Unbounded);
    let leaving = session.table::<i64>(spec)?;
    leaving.push(&leaving.keys(&[session.rank().into()]), vec![1])?.wait()?;
    let live: Vec<u64> = session.live_ranks().into_iter().map(u64::from).collect();
    let rows = leaving.pull(&leaving.keys(&live))?.wait()?;
    Ok(rows.values().contains(&0))
}

/// Counts a lease that was learnt completely, and commits it.
fn finish<P: Default + Send + 'static>(
    tally: &Tally,
    leases: &mut DataLeases,
    lease: DataLease,
    counted: Counted,
    batches: &Batches<P>,
) -> Result<(), slackwater::Error> {
    let bad_rows = batches.progress().bad_rows as f64;
    tally.add(&lease, Counted { bad_rows, ..counted })?;
    leases.commit(lease)
}

/// Reads the granted ranges: while the worker learns from one, the next one is leased and read.
struct Reading<'a, P, F> {
    leased: &'a Leased,
    /// Shared by the readers of all ranges, so that its memory is used again.
    prepare: Arc<Mutex<F>>,
    /// The next lease, if it was granted already, and its reader.
    ahead: Option<(DataLease, Batches<P>)>,
    /// The progress of all finished readers together.
    done: ReadProgress,
}

impl<P: Default + Send + 'static, F: FnMut(&Minibatch, &mut P) + Send + 'static> Reading<'_, P, F> {
    /// Waits for the next lease, and returns it with its minibatches; none when there are no more.
    fn next(
        &mut self,
        session: &Session,
        leases: &mut DataLeases,
    ) -> Result<Option<(DataLease, Batches<P>)>, TrainError> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        loop {
            match leases.next_within(LOOK)? {
                NextLease::Lease(lease) => return self.open(lease).map(Some),
                NextLease::NoneYet if session.is_draining() && others_stay(session)? => return Err(TrainError::Left),
                NextLease::NoneYet if !leases.is_ended() => {}
                NextLease::NoneYet | NextLease::Over => return Ok(None),
            }
        }
    }

    /// Leases the next range and begins to read it, if a lease is free at once.
    fn look_ahead(&mut self, leases: &mut DataLeases) -> Result<(), TrainError> {
        if self.ahead.is_none()
            && let NextLease::Lease(lease) = leases.next_within(Duration::ZERO)?
        {
            self.ahead = Some(self.open(lease)?);
        }
        Ok(())
    }

    fn open(&self, lease: DataLease) -> Result<(DataLease, Batches<P>), TrainError> {
        let shared = self.prepare.clone();
        let prepare = move |batch: &Minibatch, prepared: &mut P| {
            let mut prepare = shared.lock().unwrap_or_else(PoisonError::into_inner);
            prepare(batch, prepared);
        };
        let batches = self.leased.range(&lease)?.prepared(prepare)?;
        Ok((lease, batches))
    }

    /// How far this worker has read, including the current range.
    fn progress(&self, batches: &Batches<P>) -> ReadProgress {
        let done = self.done;
        let now = batches.progress();
        ReadProgress {
            bytes: done.bytes + now.bytes,
            bytes_total: self.leased.reader.bytes().saturating_mul(self.leased.settings().epochs.into()),
            rows_read: done.rows_read + now.rows_read,
            rows: done.rows + now.rows,
            bad_rows: done.bad_rows + now.bad_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use data::{Labels, ReaderSettings};
    use slackwater::RunSize;

    #[test]
    fn a_lease_counts_once_if_its_worker_is_lost_before_the_commit() {
        let path = std::env::temp_dir().join(format!("slackwater-counted-{}.libsvm", std::process::id()));
        std::fs::write(&path, "1 7:1\n".repeat(300)).expect("a file can be written");
        let settings =
            ReaderSettings { minibatch_rows: 1, epochs: 2, ..ReaderSettings::new(Format::LibSvm, Labels::Real) };
        let reader = DataReader::open(&[path.to_str().expect("a path in UTF-8")], settings).expect("it is there");
        let leased = Leased::of(&reader, 0).expect("it can be cut");
        let mut sessions = Session::embedded(RunSize { servers: 2, workers: 2 }).expect("a cluster");
        let other = sessions.remove(1);
        let lost = sessions.remove(0);
        // This worker does everything for a lease except the commit.
        let number = lost.unique_number();
        let tally = Tally::open(&lost, number, leased.leases()).expect("tables");
        let mut leases = leased.open(&lost, &format!("train {number}")).expect("leases");
        let lease = leases.next_lease().expect("a run").expect("the first");
        let batches = leased.range(&lease).and_then(|range| range.batches()).expect("it can be read");
        let counted = batches.map(|batch| Counted::minibatch(batch.expect("a minibatch").rows() as u64, 1.0, 0.0));
        let counted = counted.fold(Counted::default(), Counted::and);
        assert!(counted.examples > 0.0 && counted.examples < 300.0, "{counted:?} is one of several ranges");
        tally.add(&lease, counted).expect("counted");
        drop((tally, leases, lease));
        lost.close().expect("what it has counted has arrived");

        let learn = |_: &Loan<()>, _: Option<&DataLease>| Ok(Lesson::default());
        let ended = make_leased_rounds(&other, &leased, |_, _: &mut ()| {}, learn, |_| Go::On).expect("it goes on");
        let tally = ended.tally.expect("leased data is counted");
        let points = tally.read().expect("read").into_iter().fold(Counted::default(), Counted::and);
        assert_eq!((points.examples, points.minibatches), (600.0, 600.0));
        assert_eq!(tally.read_all().expect("read").examples, 600.0);
        other.close().expect("leaves");
        std::fs::remove_file(&path).expect("it was there");
    }
}

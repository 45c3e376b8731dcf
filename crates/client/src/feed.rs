//! The change feed of a table: a program follows the rows that changed or were deleted, as they are
//! when it reads the feed.
//!
//! A feed begins with the changes from now on, with all rows, or with the changes since a clock. It
//! starts over with all rows of a shard if the shard no longer remembers what the reader lacks.

use crate::observer::ObservedTable;
use crate::table::{Table, TargetNumber};
use crate::ticket::FromOutcome;
use crate::{Connect, Error, Session, Tickets};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};
use types::{Clock, Placement, Plan, Position, PositionRange, TableSpec, WorkerId};
use wire::{FeedCursor, FeedPage, FeedReader, FeedStep};
use worker::{Op, TicketOutcome};

/// How often the feed polls the shards while nothing changes.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How soon the feed asks a shard again that could not answer yet: it is between two states that
/// readers may see.
const ASK_SOON: Duration = Duration::from_millis(1);

/// Where a feed begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// With the changes from now on.
    #[default]
    Now,
    /// With all rows; then the changes.
    Rows,
    /// With the changes since the run reached this clock. Servers remember a bounded number of
    /// changes, while a reader follows the table and for a minute after that. If a server no longer
    /// remembers them, the feed starts over ([`Changes::starts_over`]). The clock must be of this
    /// run.
    Clock(Clock),
}

/// Options of a feed: see [`Session::follow_opts`](crate::Session::follow_opts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowOptions {
    /// Where the feed begins: with the changes from now on unless set.
    pub from: FollowFrom,
}

/// One page of a feed: rows of one shard that changed or were deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes<T> {
    /// The rows reflect every update of clocks below this one.
    pub clock: Clock,
    /// The shard of the table that the rows belong to, from 0.
    pub shard: usize,
    /// Whether the feed starts over with this shard: forget all its rows (the keys that
    /// [`covers`](Self::covers) accepts); the rows that exist follow. A feed starts over if its
    /// server no longer remembers the changes since the given clock, if its reader fell behind, or
    /// if another server took over the shard.
    pub starts_over: bool,
    /// The ids of rows that changed.
    pub ids: Vec<u64>,
    /// The values of those rows now, row after row.
    pub values: Vec<T>,
    /// The ids of rows that were deleted.
    pub deleted: Vec<u64>,
    range: PositionRange,
    placement: Placement,
}

impl<T: Pod> Changes<T> {
    /// The changes of a page; `None` if it is malformed.
    fn of(page: &FeedPage, spec: &TableSpec, shard: usize, range: PositionRange) -> Option<Self> {
        let placement = spec.shape.placement();
        let keys = |positions: &[u64]| positions.iter().map(|at| placement.key(Position(*at)).0).collect();
        let positions = page.answer.positions.numbers::<u64>()?;
        // Deleted rows come last, without values.
        let (changed, deleted) = positions.split_at_checked(page.answer.values.len() / spec.row_bytes())?;
        let values = page.answer.values.numbers()?.to_vec();
        let ids = keys(changed);
        let deleted = keys(deleted);
        Some(Self { clock: page.clock, shard, starts_over: false, ids, values, deleted, range, placement })
    }

    /// A feed that starts over drops the rows of the page.
    fn starting_over(self) -> Self {
        Self { starts_over: true, ids: Vec::new(), values: Vec::new(), deleted: Vec::new(), ..self }
    }

    fn is_empty(&self) -> bool {
        !self.starts_over && self.ids.is_empty() && self.deleted.is_empty()
    }
}

impl<T> Changes<T> {
    /// Whether the row `id` belongs to the shard of these changes.
    #[must_use]
    pub fn covers(&self, id: u64) -> bool {
        self.range.contains(self.placement.position(types::Key(id)))
    }
}

/// A reader of a table's changes, in order for each row. A row that changed several times shows its
/// latest values; the feed may skip the values between. A `Feed<u8>` reads a table of any number
/// type, and returns values as bytes.
pub struct Feed<T> {
    source: Box<dyn FeedSource + Send>,
    spec: Arc<TableSpec>,
    shards: Vec<FeedReader>,
    /// The index of the shard to ask next.
    turn: usize,
    numbers: PhantomData<T>,
}

/// Where a feed reads pages from: a worker's table, or an observer of the run.
pub(crate) trait FeedSource {
    /// Asks the shard that holds position `first` what changed from there on. Does not block for
    /// long: returns `None` if the shard does not answer yet, and the feed asks again.
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<Option<FeedPage>, Error>;
}

impl FollowFrom {
    fn cursor(self) -> FeedCursor {
        match self {
            Self::Now => FeedCursor::Now,
            Self::Rows => FeedCursor::Rows,
            Self::Clock(clock) => FeedCursor::Clock { clock },
        }
    }
}

impl<T: Pod> Feed<T> {
    fn begin(
        source: Box<dyn FeedSource + Send>,
        spec: Arc<TableSpec>,
        plan: &Plan,
        options: FollowOptions,
    ) -> Result<Self, Error> {
        let shards = plan.shards(spec.shape);
        let shards = shards.iter().map(|placed| FeedReader::new(placed.range, options.from.cursor())).collect();
        let mut feed = Self { source, spec, shards, turn: 0, numbers: PhantomData };
        // Fix the starting point now, so that the feed holds every change after this call.
        let waits = |shard: &FeedReader| shard.question().0 == FeedCursor::Now;
        while let Some(place) = feed.shards.iter().position(waits) {
            feed.page(place)?;
            if waits(&feed.shards[place]) {
                std::thread::sleep(ASK_SOON);
            }
        }
        Ok(feed)
    }

    /// The spec that the table was made with.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 8))?;
    /// assert_eq!(session.follow(&table)?.spec().width, 8);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// The same feed, with values as bytes.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use std::time::Duration;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let mut feed = session.follow(&table)?.into_bytes();
    /// table.push(&table.keys(&[7]), vec![0.5])?.wait()?;
    /// let changes = feed.next(Duration::from_secs(10))?.expect("a row was pushed");
    /// assert_eq!(changes.values, 0.5f32.to_ne_bytes());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    #[must_use]
    pub fn into_bytes(self) -> Feed<u8> {
        self.with_numbers()
    }

    fn with_numbers<U>(self) -> Feed<U> {
        let Self { source, spec, shards, turn, .. } = self;
        Feed { source, spec, shards, turn, numbers: PhantomData }
    }

    /// The next rows that changed or were deleted. Blocks until there are some, at most for
    /// `limit`; then returns `None`. It may block for longer while a shard fails over to another
    /// server. Fails if the run is over.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use std::time::Duration;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let mut feed = session.follow(&table)?;
    /// assert!(feed.next(Duration::ZERO)?.is_none());
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn next(&mut self, limit: Duration) -> Result<Option<Changes<T>>, Error> {
        let begin = Instant::now();
        loop {
            let mut pause = ASK_EVERY;
            for _ in 0..self.shards.len() {
                let place = self.turn;
                self.turn = (place + 1) % self.shards.len();
                match self.page(place)? {
                    Some(changes) if !changes.is_empty() => return Ok(Some(changes)),
                    Some(_) => {}
                    None => pause = ASK_SOON,
                }
            }
            if begin.elapsed() >= limit {
                return Ok(None);
            }
            std::thread::sleep(pause.min(limit.saturating_sub(begin.elapsed())));
        }
    }

    /// The clock to continue from with [`FollowFrom::Clock`], later or in another process: this
    /// feed has returned every change before the run reached it.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.shards.iter().map(FeedReader::clock).min().unwrap_or_default()
    }

    /// Asks one shard for its next page with rows. Returns empty changes if there are none, and
    /// `None` if the shard cannot answer yet.
    fn page(&mut self, place: usize) -> Result<Option<Changes<T>>, Error> {
        let shard = &mut self.shards[place];
        loop {
            let (cursor, first) = shard.question();
            let Some(page) = self.source.page(cursor, first)? else { return Ok(None) };
            // A malformed page is asked for again.
            let Some(changes) = Changes::of(&page, &self.spec, place, shard.range()) else { return Ok(None) };
            match shard.take(&page) {
                FeedStep::AskAgain => return Ok(None),
                FeedStep::StartsOver => return Ok(Some(changes.starting_over())),
                FeedStep::Rows { is_up_to_date: false } if changes.is_empty() => {}
                FeedStep::Rows { .. } => return Ok(Some(changes)),
            }
        }
    }
}

impl Feed<u8> {
    /// The same feed, with values as numbers. Fails if the table has another number type
    /// ([`Error::Table`]).
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// assert!(session.follow(&table)?.into_bytes().into_numbers::<f32>().is_ok());
    /// let error = session.follow(&table)?.into_bytes().into_numbers::<i64>().err().expect("the table holds f32");
    /// assert!(error.to_string().contains("table 't' holds f32, not i64"));
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn into_numbers<T: TargetNumber>(self) -> Result<Feed<T>, Error> {
        let TableSpec { name, number, .. } = self.spec();
        if *number != T::TYPE {
            return Err(Error::Table { problem: format!("table '{name}' holds {number}, not {}", T::TYPE) });
        }
        Ok(self.with_numbers())
    }
}

impl FromOutcome for Option<FeedPage> {
    fn from_outcome(outcome: TicketOutcome, _: Placement) -> Self {
        let TicketOutcome::Rows(rows) = outcome else { unreachable!("the change feed brings a page") };
        rows.page.map(|page| *page)
    }
    fn released_by(&self) -> Option<WorkerId> {
        None
    }
}

impl<T: TargetNumber> FeedSource for Table<T> {
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<Option<FeedPage>, Error> {
        self.submit(Op::Follow { cursor, first }, None, &Tickets::none())?.wait()
    }
}

impl Session {
    /// Follows the changes of a table from now on: see [`Feed`].
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use std::time::Duration;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// let mut feed = session.follow(&table)?;
    /// table.push(&table.keys(&[7]), vec![0.5])?.wait()?;
    /// let changes = feed.next(Duration::from_secs(10))?.expect("a row was pushed");
    /// assert_eq!((changes.ids, changes.values), (vec![7], vec![0.5]));
    /// table.delete(&table.keys(&[7]))?.wait()?;
    /// assert_eq!(feed.next(Duration::from_secs(10))?.expect("it was deleted").deleted, [7]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn follow<T: TargetNumber>(&self, table: &Table<T>) -> Result<Feed<T>, Error> {
        self.follow_opts(table, FollowOptions::default())
    }

    /// As [`Session::follow`], with options: for example, beginning with all rows.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use slackwater::feed::{FollowFrom, FollowOptions};
    /// # use std::time::Duration;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// table.push(&table.keys(&[7]), vec![0.5])?.wait()?;
    /// let mut feed = session.follow_opts(&table, FollowOptions { from: FollowFrom::Rows })?;
    /// assert_eq!(feed.next(Duration::from_secs(10))?.expect("the existing row").ids, [7]);
    /// # session.close()?;
    /// # Ok::<(), slackwater::Error>(())
    /// ```
    pub fn follow_opts<T: TargetNumber>(&self, table: &Table<T>, options: FollowOptions) -> Result<Feed<T>, Error> {
        Feed::begin(Box::new(table.clone()), table.spec.clone(), &self.plan(), options)
    }
}

/// Follows a table from a process that is no worker of the run. `connect` names the run's
/// coordinator. Waits at most `connect.join_limit` for each answer. Fails if the run has no such
/// table, or if the table has another number type ([`Error::Table`]).
///
/// ```
/// use slackwater::feed::{self, FollowFrom, FollowOptions};
/// use slackwater::security::{Access, JobToken};
/// use slackwater::{Connect, RunSize, Serve, Session, TableSpec};
/// use std::time::Duration;
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let access = Access::Job(JobToken::create()?);    // every process of a run has the same token
/// let connect = Connect { access, ..Connect::to(&coordinator.to_string()) };
/// let serve = Serve { coordinate: Some(RunSize { servers: 1, workers: 1 }), ..Serve::new(connect.clone()) };
/// let server = std::thread::spawn(move || serve.run());
/// let session = Session::connect(&connect)?;
/// let table = session.table::<f32>(TableSpec::dense("weights", 3, 1))?;
///
/// let mut feed = feed::follow::<f32>(&connect, "weights", FollowOptions { from: FollowFrom::Now })?;
/// table.push(&table.keys(&[2]), vec![1.0])?.wait()?;
/// assert_eq!(feed.next(Duration::from_secs(10))?.expect("a row was pushed").ids, [2]);
/// session.close()?;
/// # server.join().expect("no panic")?;
/// # Ok::<(), slackwater::Error>(())
/// ```
pub fn follow<T: TargetNumber>(connect: &Connect, table: &str, options: FollowOptions) -> Result<Feed<T>, Error> {
    follow_bytes(connect, table, options)?.into_numbers()
}

/// As [`follow`], for a table of any number type: the feed returns values as bytes, and
/// [`Feed::spec`] tells their type.
///
/// ```no_run
/// use slackwater::Connect;
/// use slackwater::feed::{FollowOptions, follow_bytes};
///
/// let feed = follow_bytes(&Connect::to("10.0.0.1:7777"), "weights", FollowOptions::default())?;
/// println!("rows of {} numbers of type {}", feed.spec().width, feed.spec().number);
/// # Ok::<(), slackwater::Error>(())
/// ```
pub fn follow_bytes(connect: &Connect, table: &str, options: FollowOptions) -> Result<Feed<u8>, Error> {
    let observed = ObservedTable::find(connect, table)?;
    let spec = Arc::new(observed.spec().clone());
    let plan = observed.plan().clone();
    Feed::begin(Box::new(observed), spec, &plan, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ShardId, TableId};
    use wire::{ASK_AGAIN, Payload, Pulled};

    /// A shard that answers with these pages, the last one first.
    struct Scripted(Vec<Option<FeedPage>>);

    impl FeedSource for Scripted {
        fn page(&mut self, _: FeedCursor, _: Position) -> Result<Option<FeedPage>, Error> {
            Ok(self.0.pop().flatten())
        }
    }

    /// A page of an ordered table with rows of two numbers.
    fn page(sequence: Option<(u64, u64)>, positions: &[u64], values: &[f32]) -> Option<FeedPage> {
        let positions = Payload::new(positions.to_vec());
        let values = Payload::new(values.to_vec());
        let answer = Pulled { sequence, contains: 5, positions, values, ..Pulled::empty(TableId(0), ShardId(0), 1) };
        Some(FeedPage { clock: Clock(2), answer })
    }

    fn feed(mut pages: Vec<Option<FeedPage>>) -> Feed<f32> {
        pages.reverse();
        let range = PositionRange { first: Position(0), last: Position(99) };
        let spec = Arc::new(TableSpec::sparse("t", 2).ordered());
        let shards = vec![FeedReader::new(range, FeedCursor::Rows)];
        Feed { source: Box::new(Scripted(pages)), spec, shards, turn: 0, numbers: PhantomData }
    }

    /// What a page of the feed tells: whether it starts over, ids, values and deleted ids.
    type Told = (bool, Vec<u64>, Vec<f32>, Vec<u64>);

    fn next(feed: &mut Feed<f32>) -> Option<Told> {
        let changes = feed.page(0).expect("the script has no errors")?;
        Some((changes.starts_over, changes.ids, changes.values, changes.deleted))
    }

    #[test]
    fn feed_tells_changed_rows_from_deleted_ones() {
        let mut feed = feed(vec![page(Some((1, 5)), &[3, 8, 4], &[0.5, 1.0, 1.5, 2.0]), page(Some((1, 5)), &[], &[])]);
        assert_eq!(next(&mut feed), Some((false, vec![3, 8], vec![0.5, 1.0, 1.5, 2.0], vec![4])));
        assert_eq!(next(&mut feed), Some((false, vec![], vec![], vec![])), "nothing has changed");
    }

    #[test]
    fn feed_asks_again_after_a_malformed_page_and_where_a_shard_does_not_answer() {
        let rows_without_keys = page(Some((1, 5)), &[3], &[0.5, 1.0, 1.5, 2.0]);
        let later = page(Some(ASK_AGAIN), &[], &[]);
        let mut feed = feed(vec![rows_without_keys, None, later, page(Some((1, 5)), &[3], &[0.5, 1.0])]);
        for why in ["rows without keys", "no answer", "the shard cannot answer yet"] {
            assert_eq!(next(&mut feed), None, "{why}");
        }
        assert_eq!(next(&mut feed), Some((false, vec![3], vec![0.5, 1.0], vec![])));
    }

    #[test]
    fn feed_that_starts_over_drops_the_rows_of_that_page() {
        let first = page(Some((1, 5)), &[3], &[0.5, 1.0]).map(|mut page| {
            page.answer.more = Some(Position(40));
            page
        });
        let mut feed = feed(vec![first, page(Some((2, 5)), &[50], &[1.5, 2.0]), page(None, &[], &[])]);
        assert_eq!(next(&mut feed), Some((false, vec![3], vec![0.5, 1.0], vec![])));
        assert_eq!(next(&mut feed), Some((true, vec![], vec![], vec![])), "another server answered");
        assert_eq!(next(&mut feed), Some((true, vec![], vec![], vec![])), "the shard lacks the changes");
    }
}

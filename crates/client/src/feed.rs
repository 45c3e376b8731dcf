//! The change feed of a table: a program follows the rows that changed or were deleted, as they are
//! when it reads the feed.
//!
//! A feed begins with the changes from now on, with all rows, or with the changes since a clock. It
//! starts over with all rows of a shard if the shard no longer remembers what the reader lacks.

use crate::observer::ObservedTable;
use crate::table::{Table, TargetNumber};
use crate::ticket::FromOutcome;
use crate::{Connect, Error, Session, Tickets};
use std::time::{Duration, Instant};
use types::{Clock, Placement, Position, PositionRange, WorkerId};
use wire::{ASK_AGAIN, FeedCursor, FeedProgress, FeedReader, FeedStep, Pulled};
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

impl<T> Changes<T> {
    /// Whether the row `id` belongs to the shard of these changes.
    #[must_use]
    pub fn covers(&self, id: u64) -> bool {
        self.range.contains(self.placement.position(types::Key(id)))
    }
}

/// A reader of a table's changes, in order for each row. A row that changed several times shows its
/// latest values; the feed may skip the values between.
pub struct Feed<T> {
    source: Box<dyn FeedSource<T> + Send>,
    placement: Placement,
    width: usize,
    shards: Vec<FeedReader>,
    /// The index of the shard to ask next.
    turn: usize,
}

/// Where a feed reads pages from: a worker's table, or an observer of the run.
pub(crate) trait FeedSource<T> {
    /// Asks the shard that holds position `first` what changed from there on. Does not block for
    /// long: the feed asks again if the shard cannot answer yet.
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<FeedPage<T>, Error>;
}

/// The answer to one question of the feed.
enum FeedAnswer<T> {
    Changes(Changes<T>),
    /// Nothing has changed.
    Nothing,
    /// No rows on this page; the next page may have some.
    Behind,
    /// The shard cannot answer yet.
    NotYet,
}

/// One answer of a shard.
pub(crate) struct FeedPage<T> {
    progress: FeedProgress,
    clock: Clock,
    positions: Vec<u64>,
    /// The values of the first positions. The rows of the remaining positions were deleted.
    values: Vec<T>,
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

impl<T: TargetNumber> Feed<T> {
    fn begin(
        source: Box<dyn FeedSource<T> + Send>,
        (placement, width): (Placement, u32),
        ranges: impl IntoIterator<Item = PositionRange>,
        options: FollowOptions,
    ) -> Result<Self, Error> {
        let shards = ranges.into_iter().map(|range| FeedReader::new(range, options.from.cursor())).collect();
        let mut feed = Self { source, placement, width: width as usize, shards, turn: 0 };
        // Fix the starting point now, so that the feed holds every change after this call.
        let waits = |shard: &FeedReader| shard.question().0 == FeedCursor::Now;
        while let Some(place) = feed.shards.iter().position(waits) {
            if let FeedAnswer::NotYet = feed.page(place)? {
                std::thread::sleep(ASK_SOON);
            }
        }
        Ok(feed)
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
                loop {
                    match self.page(place)? {
                        FeedAnswer::Changes(changes) => return Ok(Some(changes)),
                        FeedAnswer::Behind => continue,
                        FeedAnswer::NotYet => pause = ASK_SOON,
                        FeedAnswer::Nothing => {}
                    }
                    break;
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

    /// Asks one shard for its next page.
    fn page(&mut self, place: usize) -> Result<FeedAnswer<T>, Error> {
        let shard = &mut self.shards[place];
        let (cursor, first) = shard.question();
        let FeedPage { progress, clock, positions, values } = self.source.page(cursor, first)?;
        let changed = values.len() / self.width;
        if changed > positions.len() {
            // Malformed: rows without keys. Ask again.
            return Ok(FeedAnswer::NotYet);
        }
        let (starts_over, positions, values) = match shard.take(&progress, clock) {
            FeedStep::AskAgain => return Ok(FeedAnswer::NotYet),
            FeedStep::StartsOver => (true, Vec::new(), Vec::new()),
            FeedStep::Rows { is_up_to_date: true } if positions.is_empty() => return Ok(FeedAnswer::Nothing),
            FeedStep::Rows { is_up_to_date: false } if positions.is_empty() => return Ok(FeedAnswer::Behind),
            FeedStep::Rows { .. } => (false, positions, values),
        };
        let mut ids: Vec<u64> = positions.iter().map(|at| self.placement.key(Position(*at)).0).collect();
        let deleted = ids.split_off(values.len() / self.width);
        let range = shard.range();
        let placement = self.placement;
        Ok(FeedAnswer::Changes(Changes { clock, shard: place, starts_over, ids, values, deleted, range, placement }))
    }
}

impl<T: TargetNumber> FeedPage<T> {
    /// Reads a shard's answer; `None` if it is malformed.
    pub fn read(clock: Clock, pulled: &Pulled) -> Option<Self> {
        let positions = pulled.positions.numbers()?.to_vec();
        let values = pulled.values.numbers()?.to_vec();
        Some(Self { progress: FeedProgress::of(pulled), clock, positions, values })
    }

    /// The page of a shard that has not answered.
    pub fn not_yet() -> Self {
        let progress = FeedProgress { reaches: Some(ASK_AGAIN), last: 0, more: None };
        Self { progress, clock: Clock(0), positions: Vec::new(), values: Vec::new() }
    }
}

impl<T: TargetNumber> FromOutcome for FeedPage<T> {
    fn from_outcome(outcome: TicketOutcome, _: Placement) -> Self {
        let TicketOutcome::Rows(rows) = outcome else { unreachable!("a page of the feed brings rows") };
        Self { progress: rows.feed, clock: rows.clock, positions: rows.positions, values: T::from_target(rows.values) }
    }
    fn released_by(&self) -> Option<WorkerId> {
        None
    }
}

impl<T: TargetNumber> FeedSource<T> for Table<T> {
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<FeedPage<T>, Error> {
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
        let shape = table.spec().shape;
        let plan = self.plan();
        let ranges = plan.shards(shape).into_iter().map(|placed| placed.range);
        Feed::begin(Box::new(table.clone()), (shape.placement(), table.spec().width), ranges, options)
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
    let observed = ObservedTable::find(connect, table)?;
    let spec = observed.table().spec.clone();
    let ranges = observed.ranges();
    if spec.number != T::TYPE {
        let problem = format!("table '{table}' holds {}, not {}", spec.number, T::TYPE);
        return Err(Error::Table { problem });
    }
    Feed::begin(Box::new(observed), (spec.shape.placement(), spec.width), ranges, options)
}

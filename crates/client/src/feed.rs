//! The change feed of a table: each row that changed or was deleted, as it is now.

use crate::observer::ObservedTable;
use crate::table::{Table, TargetNumber};
use crate::ticket::FromOutcome;
use crate::{Connect, Error, Session, Tickets};
use std::time::{Duration, Instant};
use types::{Clock, Placement, Position, PositionRange, WorkerId};
use wire::{ASK_AGAIN, FeedCursor, FeedProgress, FeedReader, FeedStep, Pulled};
use worker::{Op, TicketOutcome};

/// How often shards are asked while nothing changes.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// How soon a shard is asked again that is between two states that readers may see.
const ASK_SOON: Duration = Duration::from_millis(1);

/// From where on a table is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// What changes from now on.
    #[default]
    Now,
    /// All rows, and then what changes.
    Rows,
    /// What has changed since the run came to this clock. Servers remember that while the table is
    /// followed, and for a minute after that; otherwise the feed starts over with all rows, and
    /// says so. Clocks of another run mean nothing.
    Clock(Clock),
}

/// How a table is followed: see [`Session::follow_opts`](crate::Session::follow_opts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowOptions {
    /// From where on: from now on unless set.
    pub from: FollowFrom,
}

/// Some rows that changed or were deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes<T> {
    /// The clock that the rows are of: every update of clocks below it is in.
    pub clock: Clock,
    /// The shard of the table that the rows are of, from 0.
    pub shard: usize,
    /// Whether the feed starts over with this shard: forget all its rows (the keys that
    /// [`covers`](Self::covers) names); those that exist follow. The feed starts over where its
    /// reader fell behind, and where another server took over the shard.
    pub starts_over: bool,
    /// The ids of rows that changed.
    pub ids: Vec<u64>,
    /// What they are now, row after row.
    pub values: Vec<T>,
    /// The ids of rows that were deleted.
    pub deleted: Vec<u64>,
    range: PositionRange,
    placement: Placement,
}

impl<T> Changes<T> {
    /// Whether a row is of the shard that these changes are of.
    #[must_use]
    pub fn covers(&self, id: u64) -> bool {
        self.range.contains(self.placement.position(types::Key(id)))
    }
}

/// The changes of a table, in order for each row. A row that changed often shows its latest values,
/// and need not show all that were between.
pub struct Feed<T> {
    source: Box<dyn FeedSource<T> + Send>,
    placement: Placement,
    width: usize,
    shards: Vec<FeedReader>,
    /// The shard whose turn it is.
    turn: usize,
}

/// Where changes come from.
pub(crate) trait FeedSource<T> {
    /// Asks the shard that holds position `first` what changed from there on. Does not wait for
    /// long: a shard that cannot answer yet is asked again.
    fn page(&mut self, cursor: FeedCursor, first: Position) -> Result<FeedPage<T>, Error>;
}

/// What a question brought.
enum FeedAnswer<T> {
    Changes(Changes<T>),
    /// Nothing has changed.
    Nothing,
    /// The shard cannot tell yet.
    NotYet,
}

/// What a shard answers.
pub(crate) struct FeedPage<T> {
    progress: FeedProgress,
    clock: Clock,
    positions: Vec<u64>,
    /// Of the first positions; the rows of the others were deleted.
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
        // What changes after this call is in the feed.
        let waits = |shard: &FeedReader| shard.question().0 == FeedCursor::Now;
        while let Some(place) = feed.shards.iter().position(waits) {
            if let FeedAnswer::NotYet = feed.page(place)? {
                std::thread::sleep(ASK_SOON);
            }
        }
        Ok(feed)
    }

    /// The next rows that changed or were deleted. Blocks until there are some, at most for
    /// `limit`; then returns none. It may block for longer while a shard fails over to another
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
                    FeedAnswer::Changes(changes) => return Ok(Some(changes)),
                    FeedAnswer::NotYet => pause = ASK_SOON,
                    FeedAnswer::Nothing => {}
                }
            }
            if begin.elapsed() >= limit {
                return Ok(None);
            }
            std::thread::sleep(pause.min(limit.saturating_sub(begin.elapsed())));
        }
    }

    /// The clock to go on from, later or elsewhere, with [`FollowFrom::Clock`]: everything that
    /// changed before the run came to it has been returned.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.shards.iter().map(FeedReader::clock).min().unwrap_or_default()
    }

    /// The next page of a shard.
    fn page(&mut self, place: usize) -> Result<FeedAnswer<T>, Error> {
        let shard = &mut self.shards[place];
        let (cursor, first) = shard.question();
        let FeedPage { progress, clock, positions, values } = self.source.page(cursor, first)?;
        let changed = values.len() / self.width;
        if changed > positions.len() {
            // No server sends that: rows without keys.
            return Ok(FeedAnswer::NotYet);
        }
        let (starts_over, positions, values) = match shard.take(&progress, clock) {
            FeedStep::AskAgain => return Ok(FeedAnswer::NotYet),
            FeedStep::StartsOver => (true, Vec::new(), Vec::new()),
            FeedStep::Rows { .. } if positions.is_empty() => return Ok(FeedAnswer::Nothing),
            FeedStep::Rows { .. } => (false, positions, values),
        };
        let mut ids: Vec<u64> = positions.iter().map(|at| self.placement.key(Position(*at)).0).collect();
        let deleted = ids.split_off(values.len() / self.width);
        let (range, placement) = (shard.range(), self.placement);
        Ok(FeedAnswer::Changes(Changes { clock, shard: place, starts_over, ids, values, deleted, range, placement }))
    }
}

impl<T: TargetNumber> FeedPage<T> {
    /// What a shard has sent, if it is well-formed.
    pub fn read(clock: Clock, pulled: &Pulled) -> Option<Self> {
        let (positions, values) = (pulled.positions.numbers()?.to_vec(), pulled.values.numbers()?.to_vec());
        Some(Self { progress: FeedProgress::of(pulled), clock, positions, values })
    }

    /// No shard has answered.
    pub fn not_yet() -> Self {
        let progress = FeedProgress { reaches: Some(ASK_AGAIN), last: 0, more: None };
        Self { progress, clock: Clock(0), positions: Vec::new(), values: Vec::new() }
    }
}

impl<T: TargetNumber> FromOutcome for FeedPage<T> {
    fn from_outcome(outcome: TicketOutcome, _: Placement) -> Self {
        let TicketOutcome::Rows(rows) = outcome else { unreachable!("a page of the feed brings rows") };
        let (progress, clock, positions) = (rows.feed, rows.clock, rows.positions);
        Self { progress, clock, positions, values: T::from_target(rows.values) }
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

    /// As [`Session::follow`], from another place on.
    ///
    /// ```
    /// # use slackwater::{RunSize, Session, TableSpec};
    /// # use slackwater::feed::{FollowFrom, FollowOptions};
    /// # use std::time::Duration;
    /// # let session = Session::embedded(RunSize { servers: 1, workers: 1 })?.remove(0);
    /// let table = session.table::<f32>(TableSpec::sparse("t", 1))?;
    /// table.push(&table.keys(&[7]), vec![0.5])?.wait()?;
    /// let mut feed = session.follow_opts(&table, FollowOptions { from: FollowFrom::Rows })?;
    /// assert_eq!(feed.next(Duration::from_secs(10))?.expect("the row that there is").ids, [7]);
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

/// Follows a table of the run of that coordinator, from outside of the run. Waits at most
/// `connect.join_limit` for each answer. Fails if the run has no such table, or one of other
/// numbers ([`Error::Table`]).
///
/// ```
/// use slackwater::feed::{self, FollowFrom, FollowOptions};
/// use slackwater::{Connect, RunSize, Serve, Session, TableSpec};
/// use std::time::Duration;
///
/// let coordinator = slackwater::cluster::free_address().expect("a free port");
/// let connect = Connect::to(&coordinator.to_string());
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
    let (spec, ranges) = (observed.table().spec.clone(), observed.ranges());
    if spec.number != T::TYPE {
        let problem = format!("table '{table}' holds {}, not {}", spec.number, T::TYPE);
        return Err(Error::Table { problem });
    }
    Feed::begin(Box::new(observed), (spec.shape.placement(), spec.width), ranges, options)
}

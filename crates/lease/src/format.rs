//! The allocator as bytes, for the registry that a standby coordinator reads. What is read may be
//! anything, and never panics; it costs no more memory than it has bytes.

use super::pace::{self, Pace};
use super::spans::Spans;
use super::{CLOCK_RUNS, GrantTerms, HELD_LEASES, Holding, LeaseAllocator, LeaseId, Worker};
use std::ops::Range;
use types::{Clock, Source, Time};
use wire::{Field, Reader, WireError};

/// Of this form of the bytes.
const VERSION: u8 = 1;

const OVERLAP: WireError = WireError::Malformed("a lease that is in two places at once");

/// Places from the first to before the second.
type Run = (u64, u64);

impl LeaseAllocator {
    /// Appends it to `out`.
    ///
    /// ```
    /// use lease::{LeaseAllocator, GrantTerms};
    /// use types::{Source, Time};
    ///
    /// let mut allocator = LeaseAllocator::new(GrantTerms { ranges: 100, epochs: 2, shuffle: Some(5), per_clock: 8 })?;
    /// allocator.grant(Time(0), Source(1), 10);
    /// let mut bytes = Vec::new();
    /// allocator.put(&mut bytes);
    /// let again = LeaseAllocator::get(&mut wire::Reader(&bytes), Time(0)).expect("what was written");
    /// assert_eq!(again, allocator);
    /// # Ok::<(), lease::GrantTermsError>(())
    /// ```
    pub fn put(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.terms.put(out);
        self.next.put(out);
        self.told_apart_from.put(out);
        let workers = self.workers.iter().map(|(source, worker)| (*source, worker.pace.clone()));
        workers.collect::<Vec<_>>().put(out);
        self.returned.iter().map(|(places, ())| (places.start, places.end)).collect::<Vec<Run>>().put(out);
        put_runs(&self.held, |holding| holding.source, out);
        put_runs(&self.recent, |clock| clock, out);
    }

    /// Reads what [`put`](Self::put) has written. Leases that are held count as held since `now`:
    /// the time that they were granted at was another process's.
    pub fn get(input: &mut Reader<'_>, now: Time) -> Result<Self, WireError> {
        if u8::get(input)? != VERSION {
            return Err(WireError::Malformed("leases in a form of another release"));
        }
        let terms = GrantTerms::get(input)?;
        let unfit = |_| WireError::Malformed("terms that no leases can have");
        let mut allocator = Self::new(terms).map_err(unfit)?;
        allocator.next = u64::get(input)?;
        if allocator.next > allocator.leases {
            return Err(WireError::Malformed("more leases granted than there are"));
        }
        allocator.told_apart_from = Clock::get(input)?;
        for (source, pace) in Vec::<(Source, Pace)>::get(input)? {
            if pace.share == 0 || pace.share > pace::most(terms.per_clock) {
                return Err(WireError::Malformed("a share beyond its bounds"));
            }
            allocator.workers.insert(source, Worker { held: 0, pace });
        }
        let next = allocator.next;
        let returned = Vec::<Run>::get(input)?.into_iter().map(|run| (run, ()));
        fill(&mut allocator.returned, returned, next, |_, ()| Ok(()))?;
        let workers = &mut allocator.workers;
        let holder = |places: &Range<u64>, source: Source| {
            let worker = workers.get_mut(&source).ok_or(WireError::Malformed("a lease held by nobody in the run"))?;
            worker.held = worker.held.saturating_add(places.end - places.start);
            match worker.held <= HELD_LEASES {
                true => Ok(Holding { source, since: now }),
                false => Err(WireError::Malformed("more leases in one hand than may be")),
            }
        };
        fill(&mut allocator.held, Vec::get(input)?, next, holder)?;
        let from = allocator.told_apart_from;
        let committed = |_: &Range<u64>, clock: Clock| match (from..Clock(u64::MAX)).contains(&clock) {
            true => Ok(clock),
            false => Err(WireError::Malformed("a lease committed in a clock that is not told apart")),
        };
        fill(&mut allocator.recent, Vec::get(input)?, next, committed)?;
        if allocator.recent.runs() > CLOCK_RUNS {
            return Err(WireError::Malformed("more clocks told apart than may be"));
        }
        allocator.check_apart()?;
        Ok(allocator)
    }

    /// No place is held, to be granted and done, or two of those.
    fn check_apart(&self) -> Result<(), WireError> {
        let returned = self.returned.iter().map(|(places, ())| places);
        let held = self.held.iter().map(|(places, _)| places);
        let mut all: Vec<Range<u64>> =
            self.recent.iter().map(|(places, _)| places).chain(returned).chain(held).collect();
        all.sort_unstable_by_key(|places| places.start);
        if all.windows(2).all(|pair| pair[0].end <= pair[1].start) { Ok(()) } else { Err(OVERLAP) }
    }
}

fn put_runs<T: Copy + Eq, F: Field>(spans: &Spans<T>, field: impl Fn(T) -> F, out: &mut Vec<u8>) {
    spans.iter().map(|(places, value)| ((places.start, places.end), field(value))).collect::<Vec<_>>().put(out);
}

/// Takes runs in rising order below `end`, each with a value that `value` makes of what was
/// written.
fn fill<T: Copy + Eq, F>(
    spans: &mut Spans<T>,
    runs: impl IntoIterator<Item = (Run, F)>,
    end: u64,
    mut value: impl FnMut(&Range<u64>, F) -> Result<T, WireError>,
) -> Result<(), WireError> {
    let mut from = 0;
    for ((start, stop), written) in runs {
        if start < from || stop <= start || stop > end {
            return Err(OVERLAP);
        }
        from = stop;
        let places = start..stop;
        let value = value(&places, written)?;
        spans.insert(places, value);
    }
    Ok(())
}

impl Field for GrantTerms {
    fn put(&self, out: &mut Vec<u8>) {
        self.ranges.put(out);
        self.epochs.put(out);
        self.shuffle.put(out);
        self.per_clock.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            ranges: Field::get(input)?,
            epochs: Field::get(input)?,
            shuffle: Field::get(input)?,
            per_clock: Field::get(input)?,
        })
    }
}

impl Field for Pace {
    fn put(&self, out: &mut Vec<u8>) {
        (self.examples, self.seconds).put(out);
        self.clock.put(out);
        self.share.put(out);
        self.lean.cast_unsigned().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (examples, seconds): (f64, f64) = Field::get(input)?;
        if !(examples.is_finite() && examples >= 0.0 && seconds.is_finite() && seconds >= 0.0) {
            return Err(WireError::Malformed("a speed that is no number"));
        }
        let (clock, share) = Field::get(input)?;
        let lean = u8::get(input)?.cast_signed();
        if lean.unsigned_abs() >= pace::COMMITS_BEFORE_A_CHANGE {
            return Err(WireError::Malformed("a share that leans too far"));
        }
        Ok(Self { examples, seconds, clock, share, lean })
    }
}

impl Field for LeaseId {
    fn put(&self, out: &mut Vec<u8>) {
        (self.set, self.number).put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { set: Field::get(input)?, number: Field::get(input)? })
    }
}

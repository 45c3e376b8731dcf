//! Serialised form of the allocator, for the registry, from which a standby coordinator reads it.
//!
//! Malformed bytes give an error, never a panic. Reading takes memory in proportion to the bytes.

use super::pace::{self, Pace};
use super::spans::Spans;
use super::{CLOCK_RUNS, GrantTerms, HELD_LEASES, Holding, LeaseAllocator, LeaseId, Worker};
use std::ops::Range;
use types::{Clock, Source, Time};
use wire::{Field, Reader, WireError};

/// The version of this format.
const VERSION: u8 = 1;

/// A range of places: the first place, and the one after the last.
type PlaceRange = (u64, u64);

impl LeaseAllocator {
    /// Appends the allocator to `out`.
    ///
    /// ```
    /// use lease::{LeaseAllocator, GrantTerms};
    /// use types::{Source, Time};
    ///
    /// let mut allocator = LeaseAllocator::new(GrantTerms { ranges: 100, epochs: 2, shuffle: Some(5), per_clock: 8 })?;
    /// allocator.grant(Time(0), Source(1), 10);
    /// let mut bytes = Vec::new();
    /// allocator.put(&mut bytes);
    /// let again = LeaseAllocator::get(&mut wire::Reader(&bytes), Time(0)).expect("valid bytes");
    /// assert_eq!(again, allocator);
    /// # Ok::<(), lease::GrantTermsError>(())
    /// ```
    pub fn put(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.terms.put(out);
        self.next.put(out);
        self.settled.put(out);
        let workers = self.workers.iter().map(|(source, worker)| (*source, worker.pace.clone()));
        workers.collect::<Vec<_>>().put(out);
        self.returned.iter().map(|(places, ())| (places.start, places.end)).collect::<Vec<PlaceRange>>().put(out);
        put_ranges(&self.held, |holding| holding.source, out);
        put_ranges(&self.recent, |clock| clock, out);
    }

    /// Reads an allocator that [`put`](Self::put) has written. Held leases count as held since
    /// `now`, because times of another process mean nothing here.
    pub fn get(input: &mut Reader<'_>, now: Time) -> Result<Self, WireError> {
        if u8::get(input)? != VERSION {
            return Err(WireError::Malformed("leases in the format of another release"));
        }
        let terms = GrantTerms::get(input)?;
        let unfit = |_| WireError::Malformed("lease terms that are not valid");
        let mut allocator = Self::new(terms).map_err(unfit)?;
        allocator.next = u64::get(input)?;
        if allocator.next > allocator.leases {
            return Err(WireError::Malformed("more granted leases than the run has"));
        }
        allocator.settled = Clock::get(input)?;
        for (source, pace) in Vec::<(Source, Pace)>::get(input)? {
            if pace.share == 0 || pace.share > pace::most(terms.per_clock) {
                return Err(WireError::Malformed("a worker's share out of bounds"));
            }
            allocator.workers.insert(source, Worker { held: 0, pace });
        }
        let next = allocator.next;
        let returned = Vec::<PlaceRange>::get(input)?.into_iter().map(|range| (range, ()));
        fill(&mut allocator.returned, returned, next, |_, ()| Ok(()))?;
        let workers = &mut allocator.workers;
        let holder = |places: &Range<u64>, source: Source| {
            let worker = workers
                .get_mut(&source)
                .ok_or(WireError::Malformed("a lease held by a source that is not in the run"))?;
            worker.held = worker.held.saturating_add(places.end - places.start);
            match worker.held <= HELD_LEASES {
                true => Ok(Holding { source, since: now }),
                false => Err(WireError::Malformed("a worker with more leases than it may hold")),
            }
        };
        fill(&mut allocator.held, Vec::get(input)?, next, holder)?;
        let from = allocator.settled;
        let committed = |_: &Range<u64>, clock: Clock| match (from..Clock(u64::MAX)).contains(&clock) {
            true => Ok(clock),
            false => Err(WireError::Malformed("a commit clock that is settled or too large")),
        };
        fill(&mut allocator.recent, Vec::get(input)?, next, committed)?;
        if allocator.recent.runs() > CLOCK_RUNS {
            return Err(WireError::Malformed("commit clocks for more runs of leases than the allocator keeps"));
        }
        allocator.check_apart()?;
        Ok(allocator)
    }

    /// Checks that each place is in at most one of `recent`, `returned` and `held`.
    fn check_apart(&self) -> Result<(), WireError> {
        let returned = self.returned.iter().map(|(places, ())| places);
        let held = self.held.iter().map(|(places, _)| places);
        let mut all: Vec<Range<u64>> =
            self.recent.iter().map(|(places, _)| places).chain(returned).chain(held).collect();
        all.sort_unstable_by_key(|places| places.start);
        match all.windows(2).all(|pair| pair[0].end <= pair[1].start) {
            true => Ok(()),
            false => Err(WireError::Malformed("a lease listed twice")),
        }
    }
}

fn put_ranges<T: Copy + Eq, F: Field>(spans: &Spans<T>, field: impl Fn(T) -> F, out: &mut Vec<u8>) {
    spans.iter().map(|(places, value)| ((places.start, places.end), field(value))).collect::<Vec<_>>().put(out);
}

/// Fills `spans` with ranges, which must be in rising order and below `end`. `value` makes the
/// value of each range from the field that was read.
fn fill<T: Copy + Eq, F>(
    spans: &mut Spans<T>,
    ranges: impl IntoIterator<Item = (PlaceRange, F)>,
    end: u64,
    mut value: impl FnMut(&Range<u64>, F) -> Result<T, WireError>,
) -> Result<(), WireError> {
    let mut from = 0;
    for ((start, stop), written) in ranges {
        if start < from || stop <= start || stop > end {
            return Err(WireError::Malformed("a range of leases that is empty, out of order or not granted yet"));
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
        self.trend.cast_unsigned().put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let (examples, seconds): (f64, f64) = Field::get(input)?;
        if !(examples.is_finite() && examples >= 0.0 && seconds.is_finite() && seconds >= 0.0) {
            return Err(WireError::Malformed("a speed that is not a finite number"));
        }
        let (clock, share) = Field::get(input)?;
        let trend = u8::get(input)?.cast_signed();
        if trend.unsigned_abs() >= pace::COMMITS_BEFORE_A_CHANGE {
            return Err(WireError::Malformed("a share's trend out of bounds"));
        }
        Ok(Self { examples, seconds, clock, share, trend })
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

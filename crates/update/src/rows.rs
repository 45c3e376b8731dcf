//! [`Slots`], the rows of a slab that a batch touches, and fast loops over them for updaters that
//! need only the weights.

use crate::Number;
use crate::kernels::change_numbers;

/// Which rows of a slab a batch touches, in batch order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots<'a> {
    /// Neighbouring rows.
    Run {
        /// The first of them.
        first: usize,
        /// How many there are.
        count: usize,
    },
    /// One row index each, in the low bits [`SLOT_INDEX`]. The highest bit is ignored: callers may
    /// tell two slabs apart by it. [`ABSENT`] stands for a row that does not exist: reads give
    /// zeros for it, and updates are never given it.
    List(&'a [u32]),
}

/// The slot of a row that does not exist.
pub const ABSENT: u32 = u32::MAX;
/// The bits of a slot that are the index of its row in a slab.
pub const SLOT_INDEX: u32 = u32::MAX >> 1;

/// The index of a slot's row in its slab.
#[inline]
fn index_of(slot: u32) -> usize {
    (slot & SLOT_INDEX) as usize
}

impl Slots<'_> {
    /// How many rows the batch touches.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::Run { count, .. } => count,
            Self::List(list) => list.len(),
        }
    }
}

/// Panics if a batch has not one row for each slot, before any of it is applied: that is a bug of
/// the caller.
pub(crate) fn check_length(slots: Slots<'_>, width: usize, numbers: usize) {
    assert_eq!(numbers, slots.count() * width, "a batch needs one row of {width} numbers for each slot");
}

/// The weights and state of the row in this slot.
pub(crate) fn row<T>(slab: &[T], stride: usize, slot: u32) -> &[T] {
    let start = index_of(slot) * stride;
    &slab[start..start + stride]
}

/// The weights and state of the row in this slot, to change.
pub(crate) fn row_mut<T>(slab: &mut [T], stride: usize, slot: u32) -> &mut [T] {
    let start = index_of(slot) * stride;
    &mut slab[start..start + stride]
}

/// How many rows of a list are fetched into the cache together.
pub(crate) const AHEAD: usize = 64;

/// Prefetches the rows of a list into the processor's cache. An update's arithmetic otherwise keeps
/// the processor so busy that only one or two rows are on their way from memory at a time. Touching
/// many rows first lets them arrive together.
pub(crate) fn fetch<T: Number>(slab: &[T], stride: usize, list: &[u32]) {
    let touch = |&slot: &u32| slab.get(index_of(slot) * stride).copied().unwrap_or(T::ZERO);
    std::hint::black_box(list.iter().map(touch).fold(T::ZERO, T::plus));
}

/// Sets each weight w to change(w, g), in rows without state. A run is handled as one long row, and
/// rows of one number are written without slicing.
pub(crate) fn change_rows<T: Number>(
    width: usize,
    slab: &mut [T],
    slots: Slots<'_>,
    gradients: &[T],
    change: impl Fn(T, T) -> T,
) {
    check_length(slots, width, gradients.len());
    match slots {
        Slots::Run { first, count } => {
            change_numbers(&mut slab[first * width..(first + count) * width], gradients, change);
        }
        Slots::List(list) if width == 1 => {
            for (&slot, &gradient) in list.iter().zip(gradients) {
                let weight = &mut slab[index_of(slot)];
                *weight = change(*weight, gradient);
            }
        }
        Slots::List(list) => {
            for (&slot, gradient) in list.iter().zip(gradients.chunks_exact(width)) {
                change_numbers(row_mut(slab, width, slot), gradient, &change);
            }
        }
    }
}

/// Copies the weights out of rows `stride` numbers apart, for updaters whose readers see the stored
/// weights.
pub(crate) fn copy_rows<T: Number>(width: usize, stride: usize, slab: &[T], slots: Slots<'_>, out: &mut [T]) {
    check_length(slots, width, out.len());
    match slots {
        Slots::Run { first, count } if stride == width => {
            out.copy_from_slice(&slab[first * width..(first + count) * width]);
        }
        Slots::Run { first, count } => {
            let run = &slab[first * stride..(first + count) * stride];
            for (row, out) in run.chunks_exact(stride).zip(out.chunks_exact_mut(width)) {
                out.copy_from_slice(&row[..width]);
            }
        }
        Slots::List(list) if width == 1 => {
            for (&slot, out) in list.iter().zip(out) {
                *out = match slot {
                    ABSENT => T::ZERO,
                    slot => slab[index_of(slot) * stride],
                };
            }
        }
        Slots::List(list) => {
            for (&slot, out) in list.iter().zip(out.chunks_exact_mut(width)) {
                match slot {
                    ABSENT => out.fill(T::ZERO),
                    slot => out.copy_from_slice(&row(slab, stride, slot)[..width]),
                }
            }
        }
    }
}

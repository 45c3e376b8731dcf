//! Zero elision: values that are zero are not sent. Exact to the bit, for any type of number.
//! Decoded by [`sparse`].

use crate::{places::ZeroElide, sparse};

/// Replaces `out` with the values that are not zero and their places. `places` is scratch memory,
/// which the caller keeps between batches to save allocations.
pub fn encode<T: ZeroElide>(values: &[T], places: &mut Vec<u64>, out: &mut Vec<u8>) {
    places.clear();
    T::append_occupied(values, places);
    sparse::encode(values, places, out);
}

//! Zero elision: what is zero is not sent. Exact, bit for bit; for any type of number. Decoded by
//! [`sparse`].

use crate::{places::ZeroElide, sparse};

/// Replaces `out` by the values that are not zero and their places. `places` is scratch, worth
/// keeping.
pub fn encode<T: ZeroElide>(values: &[T], places: &mut Vec<u64>, out: &mut Vec<u8>) {
    places.clear();
    T::append_occupied(values, places);
    sparse::encode(values, places, out);
}

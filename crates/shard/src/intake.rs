//! How a part of a push gets from its frame into the rows: the once-only gate, decoding, checks,
//! the combine rule and the updater.

pub(crate) mod combine;
pub(crate) mod contribute;
pub(crate) mod decode;
pub(crate) mod frontier;
pub(crate) mod gate;
pub(crate) mod stream;

//! The stages that a part of a push passes between its frame and the rows: the once-only gate,
//! decoding, validation, and the clocks that hold contributions until the frontier passes them.

pub(crate) mod clocks;
pub(crate) mod combine;
pub(crate) mod decode;
pub(crate) mod frontier;
pub(crate) mod gate;
pub(crate) mod stream;
pub(crate) mod validate;

//! What shrinks a message.
//!
//! Pure functions: bytes and numbers come in, bytes and numbers go out.

pub mod bf16;
mod bits;
pub mod bytes;
mod error;
pub mod f16;
pub mod fixed;
mod group;
pub mod keys;
pub mod one_bit;
mod places;
mod random;
mod sides;
pub mod sparse;
#[cfg(test)]
mod testing;
pub mod threshold;
pub mod top_k;
mod twin;
pub mod two_bit;
pub mod zeros;
pub use error::DecodeError;
pub use group::group_values;
pub use places::Word;

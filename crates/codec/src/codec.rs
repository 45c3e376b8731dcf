//! The list of codecs, and what each declares: its error bound, whether it keeps a residual, and
//! whether its encoded values can be added.

use crate::{bytes::ByteCodec, columns, fixed::FixedBits, group::group_values, threshold::Least, top_k::Percentage};

/// One step that makes a message smaller. `to_string` and `parse` convert it to and from its
/// [name](crate#names).
///
/// ```
/// use codec::{Codec, ValueCodec};
/// assert_eq!("bf16".parse(), Ok(Codec::Values(ValueCodec::Bf16)));
/// assert_eq!("topk=1.5%".parse::<Codec>().unwrap().to_string(), "topk=1.5%");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Codec {
    /// Sorted keys as gaps of few bits, runs as ranges.
    Keys,
    /// Key lists in full in every message, 8 bytes a key: the baseline for comparisons.
    Spelt,
    /// The KKT filter: weights outside the active set of an ℓ1 problem are left out. The shard
    /// reports the set.
    Kkt,
    /// The worker answers this share of its pulls, drawn at random, from its cache.
    Skip(Percentage),
    /// A codec for values.
    Values(ValueCodec),
    /// No error feedback: what is not sent is lost. For experiments.
    NoResidual,
    /// A codec for the bytes that the codecs before it made.
    Bytes(ByteCodec),
}

/// A codec for values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueCodec {
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Fixed point: this many bits a value and one step a block, rounded at random without bias.
    Fixed(FixedBits),
    /// The sign of each value and two means a group, with error feedback.
    OneBit,
    /// The sign of each value, whether it is beyond its side's mean, and four means a group, with
    /// error feedback.
    TwoBit,
    /// The largest values, this share of all, with error feedback.
    TopK(Percentage),
    /// Values of at least this magnitude, with error feedback.
    Threshold(Least),
    /// Values that are not zero, exactly.
    Zeros,
}

/// Whether encoded values of several senders can be added without decoding, for a route that
/// combines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Yes: encoded values are numbers, one for each place.
    PlaceByPlace,
    /// Yes, at the places for which both senders sent a value.
    WherePlacesMeet,
    /// No: each sender has scales of its own.
    Nothing,
}

/// How far a decoded value x̂ may lie from the value x that was encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ErrorBound {
    /// x̂ = x.
    Exact,
    /// \|x̂ − x\| ≤ max(`relative` · \|x\|, `absolute`) if \|x\| ≤ `largest`. A larger x is sent as
    /// `largest` with the sign of x.
    Value {
        /// The bound relative to the value.
        relative: f64,
        /// The bound for the smallest values.
        absolute: f64,
        /// The largest magnitude that is sent.
        largest: f32,
    },
    /// \|x̂ − x\| ≤ `share` times the largest magnitude in the block of x, plus a few times the
    /// smallest positive f32.
    Block {
        /// The number of values in a block.
        values: usize,
        /// The bound relative to the largest magnitude.
        share: f64,
    },
    /// ‖x̂ − x‖² ≤ `rest` · ‖x‖² over each group of `values` values. The difference stays in the
    /// residual.
    Norm {
        /// The number of values in a group; `None` for the whole batch.
        values: Option<usize>,
        /// The share of the squared norm that may be missing. It is below 1, so that repeated
        /// encoding sends everything in the end.
        rest: f64,
    },
    /// \|x̂ − x\| < `least`. The difference stays in the residual.
    Below {
        /// The threshold.
        least: f32,
    },
}

impl ValueCodec {
    /// Whether encoded values of several senders can be added.
    #[must_use]
    pub fn sums(self) -> Sums {
        match self {
            Self::Bf16 | Self::F16 => Sums::PlaceByPlace,
            Self::TopK(_) | Self::Threshold(_) | Self::Zeros => Sums::WherePlacesMeet,
            Self::Fixed(_) | Self::OneBit | Self::TwoBit => Sums::Nothing,
        }
    }

    /// The error bound of a decoded value, in a table whose rows are `width` wide.
    #[must_use]
    pub fn error(self, width: usize) -> ErrorBound {
        match self {
            Self::Bf16 => ErrorBound::Value {
                relative: f64::powi(2.0, -8),
                absolute: f64::powi(2.0, -134),
                largest: f32::from_bits(0x7F7F_0000),
            },
            Self::F16 => ErrorBound::Value {
                relative: f64::powi(2.0, -11),
                absolute: f64::powi(2.0, -25),
                largest: crate::f16::LARGEST,
            },
            Self::Fixed(bits) => {
                let levels = if bits.get() == 1 { 2.0 } else { 1.0 } / f64::from(bits.highest());
                // Slightly more, because the step and the product are rounded.
                ErrorBound::Block { values: columns::block_values(width), share: levels * (1.0 + 1e-6) }
            }
            Self::OneBit | Self::TwoBit => {
                let values = group_values(width);
                // (Σ|x|)² ≥ Σx², so a mean removes at least 1/n of its side's squares; slightly
                // less after rounding.
                ErrorBound::Norm { values: Some(values), rest: 1.0 - (1.0 - 1e-6) / values as f64 }
            }
            Self::TopK(share) => ErrorBound::Norm { values: None, rest: 1.0 - share.percent() / 100.0 },
            Self::Threshold(least) => ErrorBound::Below { least: least.get() },
            Self::Zeros => ErrorBound::Exact,
        }
    }

    /// Whether the codec keeps a residual for each row (error feedback).
    #[must_use]
    pub fn keeps_residual(self) -> bool {
        matches!(self, Self::OneBit | Self::TwoBit | Self::TopK(_) | Self::Threshold(_))
    }
}

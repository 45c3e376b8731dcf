//! Which codecs there are, and what each declares: its error, its state, and what sums of its
//! encoded values mean.

use crate::{bytes::ByteCodec, columns, fixed::FixedBits, group::group_values, threshold::Least, top_k::Percentage};

/// One step that shrinks a message. As text it is a name of the [list](crate#names), by `to_string`
/// and `parse`.
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
    /// Key lists in full in every message, 8 bytes a key: what others are compared with.
    Spelt,
    /// Coordinates of an ℓ1 problem that stay at zero for now are left out, as the shard says.
    Kkt,
    /// A share of the pulls, drawn at random, is answered by the copies that the last ones left.
    Skip(Percentage),
    /// What happens to the values.
    Values(ValueCodec),
    /// Error feedback is left out: what is not sent is lost. For experiments.
    NoResidual,
    /// What happens to the bytes that the others made.
    Bytes(ByteCodec),
}

/// What shrinks values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueCodec {
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
    /// So many bits a value and a step a block, rounded at random without bias.
    Fixed(FixedBits),
    /// The side of zero, two means a row, error feedback.
    OneBit,
    /// The side of zero and of its mean, four means a row, error feedback.
    TwoBit,
    /// A share of the values, the largest, error feedback.
    TopK(Percentage),
    /// Values of at least this magnitude, error feedback.
    Threshold(Least),
    /// Values that are not zero.
    Zeros,
}

/// What adding up encoded values of several senders means, for a route that would rather not decode
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Place by place, they are numbers that can be added as they are.
    PlaceByPlace,
    /// They can be added where both have a value for the same place.
    WherePlacesMeet,
    /// Nothing: each sender has scales of its own.
    Nothing,
}

/// How far a decoded value x̂ may lie from the value x that was encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ErrorBound {
    /// Not at all.
    Exact,
    /// \|x̂ − x\| ≤ max(`relative` · \|x\|, `absolute`) as long as \|x\| ≤ `largest`; beyond, that
    /// is sent.
    Value {
        /// The share of the value.
        relative: f64,
        /// For the smallest values.
        absolute: f64,
        /// What is sent for everything larger.
        largest: f32,
    },
    /// \|x̂ − x\| ≤ `share` times the largest magnitude among the `values` values of its block, and
    /// a few of the smallest numbers there are.
    Block {
        /// How many values a block has.
        values: usize,
        /// The share of the largest.
        share: f64,
    },
    /// ‖x̂ − x‖² ≤ `rest` · ‖x‖² over each `values` values; what is missing stays in the residual.
    Norm {
        /// How many values the norms are over; `None` for all of a batch.
        values: Option<usize>,
        /// The share of the squared norm that may be missing. Below 1: whatever is encoded again
        /// and again gets through.
        rest: f64,
    },
    /// \|x̂ − x\| < `least`; what is missing stays in the residual.
    Below {
        /// The threshold.
        least: f32,
    },
}

impl ValueCodec {
    /// What sums of encoded values mean.
    #[must_use]
    pub fn sums(self) -> Sums {
        match self {
            Self::Bf16 | Self::F16 => Sums::PlaceByPlace,
            Self::TopK(_) | Self::Threshold(_) | Self::Zeros => Sums::WherePlacesMeet,
            Self::Fixed(_) | Self::OneBit | Self::TwoBit => Sums::Nothing,
        }
    }

    /// How far off a decoded value may be, in a table whose rows are `width` wide.
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
                // A hair more, since the step and the product are rounded.
                ErrorBound::Block { values: columns::block_values(width), share: levels * (1.0 + 1e-6) }
            }
            Self::OneBit | Self::TwoBit => {
                let values = group_values(width);
                // (Σ|x|)² ≥ Σx², so a mean takes away at least 1/n of its side's squares; a hair
                // less once it is rounded.
                ErrorBound::Norm { values: Some(values), rest: 1.0 - (1.0 - 1e-6) / values as f64 }
            }
            Self::TopK(share) => ErrorBound::Norm { values: None, rest: 1.0 - share.percent() / 100.0 },
            Self::Threshold(least) => ErrorBound::Below { least: least.get() },
            Self::Zeros => ErrorBound::Exact,
        }
    }

    /// Whether it remembers, by key, what it has not yet sent.
    #[must_use]
    pub fn keeps_residual(self) -> bool {
        matches!(self, Self::OneBit | Self::TwoBit | Self::TopK(_) | Self::Threshold(_))
    }
}

//! Payload formats: the number in a frame that tells the receiver how to decode a payload.

use crate::{
    DecodeError, bf16, codec::ValueCodec, columns, f16, fixed::FixedBits, group::group_values, grouped_sign, sparse,
};

/// The format of one encoding step. Several codecs may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadFormat {
    /// [`crate::keys`].
    Keys,
    /// Encoded values.
    Values(ValueFormat),
    /// [`crate::bytes`].
    Bytes,
}

/// The format of encoded values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFormat {
    /// [`crate::bf16`].
    Bf16,
    /// [`crate::f16`].
    F16,
    /// [`crate::fixed`].
    Fixed(FixedBits),
    /// [`crate::grouped_sign`] with one bit.
    OneBit,
    /// [`crate::grouped_sign`] with two.
    TwoBit,
    /// [`crate::sparse`]: top-k, threshold and zero elision.
    Sparse,
}

/// The number of fixed point with b bits is this plus b.
const FIXED: u8 = 16;

impl PayloadFormat {
    /// The format's number in a frame; never 0.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Keys => 1,
            Self::Values(ValueFormat::Bf16) => 2,
            Self::Values(ValueFormat::F16) => 3,
            Self::Values(ValueFormat::OneBit) => 4,
            Self::Values(ValueFormat::TwoBit) => 5,
            Self::Values(ValueFormat::Sparse) => 6,
            Self::Bytes => 7,
            Self::Values(ValueFormat::Fixed(bits)) => FIXED + bits.get(),
        }
    }

    /// The format with this number.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Keys),
            2 => Some(Self::Values(ValueFormat::Bf16)),
            3 => Some(Self::Values(ValueFormat::F16)),
            4 => Some(Self::Values(ValueFormat::OneBit)),
            5 => Some(Self::Values(ValueFormat::TwoBit)),
            6 => Some(Self::Values(ValueFormat::Sparse)),
            7 => Some(Self::Bytes),
            _ => FixedBits::new(id.checked_sub(FIXED)?).map(|bits| Self::Values(ValueFormat::Fixed(bits))),
        }
    }
}

impl ValueFormat {
    /// The format that `codec` writes.
    #[must_use]
    pub fn of(codec: ValueCodec) -> Self {
        match codec {
            ValueCodec::Bf16 => Self::Bf16,
            ValueCodec::F16 => Self::F16,
            ValueCodec::Fixed(bits) => Self::Fixed(bits),
            ValueCodec::OneBit => Self::OneBit,
            ValueCodec::TwoBit => Self::TwoBit,
            ValueCodec::TopK(_) | ValueCodec::Threshold(_) | ValueCodec::Zeros => Self::Sparse,
        }
    }

    /// Decodes `out.len()` values of rows that are `width` wide. Only sparse values allocate
    /// memory, at most twice the encoded bytes.
    pub fn decode(self, bytes: &[u8], width: usize, out: &mut [f32]) -> Result<(), DecodeError> {
        match self {
            Self::Bf16 => bf16::decode(bytes, out),
            Self::F16 => f16::decode(bytes, out),
            Self::Fixed(bits) => columns::decode(bytes, width, bits, out),
            Self::OneBit => grouped_sign::decode::<1>(bytes, group_values(width), out),
            Self::TwoBit => grouped_sign::decode::<2>(bytes, group_values(width), out),
            Self::Sparse => sparse::decode(bytes, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_ids_round_trip_and_unknown_ids_are_refused() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|&id| PayloadFormat::from_id(id).is_some()).collect();
        assert_eq!(known, (1..=7).chain(17..=32).collect::<Vec<_>>());
        assert!(known.iter().all(|&id| PayloadFormat::from_id(id).map(PayloadFormat::id) == Some(id)));
    }
}

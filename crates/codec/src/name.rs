//! Names of codecs, as they appear in a table's spec and on the command line: parsing and printing.

use std::{fmt, str::FromStr};

use crate::{
    bytes::{ByteCodec, ZstdLevel},
    codec::{Codec, ValueCodec},
    fixed::FixedBits,
    threshold::Least,
    top_k::Percentage,
};

/// Why a text is not the name of a codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// No codec has this name.
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The codec exists, but its number is missing or out of range.
    Number {
        /// The name as given.
        name: String,
        /// What to write instead.
        wanted: &'static str,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => write!(
                f,
                "there is no codec '{name}': choose from keys, bf16, f16, fixed1 … fixed16, 1bit, 2bit, topk=1%, \
                 threshold=0.01, zeros, lz4, zstd, kkt, skip=50%, spelt"
            ),
            Self::Number { name, wanted } => write!(f, "'{name}' does not name a codec: write {wanted}"),
        }
    }
}

impl std::error::Error for NameError {}

impl FromStr for Codec {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let plain = match name {
            "keys" => Some(Self::Keys),
            "spelt" => Some(Self::Spelt),
            "kkt" => Some(Self::Kkt),
            "noresidual" => Some(Self::NoResidual),
            "bf16" => Some(Self::Values(ValueCodec::Bf16)),
            "f16" => Some(Self::Values(ValueCodec::F16)),
            "1bit" => Some(Self::Values(ValueCodec::OneBit)),
            "2bit" => Some(Self::Values(ValueCodec::TwoBit)),
            "zeros" => Some(Self::Values(ValueCodec::Zeros)),
            "lz4" => Some(Self::Bytes(ByteCodec::Lz4)),
            "zstd" => Some(Self::Bytes(ByteCodec::Zstd { level: ZstdLevel::default() })),
            _ => None,
        };
        plain.map_or_else(|| with_number(name), Ok)
    }
}

fn with_number(name: &str) -> Result<Codec, NameError> {
    let (codec, wanted) = if let Some(bits) = name.strip_prefix("fixed") {
        let bits = number(bits).and_then(FixedBits::new);
        (bits.map(|bits| Codec::Values(ValueCodec::Fixed(bits))), "a number of bits from fixed1 to fixed16")
    } else if let Some(share) = name.strip_prefix("topk") {
        let share = share.strip_prefix('=').and_then(|share| share.strip_suffix('%'));
        let share = share.and_then(number).and_then(Percentage::from_percent);
        (share.map(|share| Codec::Values(ValueCodec::TopK(share))), "a share above 0% and up to 100%, as in topk=1.5%")
    } else if let Some(share) = name.strip_prefix("skip") {
        let share = share.strip_prefix('=').and_then(|share| share.strip_suffix('%'));
        let share = share.and_then(number).and_then(Percentage::from_percent).filter(|share| share.percent() < 100.0);
        (share.map(Codec::Skip), "a share above 0% and below 100%, as in skip=50%")
    } else if let Some(least) = name.strip_prefix("threshold") {
        let least = least.strip_prefix('=').and_then(number).and_then(Least::new);
        (least.map(|least| Codec::Values(ValueCodec::Threshold(least))), "a positive number, as in threshold=0.01")
    } else if let Some(level) = name.strip_prefix("zstd") {
        let level = level.strip_prefix('=').and_then(number).and_then(ZstdLevel::new);
        (level.map(|level| Codec::Bytes(ByteCodec::Zstd { level })), "a level from zstd=1 to zstd=19")
    } else {
        return Err(NameError::Unknown { name: name.to_owned() });
    };
    codec.ok_or(NameError::Number { name: name.to_owned(), wanted })
}

/// Parses a number that begins with a digit, which rules out signs and "inf".
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.starts_with(|first: char| first.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys => write!(f, "keys"),
            Self::Spelt => write!(f, "spelt"),
            Self::Kkt => write!(f, "kkt"),
            Self::Skip(share) => write!(f, "skip={}%", share.percent()),
            Self::NoResidual => write!(f, "noresidual"),
            Self::Values(codec) => codec.fmt(f),
            Self::Bytes(codec) => codec.fmt(f),
        }
    }
}

impl fmt::Display for ValueCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bf16 => write!(f, "bf16"),
            Self::F16 => write!(f, "f16"),
            Self::Fixed(bits) => write!(f, "fixed{}", bits.get()),
            Self::OneBit => write!(f, "1bit"),
            Self::TwoBit => write!(f, "2bit"),
            Self::TopK(share) => write!(f, "topk={}%", share.percent()),
            Self::Threshold(least) => write!(f, "threshold={}", least.get()),
            Self::Zeros => write!(f, "zeros"),
        }
    }
}

impl fmt::Display for ByteCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => write!(f, "lz4"),
            Self::Zstd { level } if *level == ZstdLevel::default() => write!(f, "zstd"),
            Self::Zstd { level } => write!(f, "zstd={}", level.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codec_names_print_as_they_parse() {
        let fixed = (1..=16).map(|bits| format!("fixed{bits}"));
        let others = [
            "keys",
            "bf16",
            "f16",
            "1bit",
            "2bit",
            "zeros",
            "lz4",
            "zstd",
            "zstd=19",
            "spelt",
            "kkt",
            "noresidual",
            "skip=50%",
            "topk=1%",
            "topk=1.5%",
            "topk=0.0000001%",
            "topk=100%",
            "threshold=0.01",
            "threshold=1",
            "threshold=0.000000000000000000000000000000000000000000001",
        ];
        for name in fixed.chain(others.map(str::to_owned)) {
            assert_eq!(name.parse::<Codec>().map(|codec| codec.to_string()), Ok(name));
        }
        assert_eq!("zstd=1".parse::<Codec>(), "zstd".parse());
        assert_eq!("topk=1.50%".parse::<Codec>(), "topk=1.5%".parse());
    }

    #[test]
    fn codec_name_errors_say_what_to_write() {
        let table = [
            ("", "no codec ''"),
            ("bf32", "no codec 'bf32'"),
            ("Keys", "no codec 'Keys'"),
            ("fixed", "fixed1 to fixed16"),
            ("fixed0", "fixed1 to fixed16"),
            ("fixed17", "fixed1 to fixed16"),
            ("fixed+8", "fixed1 to fixed16"),
            ("topk", "as in topk=1.5%"),
            ("topk=1.5", "as in topk=1.5%"),
            ("topk=0%", "above 0%"),
            ("topk=101%", "up to 100%"),
            ("topk=nan%", "above 0%"),
            ("skip=100%", "below 100%"),
            ("threshold=0", "a positive number"),
            ("threshold=-1", "a positive number"),
            ("threshold=inf", "a positive number"),
            ("threshold=1e99", "a positive number"),
            ("zstd=0", "zstd=1 to zstd=19"),
            ("zstd=20", "zstd=1 to zstd=19"),
        ];
        for (name, said) in table {
            let error = name.parse::<Codec>().expect_err(name).to_string();
            assert!(error.contains(said), "'{name}': {error}");
        }
    }
}

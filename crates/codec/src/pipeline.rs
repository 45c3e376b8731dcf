//! Codec pipeline: the codecs of a table in one direction, in order, checked to go together.

use std::fmt;

use types::{NumberType, UpdaterSpec};

use crate::{
    bytes::ByteCodec,
    codec::{Codec, ErrorBound, ValueCodec},
    name::NameError,
    top_k::Percentage,
};

/// Codecs in their order: `keys` or `spelt`, `kkt`, `skip`, one for values, `noresidual`, one for
/// bytes. Each is optional and occurs at most once.
///
/// ```
/// let pipeline = codec::Pipeline::parse(["keys", "bf16", "lz4"]).unwrap();
/// assert_eq!(pipeline.to_string(), "keys, bf16, lz4");
/// assert!(codec::Pipeline::parse(["lz4", "bf16"]).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pipeline {
    /// In order, as [`Pipeline::new`] has checked.
    codecs: Vec<Codec>,
}

/// Why codecs do not go together, or do not go with a table.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineError {
    /// A name is not that of a codec.
    Name(NameError),
    /// Two codecs are of the same kind.
    Two {
        /// The first of the two.
        first: Codec,
        /// The second of the two.
        second: Codec,
    },
    /// Two codecs are in the wrong order.
    Order {
        /// The first as given, which must come later.
        first: Codec,
        /// The second as given, which must come earlier.
        second: Codec,
    },
    /// A lossy codec is named for a table whose numbers are not f32.
    Number {
        /// The codec.
        codec: ValueCodec,
        /// The table's type of number.
        number: NumberType,
    },
}

/// A combination of codecs and table that works, but badly.
#[derive(Clone, Debug, PartialEq)]
pub enum PipelineWarning {
    /// Error feedback delays part of each gradient, and this updater applies a late gradient
    /// differently.
    FeedbackIntoUpdater {
        /// The codec with error feedback.
        codec: ValueCodec,
        /// The updater, whose steps are not linear in the gradient.
        updater: String,
    },
}

impl Pipeline {
    /// Checks that the codecs go together.
    pub fn new(codecs: Vec<Codec>) -> Result<Self, PipelineError> {
        for pair in codecs.windows(2) {
            let first = pair[0];
            let second = pair[1];
            match rank(first).cmp(&rank(second)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Err(PipelineError::Two { first, second }),
                std::cmp::Ordering::Greater => return Err(PipelineError::Order { first, second }),
            }
        }
        Ok(Self { codecs })
    }

    /// Parses the names of codecs, in order.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, PipelineError> {
        let codecs = names.into_iter().map(|name| name.trim().parse().map_err(PipelineError::Name));
        Self::new(codecs.collect::<Result<_, _>>()?)
    }

    /// All codecs, in order.
    #[must_use]
    pub fn codecs(&self) -> &[Codec] {
        &self.codecs
    }

    /// Whether key lists are encoded (codec `keys`).
    #[must_use]
    pub fn shortens_keys(&self) -> bool {
        self.codecs.contains(&Codec::Keys)
    }

    /// Whether key lists go in full in every message (codec `spelt`).
    #[must_use]
    pub fn spells_keys(&self) -> bool {
        self.codecs.contains(&Codec::Spelt)
    }

    /// Whether the shard reports the active set and workers leave out the other weights (codec
    /// `kkt`).
    #[must_use]
    pub fn filters_by_kkt(&self) -> bool {
        self.codecs.contains(&Codec::Kkt)
    }

    /// The share of pulls that the worker answers from its cache (codec `skip`).
    #[must_use]
    pub fn skips(&self) -> Option<Percentage> {
        self.codecs.iter().find_map(|codec| if let Codec::Skip(share) = codec { Some(*share) } else { None })
    }

    /// Whether residuals are dropped (codec `noresidual`).
    #[must_use]
    pub fn drops_residuals(&self) -> bool {
        self.codecs.contains(&Codec::NoResidual)
    }

    /// Whether decoded values may differ from the encoded ones.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.values().is_some_and(|codec| codec.error(1) != ErrorBound::Exact)
    }

    /// The codec for values.
    #[must_use]
    pub fn values(&self) -> Option<ValueCodec> {
        self.codecs.iter().find_map(|codec| if let Codec::Values(codec) = codec { Some(*codec) } else { None })
    }

    /// The codec for bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<ByteCodec> {
        self.codecs.iter().find_map(|codec| if let Codec::Bytes(codec) = codec { Some(*codec) } else { None })
    }

    /// Checks the codecs against a table that holds numbers of type `number` and applies gradients
    /// by `updater`.
    pub fn check(&self, number: NumberType, updater: &UpdaterSpec) -> Result<Option<PipelineWarning>, PipelineError> {
        let Some(codec) = self.values() else { return Ok(None) };
        if number != NumberType::F32 && codec.error(1) != ErrorBound::Exact {
            return Err(PipelineError::Number { codec, number });
        }
        let late = codec.keeps_residual() && !self.drops_residuals() && !follows_the_sum(updater);
        Ok(late.then(|| PipelineWarning::FeedbackIntoUpdater { codec, updater: updater.to_string() }))
    }
}

/// The place of a codec in a pipeline: codecs go in rising rank.
fn rank(codec: Codec) -> u8 {
    match codec {
        Codec::Keys | Codec::Spelt => 0,
        Codec::Kkt => 1,
        Codec::Skip(_) => 2,
        Codec::Values(_) => 3,
        Codec::NoResidual => 4,
        Codec::Bytes(_) => 5,
    }
}

/// Whether a late gradient has, in the end, the effect of a timely one at a constant learning rate.
/// This holds for updaters whose step is linear in the gradient. The steps of others depend on
/// squares or signs of the gradients that arrive together.
pub(crate) fn follows_the_sum(updater: &UpdaterSpec) -> bool {
    match updater {
        UpdaterSpec::Sum | UpdaterSpec::Sgd { .. } | UpdaterSpec::Momentum { .. } => true,
        UpdaterSpec::Assign
        | UpdaterSpec::Adagrad { .. }
        | UpdaterSpec::Adam { .. }
        | UpdaterSpec::Ftrl { .. }
        | UpdaterSpec::Proximal { .. }
        | UpdaterSpec::Custom { .. } => false,
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, codec) in self.codecs.iter().enumerate() {
            write!(f, "{}{codec}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for PipelineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::Two { first, second } => write!(f, "{first} and {second} do not go together: leave one out"),
            Self::Order { first, second } => {
                write!(f, "{second} cannot come after {first}: keys come first, then kkt, skip, values, lz4 or zstd")
            }
            Self::Number { codec, number } => {
                write!(f, "{codec} is for tables of f32, but this table holds {number:?}: use zeros, lz4 or zstd")
            }
        }
    }
}

impl std::error::Error for PipelineError {}

impl fmt::Display for PipelineWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FeedbackIntoUpdater { codec, updater } => write!(
                f,
                "{codec} sends late what it leaves out, and {updater} applies late gradients differently from timely \
                 ones: expect slower learning, or use sum, sgd or momentum"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipeline_parse_accepts_or_refuses_each_case() {
        let table: [(&[&str], &str); 19] = [
            (&[], "ok"),
            (&["keys"], "ok"),
            (&["bf16"], "ok"),
            (&["lz4"], "ok"),
            (&["keys", "bf16", "lz4"], "ok"),
            (&["keys", "zstd=3"], "ok"),
            (&["1bit", "zstd"], "ok"),
            (&["keys", "keys"], "keys and keys do not go together"),
            (&["bf16", "topk=1%"], "bf16 and topk=1% do not go together"),
            (&["zeros", "f16"], "zeros and f16 do not go together"),
            (&["lz4", "zstd"], "lz4 and zstd do not go together"),
            (&["bf16", "keys"], "keys cannot come after bf16"),
            (&["lz4", "bf16"], "bf16 cannot come after lz4"),
            (&["keys", "lz4", "keys"], "keys cannot come after lz4"),
            (&["keys", "kkt", "fixed8", "zstd"], "ok"),
            (&["spelt", "skip=50%", "1bit", "noresidual"], "ok"),
            (&["keys", "spelt"], "keys and spelt do not go together"),
            (&["fixed8", "kkt"], "kkt cannot come after fixed8"),
            (&["keys", "lz5"], "there is no codec 'lz5'"),
        ];
        for (names, said) in table {
            let result = Pipeline::parse(names.iter().copied());
            let text = result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
            assert!(text.starts_with(said), "{names:?}: {text}");
            if let Ok(pipeline) = result {
                let again = pipeline.to_string();
                assert_eq!(Pipeline::parse(again.split(',').filter(|name| !name.is_empty())), Ok(pipeline));
            }
        }
    }

    #[test]
    fn pipeline_check_accepts_warns_or_refuses_each_table() {
        let rate = 0.1;
        let adagrad = UpdaterSpec::Adagrad { rate, epsilon: 1e-8 };
        let table = [
            ("bf16", NumberType::F32, UpdaterSpec::Sum, "ok"),
            ("bf16", NumberType::F32, adagrad.clone(), "ok"),
            ("fixed8", NumberType::F32, adagrad.clone(), "ok"),
            ("1bit", NumberType::F32, UpdaterSpec::Sum, "ok"),
            ("1bit", NumberType::F32, UpdaterSpec::Sgd { rate }, "ok"),
            ("topk=1%", NumberType::F32, UpdaterSpec::Momentum { rate, momentum: 0.9 }, "ok"),
            ("1bit", NumberType::F32, adagrad.clone(), "1bit sends late"),
            ("2bit", NumberType::F32, UpdaterSpec::Assign, "2bit sends late"),
            ("topk=1%", NumberType::F32, UpdaterSpec::Proximal { rate, l1: 1.0 }, "topk=1% sends late"),
            ("threshold=1", NumberType::F32, adagrad.clone(), "threshold=1 sends late"),
            ("zeros", NumberType::I64, UpdaterSpec::Sum, "ok"),
            ("zeros", NumberType::F64, adagrad.clone(), "ok"),
            ("lz4", NumberType::I64, UpdaterSpec::Sum, "ok"),
            ("keys", NumberType::F64, adagrad, "ok"),
            ("bf16", NumberType::F64, UpdaterSpec::Sum, "bf16 is for tables of f32"),
            ("topk=1%", NumberType::I64, UpdaterSpec::Sum, "topk=1% is for tables of f32"),
        ];
        for (name, number, updater, said) in table {
            let text = match Pipeline::parse([name]).unwrap().check(number, &updater) {
                Ok(None) => "ok".to_owned(),
                Ok(Some(warning)) => warning.to_string(),
                Err(error) => error.to_string(),
            };
            assert!(text.starts_with(said), "{name} with {number:?} and {updater}: {text}");
        }
    }
}

//! Value encoder: one value codec for one table, with the residuals that it keeps between batches.

use crate::{
    DecodeError, Meter, bf16,
    codec::ValueCodec,
    columns, f16,
    fixed::{Draw, FixedBits},
    format::ValueFormat,
    group::group_values,
    grouped_sign,
    residuals::{BatchRows, RowResiduals},
    threshold::{self, Least},
    top_k::{self, Percentage},
    zeros,
};

/// Encodes batches of values of one table.
///
/// ```
/// use codec::{RowResiduals, BatchRows, ValueCodec, ValueEncoder, ValueFormat};
/// let mut encoder = ValueEncoder::new(ValueCodec::OneBit, 2, 1000, 7);
/// let (mut bytes, mut sent) = (Vec::new(), [0.0; 4]);
/// encoder.encode(BatchRows::List(&[3, 9]), &[1.0, 3.0, -2.0, -2.0], 0, &mut bytes);
/// ValueFormat::OneBit.decode(&bytes, 2, &mut sent)?;
/// assert_eq!(sent, [2.0, 2.0, -2.0, -2.0]);
/// assert_eq!(encoder.residuals().map(RowResiduals::rows), Some(1));
/// # Ok::<(), codec::DecodeError>(())
/// ```
#[derive(Debug)]
pub struct ValueEncoder {
    codec: ValueCodec,
    width: usize,
    kind: Kind,
    places: Vec<u64>,
    scratch: top_k::TopKScratch,
    column: Vec<f32>,
}

/// A value codec together with its state.
#[derive(Debug)]
enum Kind {
    Bf16,
    F16,
    Fixed(FixedBits, u64),
    Zeros,
    OneBit(RowResiduals),
    TwoBit(RowResiduals),
    TopK(Percentage, RowResiduals),
    Threshold(Least, RowResiduals),
}

impl ValueEncoder {
    /// An encoder for rows of `width` values. A codec with residuals keeps those of at most
    /// `max_rows` rows. A codec that draws random numbers draws them from `seed`.
    #[must_use]
    pub fn new(codec: ValueCodec, width: usize, max_rows: usize, seed: u64) -> Self {
        let residuals = || RowResiduals::new(width, max_rows);
        let kind = match codec {
            ValueCodec::Bf16 => Kind::Bf16,
            ValueCodec::F16 => Kind::F16,
            ValueCodec::Fixed(bits) => Kind::Fixed(bits, seed),
            ValueCodec::Zeros => Kind::Zeros,
            ValueCodec::OneBit => Kind::OneBit(residuals()),
            ValueCodec::TwoBit => Kind::TwoBit(residuals()),
            ValueCodec::TopK(share) => Kind::TopK(share, residuals()),
            ValueCodec::Threshold(least) => Kind::Threshold(least, residuals()),
        };
        Self { codec, width, kind, places: Vec::new(), scratch: top_k::TopKScratch::default(), column: Vec::new() }
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> ValueCodec {
        self.codec
    }

    /// The residuals, if the codec keeps them.
    #[must_use]
    pub fn residuals(&self) -> Option<&RowResiduals> {
        match &self.kind {
            Kind::Bf16 | Kind::F16 | Kind::Fixed(..) | Kind::Zeros => None,
            Kind::OneBit(residuals) | Kind::TwoBit(residuals) => Some(residuals),
            Kind::TopK(_, residuals) | Kind::Threshold(_, residuals) => Some(residuals),
        }
    }

    /// The residuals, to add those of a checkpoint.
    pub fn residuals_mut(&mut self) -> Option<&mut RowResiduals> {
        match &mut self.kind {
            Kind::Bf16 | Kind::F16 | Kind::Fixed(..) | Kind::Zeros => None,
            Kind::OneBit(residuals) | Kind::TwoBit(residuals) => Some(residuals),
            Kind::TopK(_, residuals) | Kind::Threshold(_, residuals) => Some(residuals),
        }
    }

    /// Replaces `out` with the encoded `values` of `rows`. The random numbers follow from the seed
    /// and `sequence`, so the caller passes a different `sequence` for each batch.
    ///
    /// # Panics
    /// If the codec has error feedback, and there are not `width` values for every row, or more
    /// than 2³² values.
    pub fn encode(&mut self, rows: BatchRows<'_>, values: &[f32], sequence: u64, out: &mut Vec<u8>) {
        let Self { width, kind, places, scratch, column, .. } = self;
        let group = group_values(*width);
        match kind {
            Kind::Bf16 => bf16::encode(values, out),
            Kind::F16 => f16::encode(values, out),
            Kind::Fixed(bits, seed) => {
                columns::encode(values, *width, *bits, Draw { seed: *seed, sequence }, column, out);
            }
            Kind::Zeros => zeros::encode(values, places, out),
            Kind::OneBit(residuals) => residuals.with(rows, |kept| grouped_sign::encode::<1>(values, kept, group, out)),
            Kind::TwoBit(residuals) => residuals.with(rows, |kept| grouped_sign::encode::<2>(values, kept, group, out)),
            Kind::TopK(share, residuals) => {
                residuals.with(rows, |kept| top_k::encode(values, kept, *share, scratch, out));
            }
            Kind::Threshold(least, residuals) => {
                residuals.with(rows, |kept| threshold::encode(values, kept, *least, places, out));
            }
        }
    }

    /// Adds to `meter` the error of `encoded`, which `values` of `rows` were just encoded to. With
    /// error feedback, the error is relative to x = g + e, that is, what was sent plus the new
    /// residual. Costs a decoding, so callers measure a sample of batches.
    pub fn measure(
        &mut self,
        rows: BatchRows<'_>,
        values: &[f32],
        encoded: &[u8],
        meter: &mut Meter,
    ) -> Result<(), DecodeError> {
        let mut decoded = vec![0.0; values.len()];
        ValueFormat::of(self.codec()).decode(encoded, self.width, &mut decoded)?;
        match self.residuals_mut() {
            None => meter.compare(values, &decoded),
            Some(residuals) => residuals.with(rows, |kept| {
                let x: Vec<f32> = decoded.iter().zip(kept.iter()).map(|(sent, left)| sent + left).collect();
                meter.compare(&x, &decoded);
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codec, testing::noise};

    fn codec(name: &str) -> ValueCodec {
        match name.parse() {
            Ok(Codec::Values(codec)) => codec,
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn feedback_alone_keeps_residuals_and_sends_everything_in_the_end() {
        let rows = BatchRows::List(&[2, 5, 9]);
        let values = noise(3 * 70, 1);
        for name in ["bf16", "f16", "fixed8", "1bit", "2bit", "topk=10%", "threshold=0.7", "zeros"] {
            let mut encoder = ValueEncoder::new(codec(name), 70, 10, 1);
            let mut bytes = Vec::new();
            let mut sent = vec![0.0; values.len()];
            let mut total = vec![0f64; values.len()];
            let rounds = 400;
            for sequence in 0..rounds {
                encoder.encode(rows, &values, sequence, &mut bytes);
                ValueFormat::of(encoder.codec()).decode(&bytes, 70, &mut sent).unwrap();
                total.iter_mut().zip(&sent).for_each(|(total, sent)| *total += f64::from(*sent));
            }
            assert_eq!(
                encoder.residuals().map(RowResiduals::rows),
                encoder.codec().keeps_residual().then_some(3),
                "{name}"
            );
            // Error feedback lags by a bounded amount; the error of random rounding grows as the
            // root of the rounds.
            for (total, value) in total.iter().zip(&values) {
                let mean = total / rounds as f64;
                assert!((mean - f64::from(*value)).abs() < 0.08, "{name}: {value} arrives as {mean}");
            }
        }
    }

    #[test]
    fn measure_counts_the_error() {
        let values = noise(1000, 1);
        for (name, from, to) in [("zeros", 0.0, 0.0), ("bf16", 1e-4, 4e-3), ("1bit", 0.3, 0.7), ("topk=10%", 0.7, 0.95)]
        {
            let mut encoder = ValueEncoder::new(codec(name), 100, 100, 1);
            let mut meter = Meter::default();
            let mut bytes = Vec::new();
            let rows = BatchRows::List(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            encoder.encode(rows, &values, 0, &mut bytes);
            encoder.measure(rows, &values, &bytes, &mut meter).unwrap();
            let error = meter.relative_error().unwrap();
            assert!((from..=to).contains(&error), "{name}: {error}");
        }
    }
}

//! Payload encoder and decoder: apply a table's codec pipeline to whole payloads. The encoder turns
//! raw numbers into bytes and their formats; the decoder turns them back.

use types::NumberType;

use crate::{
    BatchRows, ByteCodec, BytesDecoder, BytesEncoder, DecodeError, Meter, PayloadFormat, Pipeline, ValueCodec,
    ValueEncoder, ValueFormat, sparse, zeros,
};

/// The encoder measures the error of one batch in this many, because measuring costs a decoding.
const MEASURED: u64 = 64;

/// A function that returns a time in nanoseconds, for the meters. The encoded bytes never depend on
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(pub fn() -> u64);

impl Default for Stopwatch {
    /// A stopwatch that always reads 0.
    fn default() -> Self {
        Self(|| 0)
    }
}

/// The numbers of the formats that a payload went through, in order, filled up with zeros. They are
/// all that a receiver needs to decode it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formats(pub [u8; 8]);

impl Formats {
    /// Appends a format.
    #[must_use]
    pub fn then(mut self, format: PayloadFormat) -> Self {
        if let Some(free) = self.0.iter_mut().find(|id| **id == 0) {
            *free = format.id();
        }
        self
    }

    /// The format of the values, and whether they are compressed. Skips the format of the keys,
    /// which has no effect on values.
    fn of_values(self) -> Result<(Option<ValueFormat>, bool), DecodeError> {
        let mut found = (None, false);
        for id in self.0.into_iter().take_while(|id| *id != 0) {
            match (PayloadFormat::from_id(id).ok_or(DecodeError::Tag(id))?, found) {
                (PayloadFormat::Keys, (None, false)) => {}
                (PayloadFormat::Values(format), (None, false)) => found.0 = Some(format),
                (PayloadFormat::Bytes, (_, false)) => found.1 = true,
                _ => return Err(DecodeError::Tag(id)),
            }
        }
        Ok(found)
    }

    /// Whether the values are neither encoded nor compressed.
    #[must_use]
    pub fn leaves_values(self) -> bool {
        self.of_values() == Ok((None, false))
    }
}

/// Encodes the values of one table in one direction, batch after batch.
///
/// ```
/// use codec::{Pipeline, PayloadDecoder, PayloadEncoder, BatchRows, Stopwatch};
/// use types::NumberType;
/// let mut encoder = PayloadEncoder::new(&Pipeline::parse(["bf16"]).unwrap(), NumberType::F32, 2, 7, Stopwatch::default());
/// let values = [1.0f32, 0.5, -2.0, 4.0];
/// let (bytes, formats) = encoder.encode(BatchRows::List(&[3, 9]), bytemuck::cast_slice(&values)).expect("shrinks");
/// assert_eq!(bytes.len(), 8);
/// let mut again = [0f32; 4];
/// PayloadDecoder::default().decode(formats, &bytes, NumberType::F32, 2, bytemuck::cast_slice_mut(&mut again)).unwrap();
/// assert_eq!(again, values);
/// ```
pub struct PayloadEncoder {
    number: NumberType,
    width: usize,
    values: Option<Values>,
    bytes: Option<BytesEncoder>,
    /// The number of batches encoded.
    sequence: u64,
    meter: Meter,
    stopwatch: Stopwatch,
    scratch: Vec<u8>,
    places: Vec<u64>,
}

enum Values {
    /// A codec with its state.
    Encoder(Box<ValueEncoder>),
    /// A codec and its seed, without state: residuals are dropped after each batch.
    Forgetful(ValueCodec, u64),
    /// Zero elision, for any type of number.
    Zeros,
}

/// The largest number of rows whose residuals an encoder keeps.
const RESIDUAL_ROWS: usize = 1 << 24;

impl PayloadEncoder {
    /// An encoder for rows of `width` numbers. It draws random numbers from `seed`.
    #[must_use]
    pub fn new(pipeline: &Pipeline, number: NumberType, width: usize, seed: u64, stopwatch: Stopwatch) -> Self {
        let values = pipeline.values().map(|codec| match codec {
            ValueCodec::Zeros => Values::Zeros,
            codec if pipeline.drops_residuals() => Values::Forgetful(codec, seed),
            codec => Values::Encoder(Box::new(ValueEncoder::new(codec, width, RESIDUAL_ROWS, seed))),
        });
        let bytes = pipeline.bytes().map(|codec: ByteCodec| BytesEncoder::new(codec));
        let scratch = Vec::new();
        let places = Vec::new();
        Self { number, width, values, bytes, sequence: 0, meter: Meter::default(), stopwatch, scratch, places }
    }

    /// As [`PayloadEncoder::new`], but keeps no residuals: the caller accounts for what was left
    /// out.
    #[must_use]
    pub fn forgetful(pipeline: &Pipeline, number: NumberType, width: usize, seed: u64, stopwatch: Stopwatch) -> Self {
        let mut encoder = Self::new(pipeline, number, width, seed, stopwatch);
        if let Some(codec) = pipeline.values().filter(|codec| *codec != ValueCodec::Zeros) {
            encoder.values = Some(Values::Forgetful(codec, seed));
        }
        encoder
    }

    /// The costs and gains so far.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The meter, for the caller to add what decoding cost at the other end.
    pub fn meter_mut(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// The value codec with its residuals, for a checkpoint or a flush.
    #[must_use]
    pub fn value_encoder(&self) -> Option<&ValueEncoder> {
        match &self.values {
            Some(Values::Encoder(encoder)) => Some(encoder),
            _ => None,
        }
    }

    /// The value codec with its residuals, to add those of a checkpoint.
    pub fn value_encoder_mut(&mut self) -> Option<&mut ValueEncoder> {
        match &mut self.values {
            Some(Values::Encoder(encoder)) => Some(encoder),
            _ => None,
        }
    }

    /// Encodes `values`, the raw numbers of `rows`. Returns `None` if the pipeline has no codec for
    /// them, or would not make them shorter. The caller then sends them plain, with their residuals
    /// added by [`PayloadEncoder::with_residuals`].
    pub fn encode(&mut self, rows: BatchRows<'_>, values: &[u8]) -> Option<(Vec<u8>, Formats)> {
        let before = self.meter;
        let values = placed(values);
        let (bytes, formats) = self.encode_any(rows, values)?;
        if bytes.len() < values.len() || values.is_empty() {
            return Some((bytes, formats));
        }
        let spent = self.meter.encode_ns.saturating_sub(before.encode_ns);
        self.meter = before;
        self.meter.encoded(values.len(), values.len(), spent);
        let number = self.number;
        let width = self.width;
        if let Some(residuals) = self.value_encoder_mut().and_then(ValueEncoder::residuals_mut) {
            // The encoded values are not sent, so the residual takes them back.
            let mut sent = vec![0f32; values.len() / 4];
            let decoded =
                PayloadDecoder::default().decode(formats, &bytes, number, width, bytemuck::cast_slice_mut(&mut sent));
            let values: &[f32] = bytemuck::cast_slice(values);
            residuals.with(rows, |kept| {
                for ((kept, sent), value) in kept.iter_mut().zip(&sent).zip(values).filter(|_| decoded.is_ok()) {
                    *kept += sent - value;
                }
            });
        }
        None
    }

    fn encode_any(&mut self, rows: BatchRows<'_>, values: &[u8]) -> Option<(Vec<u8>, Formats)> {
        let Self { number, width, values: codec, bytes, sequence, meter, stopwatch, scratch, places } = self;
        if codec.is_none() && bytes.is_none() {
            return None;
        }
        *sequence += 1;
        let began = (stopwatch.0)();
        let mut out = Vec::new();
        let mut formats = Formats::default();
        if let Some(codec) = codec {
            formats = formats.then(PayloadFormat::Values(match codec {
                Values::Zeros => {
                    match number {
                        NumberType::F32 => zeros::encode::<f32>(bytemuck::cast_slice(values), places, &mut out),
                        NumberType::F64 => zeros::encode::<f64>(bytemuck::cast_slice(values), places, &mut out),
                        NumberType::I64 => zeros::encode::<i64>(bytemuck::cast_slice(values), places, &mut out),
                    }
                    ValueFormat::Sparse
                }
                Values::Encoder(encoder) => {
                    encoder.encode(rows, bytemuck::cast_slice(values), *sequence, &mut out);
                    ValueFormat::of(encoder.codec())
                }
                Values::Forgetful(codec, seed) => {
                    let mut once = ValueEncoder::new(*codec, *width, RESIDUAL_ROWS, *seed);
                    once.encode(rows, bytemuck::cast_slice(values), *sequence, &mut out);
                    ValueFormat::of(*codec)
                }
            }));
            // Subtracts the time of measuring: it is no cost of the codec.
            if let (Values::Encoder(encoder), true) = (codec, *sequence % MEASURED == 1) {
                let before = (stopwatch.0)();
                // Ignores the error: bytes that were just encoded can be decoded.
                encoder.measure(rows, bytemuck::cast_slice(values), &out, meter).ok();
                meter.encode_ns = meter.encode_ns.saturating_sub((stopwatch.0)().saturating_sub(before));
            }
        }
        if let Some(bytes) = bytes {
            let before = if formats == Formats::default() { values } else { &out };
            bytes.encode(before, scratch);
            std::mem::swap(&mut out, scratch);
            formats = formats.then(PayloadFormat::Bytes);
        }
        meter.encoded(values.len(), out.len(), (stopwatch.0)().saturating_sub(began));
        Some((out, formats))
    }

    /// Returns `values` plus the residuals of these rows, and sets those residuals to zero. Returns
    /// `None` if the encoder has no residuals.
    pub fn with_residuals(&mut self, rows: BatchRows<'_>, values: &[u8]) -> Option<Vec<f32>> {
        let residuals = self.value_encoder_mut()?.residuals_mut().filter(|residuals| residuals.rows() > 0)?;
        let mut sums: Vec<f32> = bytemuck::cast_slice(placed(values)).to_vec();
        residuals.with(rows, |kept| {
            sums.iter_mut().zip(kept).for_each(|(sum, kept)| *sum += std::mem::take(kept));
        });
        Some(sums)
    }
}

/// Decodes the output of any [`PayloadEncoder`].
#[derive(Default)]
pub struct PayloadDecoder {
    bytes: BytesDecoder,
    scratch: Vec<u8>,
}

impl PayloadDecoder {
    /// Decodes `bytes` into `out`, the raw numbers of rows that are `width` wide.
    pub fn decode(
        &mut self,
        formats: Formats,
        bytes: &[u8],
        number: NumberType,
        width: usize,
        out: &mut [u8],
    ) -> Result<(), DecodeError> {
        let (format, compressed) = formats.of_values()?;
        let bytes = if compressed {
            // The encoded values of every format are shorter than this.
            self.bytes.decode(bytes, 4 * out.len() + 64, &mut self.scratch)?;
            &self.scratch
        } else {
            bytes
        };
        match (format, number) {
            (None, _) if bytes.len() == out.len() => out.copy_from_slice(bytes),
            (None, _) => return Err(DecodeError::Length { expected: out.len(), found: bytes.len() }),
            (Some(format), NumberType::F32) => format.decode(bytes, width, numbers(out)?)?,
            (Some(ValueFormat::Sparse), NumberType::F64) => sparse::decode::<f64>(bytes, numbers(out)?)?,
            (Some(ValueFormat::Sparse), NumberType::I64) => sparse::decode::<i64>(bytes, numbers(out)?)?,
            (Some(format), _) => return Err(DecodeError::Tag(PayloadFormat::Values(format).id())),
        }
        Ok(())
    }
}

/// `values`, or an aligned empty slice: casting to numbers needs alignment even for no bytes.
fn placed(values: &[u8]) -> &[u8] {
    if values.is_empty() { bytemuck::cast_slice::<u64, u8>(&[]) } else { values }
}

fn numbers<T: bytemuck::Pod>(bytes: &mut [u8]) -> Result<&mut [T], DecodeError> {
    let found = bytes.len();
    if bytes.is_empty() {
        return Ok(&mut []);
    }
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| DecodeError::Length { expected: found / size_of::<T>(), found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    fn encoder(names: &[&str], number: NumberType, width: usize) -> PayloadEncoder {
        let pipeline = Pipeline::parse(names.iter().copied()).expect("a pipeline");
        PayloadEncoder::new(&pipeline, number, width, 1, Stopwatch::default())
    }

    #[test]
    fn payloads_decode_within_the_expected_error_of_each_pipeline() {
        let values = noise(6 * 70, 3);
        let rows = [2, 3, 5, 8, 9, 40];
        // (pipeline, the largest error that is expected)
        let cases: [(&[&str], f32); 5] = [
            (&["bf16", "lz4"], 0.02),
            (&["keys", "f16"], 0.01),
            (&["fixed12", "zstd"], 0.01),
            (&["1bit"], 4.0),
            (&["topk=10%", "lz4"], 4.0),
        ];
        for (names, most) in cases {
            let (bytes, formats) = encoder(names, NumberType::F32, 70)
                .encode(BatchRows::List(&rows), bytemuck::cast_slice(&values))
                .expect("on");
            let mut again = vec![0f32; values.len()];
            assert!(bytes.len() < 4 * values.len());
            let out = bytemuck::cast_slice_mut(&mut again);
            PayloadDecoder::default().decode(formats, &bytes, NumberType::F32, 70, out).expect("readable");
            let worst = values.iter().zip(&again).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= most, "{names:?}: {worst}");
        }
        for names in [&["keys"][..], &["zeros"], &["lz4"], &["topk=100%"]] {
            let mut encoder = encoder(names, NumberType::F32, 70);
            assert!(encoder.encode(BatchRows::List(&rows), bytemuck::cast_slice(&values)).is_none(), "{names:?}");
        }
    }

    #[test]
    fn integers_and_doubles_are_elided_and_compressed_exactly() {
        let integers: Vec<i64> = [0i64, 5, 0, 0, -7, 0, 0, i64::MAX].repeat(20);
        let doubles: Vec<f64> = [0f64, -0.0, 1e300, 0.0, 0.0, 5e-324, 0.0, 0.0].repeat(20);
        for names in [&["zeros"][..], &["zstd"], &["zeros", "lz4"]] {
            for (number, raw) in [
                (NumberType::I64, bytemuck::cast_slice::<i64, u8>(&integers)),
                (NumberType::F64, bytemuck::cast_slice::<f64, u8>(&doubles)),
            ] {
                let (bytes, formats) = encoder(names, number, 1).encode(BatchRows::List(&[0; 160]), raw).expect("on");
                let mut again = [0u64; 160];
                let out = bytemuck::cast_slice_mut(&mut again);
                PayloadDecoder::default().decode(formats, &bytes, number, 1, out).expect("readable");
                assert_eq!(bytemuck::cast_slice::<u64, u8>(&again), raw, "{names:?}");
            }
        }
    }

    #[test]
    fn empty_payloads_need_no_alignment() {
        let mut bytes = [0u8; 16];
        for at in 0..8 {
            for (names, number) in
                [(&["zeros"][..], NumberType::F64), (&["zeros", "lz4"], NumberType::I64), (&["bf16"], NumberType::F32)]
            {
                let mut encoder = encoder(names, number, 1);
                let (encoded, formats) = encoder.encode(BatchRows::List(&[]), &bytes[at..at]).expect("on");
                let out = &mut bytes[at..at];
                PayloadDecoder::default().decode(formats, &encoded, number, 1, out).expect("readable");
            }
        }
    }

    #[test]
    fn payload_decoder_refuses_formats_that_no_pipeline_has() {
        let mut out = [0f32; 2];
        let keys = 1;
        let bf16 = 2;
        let bytes = 7;
        for ids in [[bytes, bf16, 0], [bf16, bf16, 0], [bytes, bytes, 0], [bf16, keys, 0], [99, 0, 0]] {
            let mut formats = Formats::default();
            formats.0[..3].copy_from_slice(&ids);
            let out = bytemuck::cast_slice_mut(&mut out);
            let error = PayloadDecoder::default().decode(formats, &[0; 8], NumberType::F32, 1, out);
            assert!(matches!(error, Err(DecodeError::Tag(_))), "{ids:?}: {error:?}");
        }
        let f64s = bytemuck::cast_slice_mut(&mut out);
        let formats = Formats::default().then(PayloadFormat::Values(ValueFormat::Bf16));
        assert!(PayloadDecoder::default().decode(formats, &[0; 8], NumberType::F64, 1, f64s).is_err());
    }

    #[test]
    fn plain_values_include_their_residuals() {
        let mut encoder = encoder(&["1bit"], NumberType::F32, 1);
        let many: Vec<u64> = (0..100).collect();
        let first = noise(100, 1);
        let (bytes, formats) = encoder.encode(BatchRows::List(&many), bytemuck::cast_slice(&first)).expect("shorter");
        let mut sent = vec![0f32; 100];
        let out = bytemuck::cast_slice_mut(&mut sent);
        PayloadDecoder::default().decode(formats, &bytes, NumberType::F32, 1, out).expect("readable");
        // One row alone is no shorter in one bit, so it goes in full, with its residual.
        let one = BatchRows::List(&[7]);
        assert_eq!(encoder.encode(one, bytemuck::cast_slice(&[2.0f32])), None);
        let paid = encoder.with_residuals(one, bytemuck::cast_slice(&[2.0f32])).expect("a residual");
        assert!((sent[7] + paid[0] - (first[7] + 2.0)).abs() < 1e-5, "{sent:?} {paid:?}");
        assert_eq!(encoder.with_residuals(one, bytemuck::cast_slice(&[0f32])), Some(vec![0.0]));
    }

    #[test]
    fn residuals_flush_once_and_noresidual_has_none() {
        let values = [[1.0f32; 32], [3.0; 32], [-2.0; 32], [-4.0; 32]].concat();
        let rows = BatchRows::List(&[4, 7]);
        let mut feedback = encoder(&["1bit"], NumberType::F32, 64);
        feedback.encode(rows, bytemuck::cast_slice(&values)).expect("on");
        let residuals = [[-1.0f32; 32], [1.0; 32], [1.0; 32], [-1.0; 32]].concat();
        assert_eq!(feedback.with_residuals(rows, bytemuck::cast_slice(&[0f32; 128])), Some(residuals));
        assert_eq!(feedback.with_residuals(rows, bytemuck::cast_slice(&[0f32; 128])), Some(vec![0.0; 128]), "paid");
        let mut forgetful = encoder(&["1bit", "noresidual"], NumberType::F32, 64);
        let once = forgetful.encode(rows, bytemuck::cast_slice(&values));
        assert_eq!(forgetful.encode(rows, bytemuck::cast_slice(&values)), once, "each time the same");
        assert_eq!(forgetful.with_residuals(rows, bytemuck::cast_slice(&values)), None);
    }
}

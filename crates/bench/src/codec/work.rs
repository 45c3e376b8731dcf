//! One codec pipeline under measurement: its input, its buffers, and its encoders with their state.

use anyhow::{Context, ensure};
use codec::{BatchRows, BytesDecoder, BytesEncoder, Meter, Pipeline, ValueCodec, ValueEncoder, ValueFormat, keys};
use slackwater::table::Position;

use types::SplitMix64;

/// Numbers of a row: those of a first layer on 28 × 28 images, pixels and a bias.
const WIDTH: usize = 785;

/// What pipelines encode.
pub(crate) struct Input {
    /// Values like gradients: most are small, a few large.
    gradients: Vec<f32>,
    /// The same, but nine in ten are zero.
    mostly_zeros: Vec<f32>,
    /// Sorted keys, spread over the whole range.
    keys: Vec<u64>,
}

impl Input {
    /// Makes `mib` MiB of f32, in whole rows, and as many keys as values.
    pub(crate) fn new(mib: usize) -> Self {
        let count = (mib << 20) / 4 / WIDTH * WIDTH;
        let mut random = SplitMix64::new(1);
        let mut unit = || random.unit() as f32;
        let gradients: Vec<f32> = (0..count).map(|_| (unit() + unit() + unit() - 1.5) * unit().powi(4)).collect();
        let mostly_zeros = gradients.iter().map(|value| if unit() < 0.1 { *value } else { 0.0 }).collect();
        let mut keys: Vec<u64> = (1..=count as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        keys.sort_unstable();
        Self { gradients, mostly_zeros, keys }
    }
}

/// The buffers that all pipelines write to in turn.
pub(crate) struct Output {
    /// The encoded payload.
    encoded: Vec<u8>,
    /// The bytes between a value codec and a byte codec. With a byte codec alone: what it decodes.
    between: Vec<u8>,
    decoded: Vec<f32>,
    decoded_keys: Vec<u64>,
}

impl Output {
    /// Buffers large enough for `input`. They are written once, so that their pages are mapped.
    pub(crate) fn new(input: &Input) -> Self {
        let count = input.gradients.len();
        let room = |bytes| {
            let mut room = vec![1; bytes + 4096];
            room.clear();
            room
        };
        let encoded = room(8 * count);
        let between = room(4 * count);
        Self { encoded, between, decoded: vec![1.0; count], decoded_keys: vec![1; count] }
    }
}

/// A pipeline with the state of its codecs.
pub(crate) struct Work {
    kind: Kind,
    bytes_in: usize,
    bytes_out: usize,
    error: Option<f64>,
}

enum Kind {
    Keys,
    Values(Box<ValueEncoder>),
    Bytes(Compression),
    Both(Box<ValueEncoder>, Compression),
}

struct Compression {
    encoder: BytesEncoder,
    decoder: BytesDecoder,
}

impl Work {
    /// The pipeline that `name` spells: names of codecs, joined by `+`.
    pub(crate) fn parse(name: &str, input: &Input) -> anyhow::Result<Self> {
        let pipeline = Pipeline::parse(name.split('+')).with_context(|| format!("'{name}' cannot be measured"))?;
        let count = input.gradients.len();
        let values = pipeline.values().map(|codec| Box::new(ValueEncoder::new(codec, WIDTH, count / WIDTH, 1)));
        let compression = pipeline
            .bytes()
            .map(|codec| Compression { encoder: BytesEncoder::new(codec), decoder: BytesDecoder::default() });
        let kind = match (values, compression) {
            (None, None) => Kind::Keys,
            (Some(values), None) => Kind::Values(values),
            (None, Some(compression)) => Kind::Bytes(compression),
            (Some(values), Some(compression)) => Kind::Both(values, compression),
        };
        let is_of_keys = matches!(kind, Kind::Keys);
        ensure!(
            pipeline.shortens_keys() == is_of_keys,
            "'{name}' cannot be measured: name codecs for values and bytes, or keys alone"
        );
        Ok(Self { kind, bytes_in: count * if is_of_keys { 8 } else { 4 }, bytes_out: 0, error: None })
    }

    /// Encodes the whole input once, and returns the number of encoded bytes.
    pub(crate) fn encode(&mut self, input: &Input, output: &mut Output) -> usize {
        let (values, rows) = self.values(input);
        let Output { encoded, between, .. } = output;
        match &mut self.kind {
            Kind::Keys => keys::encode(&input.keys, encoded),
            Kind::Values(encoder) => encoder.encode(rows, values, 0, encoded),
            Kind::Bytes(Compression { encoder, .. }) => encoder.encode(bytemuck::cast_slice(values), encoded),
            Kind::Both(values_encoder, Compression { encoder, .. }) => {
                values_encoder.encode(rows, values, 0, between);
                encoder.encode(between, encoded);
            }
        }
        self.bytes_out = encoded.len();
        self.bytes_out
    }

    /// Decodes the last encoding.
    pub(crate) fn decode(&mut self, output: &mut Output) -> anyhow::Result<()> {
        let Output { encoded, between, decoded, decoded_keys } = output;
        match &mut self.kind {
            Kind::Keys => keys::decode(encoded, decoded_keys)?,
            Kind::Values(encoder) => ValueFormat::of(encoder.codec()).decode(encoded, WIDTH, decoded)?,
            Kind::Bytes(Compression { decoder, .. }) => decoder.decode(encoded, self.bytes_in, between)?,
            Kind::Both(encoder, Compression { decoder, .. }) => {
                decoder.decode(encoded, self.bytes_in, between)?;
                ValueFormat::of(encoder.codec()).decode(between, WIDTH, decoded)?;
            }
        }
        Ok(())
    }

    /// Measures the error of the first decoding. Later encodings also carry residuals of earlier
    /// ones, so they cannot be compared with the input.
    pub(crate) fn compare(&mut self, input: &Input, output: &Output) -> anyhow::Result<()> {
        let (values, _) = self.values(input);
        let mut meter = Meter::default();
        match &self.kind {
            Kind::Keys => {
                ensure!(input.keys == output.decoded_keys, "decoded keys differ from those that were encoded")
            }
            Kind::Bytes(_) => {
                // A vector of bytes need not be aligned for f32.
                let decoded: Vec<f32> = output.between.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
                meter.compare(values, &decoded);
            }
            Kind::Values(_) | Kind::Both(..) => meter.compare(values, &output.decoded),
        }
        self.error = meter.relative_error();
        Ok(())
    }

    /// ‖x − decoded‖ / ‖x‖; none for keys.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        self.error
    }

    /// How many bytes are encoded.
    pub(crate) fn bytes_in(&self) -> usize {
        self.bytes_in
    }

    /// How many bytes the last encoding has.
    pub(crate) fn bytes_out(&self) -> usize {
        self.bytes_out
    }

    /// How many keys are encoded; none if the pipeline is of values.
    pub(crate) fn keys(&self) -> Option<usize> {
        matches!(self.kind, Kind::Keys).then_some(self.bytes_in / 8)
    }

    /// The values to encode: mostly zeros for codecs that only save repeated bytes or zeros, and
    /// gradients for all others.
    fn values<'a>(&self, input: &'a Input) -> (&'a [f32], BatchRows<'static>) {
        let values = match &self.kind {
            Kind::Bytes(_) => &input.mostly_zeros,
            Kind::Values(encoder) | Kind::Both(encoder, _) if encoder.codec() == ValueCodec::Zeros => {
                &input.mostly_zeros
            }
            Kind::Keys | Kind::Values(_) | Kind::Both(..) => &input.gradients,
        };
        (values, BatchRows::Run { first: Position(0), count: values.len() / WIDTH })
    }
}

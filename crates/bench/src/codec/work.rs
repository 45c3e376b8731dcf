//! One pipeline at work: what it encodes, and what it remembers.

use anyhow::{Context, ensure};
use codec::{BatchRows, BytesDecoder, BytesEncoder, Meter, Pipeline, ValueCodec, ValueEncoder, ValueFormat, keys};
use slackwater::table::Position;

use types::SplitMix64;

/// As wide as a row of a first layer on 28 × 28 images: pixels and a bias.
const WIDTH: usize = 785;

/// What is encoded.
pub(crate) struct Input {
    /// Many small ones and few large, as gradients are.
    gradients: Vec<f32>,
    /// The same, but nine in ten are zero.
    mostly_zeros: Vec<f32>,
    /// Spread over all there are.
    keys: Vec<u64>,
}

impl Input {
    /// Whole rows of f32, so many MiB; and as many keys as there are values.
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

/// What all pipelines write to in turn.
pub(crate) struct Output {
    /// What travels.
    encoded: Vec<u8>,
    /// Where a pipeline has codecs for values and for bytes: what is between them. Where it has the
    /// latter alone: what is decoded.
    between: Vec<u8>,
    decoded: Vec<f32>,
    decoded_keys: Vec<u64>,
}

impl Output {
    /// Room for what becomes of an input; filled, so that the pages are there.
    pub(crate) fn new(input: &Input) -> Self {
        let count = input.gradients.len();
        let room = |bytes| {
            let mut room = vec![1; bytes + 4096];
            room.clear();
            room
        };
        let (encoded, between) = (room(8 * count), room(4 * count));
        Self { encoded, between, decoded: vec![1.0; count], decoded_keys: vec![1; count] }
    }
}

/// A pipeline with what its codecs remember.
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
    /// The pipeline of codecs whose names `+` joins.
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

    /// Encodes everything once, and returns how many bytes that came to.
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

    /// Decodes what was encoded.
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

    /// Finds how far off the first decoding is: before another encoding adds to it what this one
    /// has left out.
    pub(crate) fn compare(&mut self, input: &Input, output: &Output) -> anyhow::Result<()> {
        let (values, _) = self.values(input);
        let mut meter = Meter::default();
        match &self.kind {
            Kind::Keys => ensure!(input.keys == output.decoded_keys, "keys are not decoded to what was encoded"),
            Kind::Bytes(_) => {
                // Bytes of a vector need not lie where an f32 may.
                let decoded: Vec<f32> = output.between.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
                meter.compare(values, &decoded);
            }
            Kind::Values(_) | Kind::Both(..) => meter.compare(values, &output.decoded),
        }
        self.error = meter.relative_error();
        Ok(())
    }

    /// ‖x − decoded‖ / ‖x‖; none of keys.
    pub(crate) fn relative_error(&self) -> Option<f64> {
        self.error
    }

    /// How many bytes are encoded.
    pub(crate) fn bytes_in(&self) -> usize {
        self.bytes_in
    }

    /// What they came to.
    pub(crate) fn bytes_out(&self) -> usize {
        self.bytes_out
    }

    /// How many keys are encoded, where keys are.
    pub(crate) fn keys(&self) -> Option<usize> {
        matches!(self.kind, Kind::Keys).then_some(self.bytes_in / 8)
    }

    /// What loses nothing but repeated bytes is given some; everything else is given gradients.
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

//! Encodes the pushes to one table, with the codecs that its spec names, or with those that pay on
//! the network link.

use super::link_rate::TransferCost;
use crate::cache::positions;
use codec::{BatchRows, CodecChoice, Formats, Meter, PayloadDecoder, PayloadEncoder, Pipeline, Stopwatch, TableCodecs};
use types::{Position, TableSpec};
use update::first_not_finite;
use wire::{KeyPart, KeySlice, Payload};

/// How a list of keys is sent the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// 8 bytes a key; from then on by signature.
    Plain,
    /// Shortened; from then on by signature.
    Packed,
    /// 8 bytes a key, every time.
    Spelt,
}

impl KeyForm {
    /// A list in full.
    pub fn in_full(self, keys: &KeySlice) -> KeyPart {
        match keys.in_full() {
            KeyPart::List { signature, start, positions } if self == Self::Packed => {
                let count = keys.len() as u32;
                let mut packed = Vec::new();
                codec::keys::encode(positions.numbers().unwrap_or(&[]), &mut packed);
                if packed.len() < positions.len() {
                    KeyPart::Packed { signature, start, count, packed: Payload::new(packed) }
                } else {
                    KeyPart::List { signature, start, positions }
                }
            }
            part => part,
        }
    }
}

/// The values of one part, as they travel.
pub(crate) struct EncodedPart {
    pub values: Payload,
    pub formats: Formats,
}

/// Where the link decides and a lossy codec is in use, one part in so many goes as it is, so that a
/// link that has become fast is noticed.
const PROBE: u64 = 1024;

/// The codecs of the pushes to one table.
pub(crate) struct PushCodec {
    spec: TableSpec,
    choice: CodecChoice,
    seed: u64,
    stopwatch: Stopwatch,
    /// What is in use now.
    pipeline: Pipeline,
    encoder: Option<PayloadEncoder>,
    /// The encoder in use before, which may have residuals left.
    retiring: Option<PayloadEncoder>,
    /// What encoders that are gone have cost.
    spent: Meter,
    decoder: PayloadDecoder,
    /// Parts so far.
    parts: u64,
    /// Whether the program has been told that its choice does not pay.
    warned: bool,
}

impl PushCodec {
    pub fn new(spec: &TableSpec, codecs: &TableCodecs, seed: u64, stopwatch: Stopwatch) -> Self {
        let pipeline = codecs.up.pipeline().cloned().unwrap_or_default();
        let mut push_codec = Self {
            spec: spec.clone(),
            choice: codecs.up.clone(),
            seed,
            stopwatch,
            pipeline: Pipeline::default(),
            encoder: None,
            retiring: None,
            spent: Meter::default(),
            decoder: PayloadDecoder::default(),
            parts: 0,
            warned: false,
        };
        push_codec.use_pipeline(pipeline);
        push_codec
    }

    /// What is in use now.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Whether the rate of the network link decides.
    pub fn is_auto(&self) -> bool {
        self.choice == CodecChoice::Auto
    }

    pub fn key_form(&self) -> KeyForm {
        match (self.pipeline.spells_keys(), self.pipeline.shortens_keys()) {
            (true, _) => KeyForm::Spelt,
            (_, true) => KeyForm::Packed,
            _ => KeyForm::Plain,
        }
    }

    /// What it has cost and gained so far.
    pub fn meter(&self) -> Meter {
        let mut sum = self.spent;
        self.encoder.iter().chain(&self.retiring).for_each(|encoder| sum.add(encoder.meter()));
        sum
    }

    /// Rows whose residuals were dropped, because a bounded number is kept.
    pub fn dropped_rows(&self) -> u64 {
        let residuals = self.encoder.iter().chain(&self.retiring).filter_map(PayloadEncoder::value_encoder);
        residuals.filter_map(codec::ValueEncoder::residuals).map(|residuals| residuals.dropped().rows).sum()
    }

    /// What has still to be sent, in runs that may name a row more than once.
    pub fn residuals(&self) -> Vec<codec::ResidualRun> {
        let encoders = self.encoder.iter().chain(&self.retiring).filter_map(PayloadEncoder::value_encoder);
        encoders.filter_map(codec::ValueEncoder::residuals).flat_map(codec::RowResiduals::export).collect()
    }

    /// Encodes nothing from now on. Returns what has still to be sent, as
    /// [`residuals`](Self::residuals) does.
    pub fn stop(&mut self) -> Vec<codec::ResidualRun> {
        let residuals = self.residuals();
        self.choice = CodecChoice::Pipeline(Pipeline::default());
        self.pipeline = Pipeline::default();
        let encoders = self.encoder.take().into_iter().chain(self.retiring.take());
        encoders.for_each(|encoder| self.spent.add(encoder.meter()));
        residuals
    }

    /// Where the link decides: takes the codecs that pay at this rate.
    pub fn follow(&mut self, bytes_per_second: f64) {
        if !self.is_auto() {
            return;
        }
        let best = TransferCost::best(bytes_per_second, &self.spec, &self.pipeline);
        if best != self.pipeline {
            self.use_pipeline(best);
        }
    }

    /// The codecs that the program asked for, once, if they do not pay at this rate.
    pub fn warn(&mut self, bytes_per_second: f64) -> Option<String> {
        let may_warn = !self.is_auto() && !self.warned;
        self.warned |= may_warn && TransferCost::does_not_pay(&self.pipeline, &self.meter(), bytes_per_second);
        (may_warn && self.warned).then(|| self.pipeline.to_string())
    }

    fn use_pipeline(&mut self, pipeline: Pipeline) {
        let works = pipeline.values().is_some() || pipeline.bytes().is_some();
        let (number, width) = (self.spec.number, self.spec.width as usize);
        let new = works.then(|| PayloadEncoder::new(&pipeline, number, width, self.seed, self.stopwatch));
        if let Some(old) = std::mem::replace(&mut self.encoder, new) {
            if self.retiring.is_some() && !keeps_residuals(&old) {
                self.spent.add(old.meter());
                self.pipeline = pipeline;
                return;
            }
            // Two changes in a row: the residuals of the first go along with the second.
            if let Some(older) = self.retiring.replace(old) {
                self.spent.add(older.meter());
                let exported =
                    older.value_encoder().and_then(|encoder| encoder.residuals()).map(codec::RowResiduals::export);
                let residuals = self.retiring.as_mut().and_then(PayloadEncoder::value_encoder_mut);
                if let (Some(exported), Some(residuals)) =
                    (exported, residuals.and_then(|encoder| encoder.residuals_mut()))
                {
                    // Exported by a residual of the same width: it fits.
                    residuals.absorb(&exported).ok();
                }
            }
        }
        self.pipeline = pipeline;
    }

    /// Encodes one part. What is not finite goes as it is, for the shard to refuse and to name.
    pub fn encode(&mut self, keys: &KeySlice, values: Payload) -> EncodedPart {
        let plain = |values| EncodedPart { values, formats: Formats::default() };
        let is_finite = match values.numbers::<f32>() {
            Some(numbers) if self.pipeline.is_lossy() || self.retiring.is_some() => first_not_finite(numbers).is_none(),
            _ => true,
        };
        if !is_finite || (self.encoder.is_none() && self.retiring.is_none()) {
            return plain(values);
        }
        let rows = rows_of(keys);
        let residuals = self.retiring.as_mut().and_then(|retiring| retiring.with_residuals(rows, values.bytes()));
        let values = residuals.map_or(values, Payload::new);
        self.parts += 1;
        let probes = self.choice == CodecChoice::Auto && self.parts.is_multiple_of(PROBE);
        let Some(encoder) = &mut self.encoder else { return plain(values) };
        if probes {
            return plain(encoder.with_residuals(rows, values.bytes()).map_or(values, Payload::new));
        }
        match encoder.encode(rows, values.bytes()) {
            Some((bytes, formats)) => EncodedPart { values: Payload::new(bytes), formats },
            None => plain(encoder.with_residuals(rows, values.bytes()).map_or(values, Payload::new)),
        }
    }

    /// These rows are set: what was left out of earlier pushes to them is forgotten.
    pub fn forget(&mut self, keys: &KeySlice) {
        let encoders = self.encoder.iter_mut().chain(&mut self.retiring).filter_map(PayloadEncoder::value_encoder_mut);
        for residuals in
            encoders.filter_map(codec::ValueEncoder::residuals_mut).filter(|residuals| residuals.rows() > 0)
        {
            residuals.with(BatchRows::List(&positions(keys)), |residuals| residuals.fill(0.0));
        }
    }

    /// What a shard decodes a part to: for cached rows, which hold it already.
    pub fn decode(&mut self, encoded: &EncodedPart, rows: usize) -> Option<Payload> {
        let mut numbers = vec![0u64; (rows * self.spec.row_bytes()).div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut numbers)[..rows * self.spec.row_bytes()];
        let (number, width) = (self.spec.number, self.spec.width as usize);
        self.decoder.decode(encoded.formats, encoded.values.bytes(), number, width, bytes).ok()?;
        Some(Payload::new(numbers).slice(0..rows * self.spec.row_bytes()))
    }
}

fn keeps_residuals(encoder: &PayloadEncoder) -> bool {
    encoder.value_encoder().is_some_and(|encoder| encoder.residuals().is_some())
}

/// The rows of a part, as residuals are kept by.
fn rows_of(keys: &KeySlice) -> BatchRows<'_> {
    match keys.sorted() {
        Some(positions) => BatchRows::List(positions),
        None if keys.is_empty() => BatchRows::Run { first: Position(0), count: 0 },
        None => BatchRows::Run { first: keys.position(0), count: keys.len() },
    }
}

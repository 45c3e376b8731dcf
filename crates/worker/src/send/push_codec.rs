//! Encodes the pushes to one table, with the codecs that its spec names, or, for `auto`, with the
//! codecs that save time on the network link. Lossy codecs keep residuals for the next push (error
//! feedback).

use super::link_rate::TransferCost;
use crate::cache::positions;
use codec::{BatchRows, CodecChoice, Formats, Meter, PayloadDecoder, PayloadEncoder, Pipeline, Stopwatch, TableCodecs};
use types::{Combine, Position, TableSpec};
use update::first_not_finite;
use wire::{KeyPart, KeySlice, Payload};

/// How a list of keys is sent the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// In full with 8 bytes a key; later by its signature.
    Plain,
    /// In full, compressed by the codec `keys`; later by its signature.
    Packed,
    /// In full with 8 bytes a key, every time.
    Spelt,
}

impl KeyForm {
    /// A list in full, in this form.
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

/// The values of one part as they are sent.
pub(crate) struct EncodedPart {
    pub values: Payload,
    pub formats: Formats,
}

/// With `auto`, one part in this many goes without codecs, so that the worker notices a link that
/// has become fast.
const PROBE: u64 = 1024;

/// The codecs of the pushes to one table.
pub(crate) struct PushCodec {
    spec: TableSpec,
    choice: CodecChoice,
    seed: u64,
    stopwatch: Stopwatch,
    /// The pipeline in use now.
    pipeline: Pipeline,
    encoder: Option<PayloadEncoder>,
    /// The encoder in use before, which may have residuals left.
    retiring: Option<PayloadEncoder>,
    /// The cost of encoders that are gone.
    spent: Meter,
    decoder: PayloadDecoder,
    /// How many parts have been encoded.
    parts: u64,
    /// Whether the program was warned that its codecs cost more time than they save.
    warned: bool,
    /// Whether pushes of the worker's present clock have changed residuals.
    has_encoded: bool,
    /// Rows of a table that combines by clock that the worker has deleted in its present clock.
    deleted: Vec<KeySlice>,
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
            has_encoded: false,
            deleted: Vec::new(),
        };
        push_codec.use_pipeline(pipeline);
        push_codec
    }

    /// The pipeline in use now.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Whether the rate of the network link decides which codecs are in use.
    pub fn is_auto(&self) -> bool {
        self.choice == CodecChoice::Auto
    }

    /// The form of key lists that the pipeline in use asks for.
    pub fn key_form(&self) -> KeyForm {
        match (self.pipeline.spells_keys(), self.pipeline.shortens_keys()) {
            (true, _) => KeyForm::Spelt,
            (_, true) => KeyForm::Packed,
            _ => KeyForm::Plain,
        }
    }

    /// What encoding has cost and saved so far.
    pub fn meter(&self) -> Meter {
        let mut sum = self.spent;
        self.encoder.iter().chain(&self.retiring).for_each(|encoder| sum.add(encoder.meter()));
        sum
    }

    /// How many rows lost their residuals, because a codec keeps residuals of a bounded number of
    /// rows.
    pub fn dropped_rows(&self) -> u64 {
        let residuals = self.encoder.iter().chain(&self.retiring).filter_map(PayloadEncoder::value_encoder);
        residuals.filter_map(codec::ValueEncoder::residuals).map(|residuals| residuals.dropped().rows).sum()
    }

    /// Whether there may be residuals.
    pub fn keeps_residuals(&self) -> bool {
        self.encoder.iter().chain(&self.retiring).any(keeps_residuals)
    }

    /// Whether pushes of the worker's present clock have changed residuals.
    pub fn has_encoded(&self) -> bool {
        self.has_encoded
    }

    /// The residuals, in runs of rows. A row may be in more than one run: its residuals add up.
    pub fn residuals(&self) -> Vec<codec::ResidualRun> {
        let encoders = self.encoder.iter().chain(&self.retiring).filter_map(PayloadEncoder::value_encoder);
        encoders.filter_map(codec::ValueEncoder::residuals).flat_map(codec::RowResiduals::export).collect()
    }

    /// Stops encoding. Returns the residuals, as [`residuals`](Self::residuals) does.
    pub fn stop(&mut self) -> Vec<codec::ResidualRun> {
        let residuals = self.residuals();
        self.choice = CodecChoice::Pipeline(Pipeline::default());
        self.pipeline = Pipeline::default();
        let encoders = self.encoder.take().into_iter().chain(self.retiring.take());
        encoders.for_each(|encoder| self.spent.add(encoder.meter()));
        residuals
    }

    /// With `auto`: takes the codecs that save time at this rate.
    pub fn follow(&mut self, bytes_per_second: f64) {
        if !self.is_auto() {
            return;
        }
        let best = TransferCost::best(bytes_per_second, &self.spec, &self.pipeline);
        if best != self.pipeline {
            self.use_pipeline(best);
        }
    }

    /// The codecs that the program asked for, if they cost more time than they save at this rate.
    /// Warns once.
    pub fn warn(&mut self, bytes_per_second: f64) -> Option<String> {
        let may_warn = !self.is_auto() && !self.warned;
        self.warned |= may_warn && TransferCost::does_not_pay(&self.pipeline, &self.meter(), bytes_per_second);
        (may_warn && self.warned).then(|| self.pipeline.to_string())
    }

    fn use_pipeline(&mut self, pipeline: Pipeline) {
        let encodes = pipeline.values().is_some() || pipeline.bytes().is_some();
        let number = self.spec.number;
        let width = self.spec.width as usize;
        let new = encodes.then(|| PayloadEncoder::new(&pipeline, number, width, self.seed, self.stopwatch));
        if let Some(old) = std::mem::replace(&mut self.encoder, new) {
            if self.retiring.is_some() && !keeps_residuals(&old) {
                self.spent.add(old.meter());
                self.pipeline = pipeline;
                return;
            }
            // After two changes in a row, the second retiring encoder takes over the first one's
            // residuals.
            if let Some(older) = self.retiring.replace(old) {
                self.spent.add(older.meter());
                let exported =
                    older.value_encoder().and_then(|encoder| encoder.residuals()).map(codec::RowResiduals::export);
                let residuals = self.retiring.as_mut().and_then(PayloadEncoder::value_encoder_mut);
                if let (Some(exported), Some(residuals)) =
                    (exported, residuals.and_then(|encoder| encoder.residuals_mut()))
                {
                    // Cannot fail: both keep residuals of the same row width.
                    residuals.absorb(&exported).ok();
                }
            }
        }
        self.pipeline = pipeline;
    }

    /// Encodes one part. A part with a value that is not finite goes without codecs, so that the
    /// shard can refuse it and name the row.
    pub fn encode(&mut self, keys: &KeySlice, values: Payload) -> EncodedPart {
        let plain = |values| EncodedPart { values, formats: Formats::default() };
        let is_finite = match values.numbers::<f32>() {
            Some(numbers) if self.pipeline.is_lossy() || self.retiring.is_some() => first_not_finite(numbers).is_none(),
            _ => true,
        };
        if !is_finite || (self.encoder.is_none() && self.retiring.is_none()) {
            return plain(values);
        }
        self.has_encoded |= self.keeps_residuals();
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

    /// Drops the residuals of these rows, because the worker sets or deletes them.
    ///
    /// In a table that combines by clock, rows are deleted after the clock's combined update. So
    /// residuals of later pushes of the clock are dropped, too, when [the clock
    /// ends](Self::end_clock).
    pub fn forget(&mut self, keys: &KeySlice) {
        self.drop_residuals(keys);
        if matches!(self.spec.combine, Combine::Clock(_)) && (self.is_auto() || self.pipeline.is_lossy()) {
            self.deleted.push(keys.clone());
        }
    }

    /// Every push of the clock is encoded: forgets what was left out of pushes to rows that were
    /// deleted in it.
    pub fn end_clock(&mut self) {
        self.has_encoded = false;
        std::mem::take(&mut self.deleted).iter().for_each(|keys| self.drop_residuals(keys));
    }

    fn drop_residuals(&mut self, keys: &KeySlice) {
        let encoders = self.encoder.iter_mut().chain(&mut self.retiring).filter_map(PayloadEncoder::value_encoder_mut);
        for residuals in
            encoders.filter_map(codec::ValueEncoder::residuals_mut).filter(|residuals| residuals.rows() > 0)
        {
            residuals.with(BatchRows::List(&positions(keys)), |residuals| residuals.fill(0.0));
        }
    }

    /// Decodes a part as its shard does, for the cache to add to its rows.
    pub fn decode(&mut self, encoded: &EncodedPart, rows: usize) -> Option<Payload> {
        let mut numbers = vec![0u64; (rows * self.spec.row_bytes()).div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut(&mut numbers)[..rows * self.spec.row_bytes()];
        let number = self.spec.number;
        let width = self.spec.width as usize;
        self.decoder.decode(encoded.formats, encoded.values.bytes(), number, width, bytes).ok()?;
        Some(Payload::new(numbers).slice(0..rows * self.spec.row_bytes()))
    }
}

fn keeps_residuals(encoder: &PayloadEncoder) -> bool {
    encoder.value_encoder().is_some_and(|encoder| encoder.residuals().is_some())
}

/// The rows of a part, in the form by which encoders keep residuals.
fn rows_of(keys: &KeySlice) -> BatchRows<'_> {
    match keys.sorted() {
        Some(positions) => BatchRows::List(positions),
        None if keys.is_empty() => BatchRows::Run { first: Position(0), count: 0 },
        None => BatchRows::Run { first: keys.position(0), count: keys.len() },
    }
}

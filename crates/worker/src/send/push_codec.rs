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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use types::{Codecs, Placement, UpdaterSpec};
    use wire::Keys;

    /// Wide enough for codecs to make a part of one row shorter.
    const WIDTH: usize = 64;
    /// A link for which `auto` chooses a lossy codec, and one for which it chooses none.
    const SLOW: f64 = 12.5e6;
    const FAST: f64 = 1e9;

    fn codec(codecs: Codecs) -> PushCodec {
        let spec =
            TableSpec::sparse("t", WIDTH as u32).ordered().updater(UpdaterSpec::Sgd { rate: 0.1 }).codecs(codecs);
        PushCodec::new(&spec, &TableCodecs::of(&spec).expect("they go together"), 7, Stopwatch::default())
    }

    fn keys(ids: &[u64]) -> Keys {
        Keys::at(Placement::Ordered, ids).expect("rising keys")
    }

    /// A row of different numbers.
    fn row(key: u64, push: u64) -> Vec<f32> {
        (0..WIDTH as u64).map(|column| ((key * 31 + push * 17 + column * 7) % 23) as f32 - 9.0).collect()
    }

    /// What was pushed of each row, and what shards were sent.
    #[derive(Default)]
    struct Sums {
        pushed: BTreeMap<u64, Vec<f32>>,
        sent: BTreeMap<u64, Vec<f32>>,
    }

    fn add(sums: &mut BTreeMap<u64, Vec<f32>>, key: u64, row: &[f32]) {
        let sum = sums.entry(key).or_insert_with(|| vec![0.0; WIDTH]);
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }

    impl Sums {
        /// Pushes the n-th rows of these keys, cut into parts of at most `most` rows.
        fn push(&mut self, codec: &mut PushCodec, ids: &[u64], most: usize, n: u64) {
            let keys = keys(ids);
            for start in (0..ids.len()).step_by(most) {
                let part = keys.slice(start..ids.len().min(start + most));
                let ids = &ids[part.range()];
                let rows: Vec<Vec<f32>> = ids.iter().map(|key| row(*key, n)).collect();
                ids.iter().zip(&rows).for_each(|(key, row)| add(&mut self.pushed, *key, row));
                let encoded = codec.encode(&part, Payload::new(rows.concat()));
                let decoded = codec.decode(&encoded, ids.len()).expect("readable");
                let decoded = decoded.numbers::<f32>().expect("numbers");
                ids.iter().zip(decoded.chunks_exact(WIDTH)).for_each(|(key, row)| add(&mut self.sent, *key, row));
            }
        }

        /// Checks that what was sent and the residuals add up to what was pushed.
        fn check(&self, residuals: &[codec::ResidualRun]) {
            let mut all = self.sent.clone();
            for run in residuals {
                let rows = run.values.chunks_exact(WIDTH);
                (run.first.0..).zip(rows).for_each(|(key, row)| add(&mut all, key, row));
            }
            for (key, pushed) in &self.pushed {
                for (found, pushed) in all[key].iter().zip(pushed) {
                    assert!((found - pushed).abs() < 0.01 * (1.0 + pushed.abs()), "row {key}: {found}, not {pushed}");
                }
            }
        }
    }

    /// A step of a test.
    #[derive(Clone, Debug)]
    enum Step {
        /// Pushes these keys, in parts of so many rows.
        Push(Vec<u64>, usize),
        /// The link has this rate.
        Rate(f64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let keys = prop::collection::btree_set(0..12u64, 1..8).prop_map(|keys| keys.into_iter().collect());
        prop_oneof![
            5 => (keys, 1..5usize).prop_map(|(keys, most)| Step::Push(keys, most)),
            1 => prop_oneof![Just(SLOW), Just(60e6), Just(FAST)].prop_map(Step::Rate),
        ]
    }

    proptest! {
        #[test]
        fn residuals_follow_their_keys_through_parts_and_codecs(steps in prop::collection::vec(step(), 0..40)) {
            for codecs in [Codecs::up(["1bit"]), Codecs::up(["topk=10%"]), Codecs::auto()] {
                let mut codec = codec(codecs);
                let mut sums = Sums::default();
                codec.follow(SLOW);
                for (n, step) in (0..).zip(&steps) {
                    match step {
                        Step::Push(ids, most) => sums.push(&mut codec, ids, *most, n),
                        Step::Rate(rate) => codec.follow(*rate),
                    }
                    sums.check(&codec.residuals());
                }
                prop_assert_eq!(codec.dropped_rows(), 0);
            }
        }
    }

    #[test]
    fn auto_codec_follows_the_rate_and_sends_the_residuals_that_are_left() {
        let mut codec = codec(Codecs::auto());
        let mut sums = Sums::default();
        assert!(codec.is_auto() && !codec.pipeline().is_lossy(), "no rate is known");
        codec.follow(SLOW);
        assert!(codec.pipeline().is_lossy());
        sums.push(&mut codec, &[1, 2, 3], 3, 0);
        assert!(codec.residuals().iter().flat_map(|run| &run.values).any(|value| *value != 0.0));
        codec.follow(FAST);
        assert!(!codec.pipeline().is_lossy());
        sums.push(&mut codec, &[1, 2, 3], 3, 1);
        sums.check(&[]);
        let mut chosen = self::codec(Codecs::up(["bf16"]));
        chosen.follow(SLOW);
        assert_eq!(chosen.pipeline().to_string(), "bf16", "the program's choice stays");
    }

    #[test]
    fn residuals_are_forgotten_for_the_rows_that_are_replaced_only() {
        let mut codec = codec(Codecs::up(["1bit"]));
        let mut sums = Sums::default();
        sums.push(&mut codec, &[1, 2, 3], 3, 0);
        codec.forget(&keys(&[2]).slice(0..1));
        let residuals = codec.residuals();
        let left = residuals.iter().flat_map(|run| (run.first.0..).zip(run.values.chunks_exact(WIDTH)));
        let left: Vec<u64> =
            left.filter(|(_, row)| row.iter().any(|value| *value != 0.0)).map(|(key, _)| key).collect();
        assert_eq!(left, [1, 3]);
        sums.pushed.remove(&2);
        sums.check(&residuals);
    }

    #[test]
    fn stopped_codec_hands_its_residuals_over_and_encodes_no_more() {
        let mut codec = codec(Codecs::up(["1bit"]));
        let mut sums = Sums::default();
        sums.push(&mut codec, &[1, 2, 3], 3, 0);
        let meter = codec.meter();
        let residuals = codec.stop();
        sums.check(&residuals);
        sums.push(&mut codec, &[1, 2, 3], 3, 1);
        sums.check(&residuals);
        assert_eq!((codec.residuals(), codec.meter()), (vec![], meter), "what was spent stays counted");
    }

    #[test]
    fn part_with_a_value_that_is_not_finite_goes_plain_and_keeps_residuals() {
        let mut codec = codec(Codecs::up(["1bit"]));
        let mut sums = Sums::default();
        sums.push(&mut codec, &[1, 2], 2, 0);
        let residuals = codec.residuals();
        let mut values = [row(1, 1), row(2, 1)].concat();
        values[WIDTH + 5] = f32::NAN;
        let values = Payload::new(values);
        let encoded = codec.encode(&keys(&[1, 2]).slice(0..2), values.clone());
        assert_eq!((encoded.formats, encoded.values), (Formats::default(), values));
        assert_eq!(codec.residuals(), residuals);
    }

    #[test]
    fn auto_codec_sends_one_part_in_many_plain_to_measure_the_link() {
        let mut codec = codec(Codecs::auto());
        codec.follow(SLOW);
        let slice = keys(&[4]).slice(0..1);
        let is_plain = |n| {
            let encoded = codec.encode(&slice, Payload::new(row(4, n)));
            encoded.formats == Formats::default()
        };
        let plain: Vec<u64> =
            (1..=2 * PROBE).map(is_plain).zip(1..).filter(|(plain, _)| *plain).map(|(_, n)| n).collect();
        assert_eq!(plain, [PROBE, 2 * PROBE]);
    }

    #[test]
    fn key_lists_take_the_form_that_the_pipeline_asks_for() {
        let ids: Vec<u64> = (0..64).collect::<Vec<_>>().iter().map(|index| index * 2).collect();
        let slice = keys(&ids).slice(0..64);
        // (codecs, form, whether a list that the codec shortens goes packed)
        for (codecs, form, packs) in [
            (Codecs::default(), KeyForm::Plain, false),
            (Codecs::up(["keys"]), KeyForm::Packed, true),
            (Codecs::up(["spelt"]), KeyForm::Spelt, false),
        ] {
            let found = codec(codecs).key_form();
            assert_eq!((found, matches!(found.in_full(&slice), KeyPart::Packed { count: 64, .. })), (form, packs));
        }
    }
}

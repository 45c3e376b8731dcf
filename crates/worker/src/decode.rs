//! Decodes rows and deltas that shards encoded with codecs, before any other part of the worker
//! reads them.

use codec::{Formats, Meter, PayloadDecoder, Stopwatch};
use types::{PART_BYTES, TableSpec};
use wire::{CodecPipeline, Payload};

/// Decodes the rows and deltas of one table, and measures what codecs cost and save.
pub(crate) struct AnswerDecoder {
    decoder: PayloadDecoder,
    stopwatch: Stopwatch,
    meter: Meter,
}

impl AnswerDecoder {
    /// A decoder that has decoded nothing yet.
    pub fn new(stopwatch: Stopwatch) -> Self {
        Self { decoder: PayloadDecoder::default(), stopwatch, meter: Meter::default() }
    }

    /// What decoding has cost, and how many bytes codecs have saved.
    pub fn meter(&self) -> Meter {
        self.meter
    }

    /// Decodes the values of this many rows. `None` if they are not encoded, or cannot be decoded:
    /// the caller then refuses the encoded values for their wrong length.
    pub fn rows(&mut self, codecs: CodecPipeline, values: &Payload, spec: &TableSpec, rows: usize) -> Option<Payload> {
        let decoded = self.decode(codecs, values, spec, rows)?;
        self.meter.encoded(decoded.len(), values.len(), 0);
        Some(decoded)
    }

    /// Decodes the changes of a delta, as [`AnswerDecoder::rows`] does.
    ///
    /// - `cached`: how many of its rows are cached. The meter counts the delta as a replacement for
    ///   these rows.
    /// - `key_bytes`: the bytes of its encoded keys; 0 if they are not encoded.
    pub fn delta(
        &mut self,
        codecs: CodecPipeline,
        values: &Payload,
        spec: &TableSpec,
        rows: usize,
        cached: usize,
        key_bytes: usize,
    ) -> Option<Payload> {
        let decoded = self.decode(codecs, values, spec, rows);
        self.meter.encoded(cached * spec.row_bytes(), values.len() + key_bytes, 0);
        decoded
    }

    fn decode(&mut self, codecs: CodecPipeline, values: &Payload, spec: &TableSpec, rows: usize) -> Option<Payload> {
        let formats = Formats(codecs.0);
        if formats.leaves_values() {
            return None;
        }
        let bytes = rows.checked_mul(spec.row_bytes()).filter(|bytes| *bytes <= PART_BYTES)?;
        let began = (self.stopwatch.0)();
        let mut numbers = vec![0u64; bytes.div_ceil(8)];
        let out = &mut bytemuck::cast_slice_mut(&mut numbers)[..bytes];
        self.decoder.decode(formats, values.bytes(), spec.number, spec.width as usize, out).ok()?;
        self.meter.decoded(bytes, (self.stopwatch.0)().saturating_sub(began));
        Some(Payload::new(numbers).slice(0..bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::{BatchRows, PayloadEncoder, Pipeline};
    use types::Position;

    /// A hundred rows of one number, encoded.
    fn encoded() -> (CodecPipeline, Payload) {
        let spec = TableSpec::dense("t", 100, 1);
        let pipeline = Pipeline::parse(["bf16"]).expect("a pipeline");
        let mut encoder = PayloadEncoder::new(&pipeline, spec.number, 1, 0, Stopwatch::default());
        let rows = BatchRows::Run { first: Position(0), count: 100 };
        let (bytes, formats) = encoder.encode(rows, Payload::new(vec![2f32; 100]).bytes()).expect("shorter");
        (CodecPipeline(formats.0), Payload::new(bytes))
    }

    #[test]
    fn answer_decoder_meters_only_the_rows_that_it_decodes() {
        let spec = TableSpec::dense("t", 100, 1);
        let (codecs, values) = encoded();
        let plain = Payload::new(vec![2f32; 100]);
        // (the codecs that the head names, the values, rows asked for, the decoded values)
        for (codecs, values, rows, expected) in [
            (codecs, &values, 100, Some(vec![2f32; 100])),
            (codecs, &values, 99, None),
            (codecs, &values, usize::MAX, None),
            (CodecPipeline::default(), &plain, 100, None),
        ] {
            let mut decoder = AnswerDecoder::new(Stopwatch::default());
            let decoded = decoder.rows(codecs, values, &spec, rows);
            assert_eq!(decoded.map(|values| values.numbers::<f32>().expect("of f32").to_vec()), expected, "{rows}");
            let Meter { bytes_in, bytes_out, bytes_decoded, .. } = decoder.meter();
            let metered = if expected.is_some() { (400, values.len() as u64, 400) } else { (0, 0, 0) };
            assert_eq!((bytes_in, bytes_out, bytes_decoded), metered, "{rows}");
        }
    }

    #[test]
    fn answer_decoder_counts_a_delta_as_the_cached_rows_that_it_replaces() {
        let spec = TableSpec::dense("t", 100, 1);
        let (codecs, values) = encoded();
        let mut decoder = AnswerDecoder::new(Stopwatch::default());
        assert!(decoder.delta(codecs, &values, &spec, 100, 30, 7).is_some());
        let Meter { bytes_in, bytes_out, bytes_decoded, .. } = decoder.meter();
        assert_eq!((bytes_in, bytes_out, bytes_decoded), (120, values.len() as u64 + 7, 400));
    }
}

//! Decoding: turns the encoded keys and values of a push back into plain ones, before validation.

use crate::rows::resolve::NotApplied;
use codec::{Formats, Meter, PayloadDecoder, Stopwatch};
use types::{PART_BYTES, TableSpec};
use wire::{CodecPipeline, KeyPart, Payload, Pool, Push, Refusal};

/// Decodes packed keys into a list. Returns other keys as they are.
pub(crate) fn unpacked(keys: KeyPart) -> Result<KeyPart, Refusal> {
    let KeyPart::Packed { signature, start, count, packed } = keys else { return Ok(keys) };
    let bytes = count as usize * 8;
    if bytes > PART_BYTES {
        return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes as u64 });
    }
    let mut positions = vec![0u64; count as usize];
    codec::keys::decode(packed.bytes(), &mut positions).map_err(|_| Refusal::Undecodable)?;
    Ok(KeyPart::List { signature, start, positions: Payload::new(positions) })
}

/// Decodes the pushes of one table, and measures what that costs.
pub(crate) struct PushDecoder {
    decoder: PayloadDecoder,
    stopwatch: Stopwatch,
    meter: Meter,
}

impl PushDecoder {
    /// A decoder that measures time with `stopwatch`.
    pub fn new(stopwatch: Stopwatch) -> Self {
        Self { decoder: PayloadDecoder::default(), stopwatch, meter: Meter::default() }
    }

    /// What decoding has cost.
    pub fn meter(&self) -> Meter {
        self.meter
    }

    /// Decodes the keys and values of a push. Never allocates more than one part's bytes for them,
    /// even if the push claims more.
    pub fn decode(
        &mut self,
        codecs: CodecPipeline,
        push: Push,
        spec: &TableSpec,
        pool: &Pool,
    ) -> Result<Push, NotApplied> {
        let formats = Formats(codecs.0);
        let keys = unpacked(push.keys)?;
        if formats.leaves_values() {
            return Ok(Push { keys, ..push });
        }
        if push.writes.replaces_rows() {
            return Err(Refusal::Undecodable.into());
        }
        let count = keys.count().ok_or(Refusal::NotOrdered)?;
        let bytes = count.saturating_mul(spec.row_bytes() as u64);
        if bytes > PART_BYTES as u64 {
            return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes }.into());
        }
        let began = (self.stopwatch.0)();
        let mut values = pool.take(bytes as usize);
        let width = spec.width as usize;
        let encoded = push.values.bytes();
        let result = self.decoder.decode(formats, encoded, push.number, width, values.bytes_mut());
        result.map_err(|_| Refusal::Undecodable)?;
        self.meter.decoded(bytes as usize, (self.stopwatch.0)().saturating_sub(began));
        Ok(Push { keys, values: values.freeze(), ..push })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::{BatchRows, PayloadEncoder, Pipeline};
    use std::sync::atomic::{AtomicU64, Ordering};
    use types::{NumberType, Position, ShardId, TableId};
    use wire::{Signature, Writes};

    const WIDTH: u32 = 256;

    /// A stopwatch that shows 5 nanoseconds more each time.
    fn stopwatch() -> Stopwatch {
        static NOW: AtomicU64 = AtomicU64::new(0);
        Stopwatch(|| NOW.fetch_add(5, Ordering::Relaxed))
    }

    fn push(keys: KeyPart, values: Payload) -> Push {
        let number = NumberType::F32;
        Push { table: TableId(0), shard: ShardId(0), settled: 0, number, writes: Writes::GRADIENTS, keys, values }
    }

    fn run(count: u64) -> KeyPart {
        KeyPart::Run { first: Position(0), count }
    }

    fn packed(positions: &[u64], count: u32) -> KeyPart {
        let mut packed = Vec::new();
        codec::keys::encode(positions, &mut packed);
        KeyPart::Packed { signature: Signature(9), start: 0, count, packed: Payload::new(packed) }
    }

    /// Two rows, encoded, and what they decode to.
    fn encoded() -> (CodecPipeline, Payload, Vec<f32>) {
        let pipeline = Pipeline::parse(["bf16"]).expect("a pipeline");
        let mut encoder = PayloadEncoder::new(&pipeline, NumberType::F32, WIDTH as usize, 1, Stopwatch::default());
        let values: Vec<f32> = (0..2 * WIDTH).map(|index| (index % 8) as f32).collect();
        let rows = BatchRows::Run { first: Position(0), count: 2 };
        let (bytes, formats) = encoder.encode(rows, bytemuck::cast_slice(&values)).expect("it shrinks");
        (CodecPipeline(formats.0), Payload::new(bytes), values)
    }

    #[test]
    fn packed_keys_are_unpacked_and_malformed_ones_refused() {
        let positions: Vec<u64> = (0..100).map(|index| index * 3).collect();
        let unpacked_keys = unpacked(packed(&positions, 100)).expect("readable");
        let KeyPart::List { signature: Signature(9), start: 0, positions: list } = &unpacked_keys else {
            panic!("{unpacked_keys:?}");
        };
        assert_eq!(list.numbers::<u64>(), Some(&positions[..]));
        assert_eq!(unpacked(run(3)), Ok(run(3)), "other keys stay as they are");
        let too_many = PART_BYTES as u32 / 8 + 1;
        let found = u64::from(too_many) * 8;
        for (keys, refusal) in [
            (packed(&positions, 101), Refusal::Undecodable),
            (packed(&positions, too_many), Refusal::WrongLength { expected: PART_BYTES as u64, found }),
        ] {
            assert_eq!(unpacked(keys), Err(refusal));
        }
    }

    #[test]
    fn decoder_restores_encoded_values_and_counts_them_in_its_meter() {
        let spec = TableSpec::dense("t", 10, WIDTH);
        let mut decoder = PushDecoder::new(stopwatch());
        let pool = Pool::new();
        let (codecs, values, plain) = encoded();
        let decoded = decoder.decode(codecs, push(run(2), values), &spec, &pool).ok().expect("readable");
        assert_eq!(decoded.values.numbers::<f32>(), Some(&plain[..]));
        let meter = Meter { bytes_decoded: 2 * 4 * u64::from(WIDTH), decode_ns: 5, ..Meter::default() };
        assert_eq!(decoder.meter(), meter);
        let unencoded = push(run(2), Payload::new(plain));
        let same = decoder.decode(CodecPipeline::default(), unencoded.clone(), &spec, &pool).ok().expect("plain");
        assert_eq!((same, decoder.meter()), (unencoded, meter), "plain values cost nothing");
    }

    #[test]
    fn decoder_refuses_malformed_payloads_and_leaves_them_out_of_its_meter() {
        let spec = TableSpec::dense("t", 1 << 20, WIDTH);
        let (codecs, values, _) = encoded();
        let row_bytes = spec.row_bytes() as u64;
        let most = PART_BYTES as u64 / row_bytes;
        let too_long = |count: u64| Refusal::WrongLength { expected: PART_BYTES as u64, found: count * row_bytes };
        let scan = KeyPart::Scan { range: types::PositionRange::ALL };
        let plain = push(run(2), values.clone());
        // (codecs, push, refusal)
        for (codecs, push, expected) in [
            (codecs, push(run(3), values.clone()), Refusal::Undecodable),
            (codecs, push(run(2), values.slice(0..values.len() / 2)), Refusal::Undecodable),
            (CodecPipeline([255; 8]), plain.clone(), Refusal::Undecodable),
            (codecs, Push { writes: Writes::Rows, ..plain.clone() }, Refusal::Undecodable),
            (codecs, Push { number: NumberType::I64, ..plain.clone() }, Refusal::Undecodable),
            (codecs, push(run(most + 1), values.clone()), too_long(most + 1)),
            (
                codecs,
                push(run(1 << 60), values.clone()),
                Refusal::WrongLength { expected: PART_BYTES as u64, found: u64::MAX },
            ),
            (codecs, push(scan, values.clone()), Refusal::NotOrdered),
        ] {
            let mut decoder = PushDecoder::new(stopwatch());
            match decoder.decode(codecs, push.clone(), &spec, &Pool::new()) {
                Err(NotApplied::Refuse(refusal)) => assert_eq!(refusal, expected, "{:?}", push.keys),
                Err(NotApplied::UnknownKeys(_)) | Ok(_) => panic!("{:?} is not refused", push.keys),
            }
            assert_eq!(decoder.meter(), Meter::default(), "{:?}", push.keys);
        }
    }
}

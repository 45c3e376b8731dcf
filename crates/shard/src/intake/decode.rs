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

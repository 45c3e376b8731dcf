//! What codecs did to a message on its way here is undone before anything else looks at it.

use crate::rows::resolve::NotApplied;
use crate::shard::Shard;
use codec::Formats;
use types::PART_BYTES;
use update::Number;
use wire::{CodecPipeline, KeyPart, Payload, Push, Refusal, Writes};

/// Keys as they were before they were shortened.
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

impl<T: Number> Shard<T> {
    /// A push with its keys and values as they were before they were encoded.
    pub(crate) fn decode(&mut self, codecs: CodecPipeline, push: Push) -> Result<Push, NotApplied> {
        let (formats, keys) = (Formats(codecs.0), unpacked(push.keys)?);
        if formats.leaves_values() {
            return Ok(Push { keys, ..push });
        }
        if push.writes == Writes::Rows {
            return Err(Refusal::Undecodable.into());
        }
        let count = keys.count().ok_or(Refusal::NotOrdered)?;
        let bytes = count.saturating_mul(self.spec.row_bytes() as u64);
        if bytes > PART_BYTES as u64 {
            return Err(Refusal::WrongLength { expected: PART_BYTES as u64, found: bytes }.into());
        }
        let began = (self.stopwatch.0)();
        let mut values = self.pool.take(bytes as usize);
        let (width, encoded) = (self.spec.width as usize, push.values.bytes());
        let result = self.decoder.decode(formats, encoded, push.number, width, values.bytes_mut());
        result.map_err(|_| Refusal::Undecodable)?;
        self.decoded.decoded(bytes as usize, (self.stopwatch.0)().saturating_sub(began));
        Ok(Push { keys, values: values.freeze(), ..push })
    }
}

//! Compression by lz4 or zstd, used only if a sample shows that it pays.
//!
//! The first byte is a tag:
//! - 0: the bytes follow uncompressed;
//! - 1: their count (u32) and an lz4 block follow;
//! - 2: their count (u32) and a zstd frame follow.

use zstd::bulk::{Compressor, Decompressor};

use crate::DecodeError;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

/// Bytes of the tag and the count.
const HEAD: usize = 5;

/// Bytes of one piece of the sample. It has three, from the front, the middle and the end.
const SAMPLE_PIECE: usize = 4096;

/// Compression pays if it saves at least one byte in this many.
const LEAST_GAIN: usize = 16;

/// The compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteCodec {
    /// lz4: fast, finds repeated bytes.
    Lz4,
    /// zstd: slower, compresses better.
    Zstd {
        /// The effort.
        level: ZstdLevel,
    },
}

/// The compression level of zstd, 1 (fastest) to 19 (smallest output).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// `None` outside 1 to 19.
    #[must_use]
    pub fn new(level: u8) -> Option<Self> {
        (1..=19).contains(&level).then_some(Self(level))
    }

    /// The level as a number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for ZstdLevel {
    /// Level 1, the fastest: a message is compressed once and read once.
    fn default() -> Self {
        Self(1)
    }
}

/// Compresses batches of bytes; keeps the compressor between them.
pub struct BytesEncoder {
    codec: ByteCodec,
    /// Created at first use and kept, because creating one costs more than compressing a small
    /// batch.
    zstd: Option<Compressor<'static>>,
    sample: Vec<u8>,
}

impl BytesEncoder {
    /// An encoder that uses `codec`.
    #[must_use]
    pub fn new(codec: ByteCodec) -> Self {
        Self { codec, zstd: None, sample: Vec::new() }
    }

    /// Replaces `out` with `bytes`, compressed if that pays.
    pub fn encode(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if !(self.sample_pays(bytes, out) && self.compress(bytes, out) && pays(bytes.len(), out.len())) {
            out.clear();
            out.push(PLAIN);
            out.extend_from_slice(bytes);
        }
    }

    /// Whether compressing a sample of `bytes` pays. Always true for a batch hardly longer than the
    /// sample.
    fn sample_pays(&mut self, bytes: &[u8], scratch: &mut Vec<u8>) -> bool {
        if bytes.len() <= 6 * SAMPLE_PIECE {
            return true;
        }
        let mut sample = std::mem::take(&mut self.sample);
        sample.clear();
        for start in [0, bytes.len() / 2, bytes.len() - SAMPLE_PIECE] {
            sample.extend_from_slice(&bytes[start..start + SAMPLE_PIECE]);
        }
        let pays = self.compress(&sample, scratch) && pays(sample.len(), scratch.len());
        self.sample = sample;
        pays
    }

    /// Compresses `bytes` into `out`. Returns false if that failed; the caller then sends them
    /// uncompressed.
    fn compress(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let Ok(count) = u32::try_from(bytes.len()) else { return false };
        let (tag, most) = match self.codec {
            ByteCodec::Lz4 => (LZ4, lz4_flex::block::get_maximum_output_size(bytes.len())),
            ByteCodec::Zstd { .. } => (ZSTD, zstd::zstd_safe::compress_bound(bytes.len())),
        };
        out.resize(HEAD + most, 0);
        let (head, body) = out.split_at_mut(HEAD);
        head[0] = tag;
        head[1..].copy_from_slice(&count.to_le_bytes());
        let length = match self.codec {
            ByteCodec::Lz4 => lz4_flex::block::compress_into(bytes, body).ok(),
            ByteCodec::Zstd { level } => self.compress_zstd(level, bytes, body),
        };
        out.truncate(HEAD + length.unwrap_or_default());
        length.is_some()
    }

    fn compress_zstd(&mut self, level: ZstdLevel, bytes: &[u8], out: &mut [u8]) -> Option<usize> {
        if self.zstd.is_none() {
            self.zstd = Compressor::new(level.0.into()).ok();
        }
        self.zstd.as_mut()?.compress_to_buffer(bytes, out).ok()
    }
}

fn pays(before: usize, after: usize) -> bool {
    after < before - before / LEAST_GAIN
}

/// Decodes the output of any [`BytesEncoder`].
#[derive(Default)]
pub struct BytesDecoder {
    zstd: Option<Decompressor<'static>>,
}

impl BytesDecoder {
    /// Replaces `out` with the original bytes. Refuses input that declares more than `most` of
    /// them.
    pub fn decode(&mut self, bytes: &[u8], most: usize, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let (&tag, rest) = bytes.split_first().ok_or(DecodeError::Truncated)?;
        if tag == PLAIN {
            if rest.len() > most {
                return Err(DecodeError::TooLong { length: rest.len(), most });
            }
            out.clear();
            out.extend_from_slice(rest);
            return Ok(());
        }
        if tag > ZSTD {
            return Err(DecodeError::Tag(tag));
        }
        let (count, body) = rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        let length = u32::from_le_bytes(*count) as usize;
        if length > most {
            return Err(DecodeError::TooLong { length, most });
        }
        out.resize(length, 0);
        let found = if tag == LZ4 {
            lz4_flex::block::decompress_into(body, out).map_err(|_| DecodeError::Damaged)?
        } else {
            self.decompress_zstd(body, out)?
        };
        if found == length { Ok(()) } else { Err(DecodeError::Damaged) }
    }

    fn decompress_zstd(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        if self.zstd.is_none() {
            self.zstd = Decompressor::new().ok();
        }
        let zstd = self.zstd.as_mut().ok_or(DecodeError::Damaged)?;
        zstd.decompress_to_buffer(bytes, out).map_err(|_| DecodeError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: [ByteCodec; 2] = [ByteCodec::Lz4, ByteCodec::Zstd { level: ZstdLevel(1) }];

    fn scattered(length: usize) -> Vec<u8> {
        (0..length as u64)
            .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ i) as u8 ^ (i * i) as u8)
            .collect()
    }

    fn round_trip(encoder: &mut BytesEncoder, bytes: &[u8]) -> Vec<u8> {
        let mut encoded = vec![3; 5];
        let mut again = vec![1; 2];
        encoder.encode(bytes, &mut encoded);
        BytesDecoder::default().decode(&encoded, bytes.len(), &mut again).unwrap();
        assert!(bytes == again, "{} bytes differ", bytes.len());
        encoded
    }

    #[test]
    fn byte_codecs_shrink_repeats_and_leave_noise_uncompressed() {
        for codec in CODECS {
            let mut encoder = BytesEncoder::new(codec);
            for length in [0, 1, 5, 100, 10_000, 1 << 20] {
                let plain =
                    round_trip(&mut encoder, &scattered(length).iter().map(|byte| byte | 1).collect::<Vec<_>>());
                assert!(plain.len() <= length + 1);
                let repeated = round_trip(&mut encoder, &vec![7; length]);
                assert!(length < 100 || repeated.len() < length / 4);
            }
        }
    }

    #[test]
    fn byte_codecs_leave_bytes_alone_when_the_sample_does_not_shrink() {
        let mut bytes = vec![0; 1 << 20];
        let mut noise = 1u64;
        let mut scatter = |bytes: &mut [u8]| {
            for byte in bytes {
                noise = noise.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                *byte = (noise >> 56) as u8;
            }
        };
        let middle = bytes.len() / 2;
        scatter(&mut bytes[..SAMPLE_PIECE]);
        scatter(&mut bytes[middle..middle + SAMPLE_PIECE]);
        let end = bytes.len() - SAMPLE_PIECE;
        scatter(&mut bytes[end..]);
        for codec in CODECS {
            assert_eq!(round_trip(&mut BytesEncoder::new(codec), &bytes).len(), bytes.len() + 1);
        }
    }

    #[test]
    fn byte_decoder_says_how_bytes_are_damaged() {
        let decode = |bytes: &[u8]| BytesDecoder::default().decode(bytes, 100, &mut Vec::new());
        let mut encoded = Vec::new();
        BytesEncoder::new(ByteCodec::Lz4).encode(&[5; 100], &mut encoded);
        encoded[1] = 99;
        let table: [(&[u8], DecodeError); 8] = [
            (&[], DecodeError::Truncated),
            (&[3], DecodeError::Tag(3)),
            (&[PLAIN; 102], DecodeError::TooLong { length: 101, most: 100 }),
            (&[LZ4, 1, 0, 0], DecodeError::Truncated),
            (&[ZSTD, 101, 0, 0, 0], DecodeError::TooLong { length: 101, most: 100 }),
            (&[ZSTD, 10, 0, 0, 0, 1, 2, 3], DecodeError::Damaged),
            (&[LZ4, 10, 0, 0, 0, 255, 255], DecodeError::Damaged),
            (&encoded, DecodeError::Damaged),
        ];
        for (bytes, error) in table {
            assert_eq!(decode(bytes), Err(error), "{bytes:?}");
        }
    }
}

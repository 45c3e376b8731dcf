//! The safetensors format: encodes the head of a file, and decodes a file from pieces of any size.
//!
//! A file is 8 bytes with the length of its head, the head, and the tensors, one after the other.
//! The head is JSON and holds the type, shape and place of each tensor. The decoder allocates no
//! more memory than the file is long: it compares every length in the head with the file's length
//! before it allocates.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::HashMap;

/// The size of the field that holds the head's length.
const LENGTH_BYTES: usize = 8;
/// The longest head. It has room for some hundred thousand tensors. The bound limits the memory
/// that a wrong length can claim.
const MOST_HEAD_BYTES: u64 = 16 << 20;
/// The head's metadata entry that says in words what the file holds.
const HOLDS: &str = "holds";

// The format is little-endian, and numbers are written as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "checkpoints are little-endian, and so must be the machine");

/// A tensor to write.
pub(crate) struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: &'a [u8],
}

/// The head of a file, with its length before it. The tensors' bytes follow in the same order.
pub(crate) fn head(holds: &str, tensors: &[Tensor]) -> Result<Vec<u8>, String> {
    let mut end = 0;
    let places = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.bytes.len();
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        (tensor.name.to_owned(), info)
    });
    let metadata = HashMap::from([(HOLDS.to_owned(), holds.to_owned())]);
    let metadata = Metadata::new(Some(metadata), places.collect()).map_err(|error| error.to_string())?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| error.to_string())?;
    // Align the numbers of the first tensor, for readers that map the file into memory.
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    if json.len() as u64 > MOST_HEAD_BYTES {
        return Err(format!("its head would have {} bytes, and at most {MOST_HEAD_BYTES} are allowed", json.len()));
    }
    let mut head = (json.len() as u64).to_le_bytes().to_vec();
    head.append(&mut json);
    Ok(head)
}

/// A tensor's numbers, in memory that is aligned for them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Buffer {
    U8(Vec<u8>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

/// A tensor that was read.
#[derive(Debug)]
pub(crate) struct Found {
    pub name: String,
    pub shape: Vec<usize>,
    pub buffer: Buffer,
}

/// The contents of a whole file.
#[derive(Debug)]
pub(crate) struct Contents {
    pub holds: String,
    pub tensors: Vec<Found>,
}

/// Decodes a file of a known length, piece by piece.
pub(crate) struct Decoder {
    file_bytes: u64,
    /// The received bytes of the length field and the head.
    head: Vec<u8>,
    /// What the file holds, in words. Present once the head is whole.
    holds: Option<String>,
    /// The tensors, in the order of their bytes.
    tensors: Vec<(String, TensorInfo, Option<Buffer>)>,
    /// The index of the tensor that the next byte belongs to.
    current: usize,
    /// How many bytes of the current tensor have arrived.
    filled: usize,
}

impl Decoder {
    pub fn new(file_bytes: u64) -> Self {
        Self { file_bytes, head: Vec::new(), holds: None, tensors: Vec::new(), current: 0, filled: 0 }
    }

    /// Decodes the next bytes of the file.
    pub fn feed(&mut self, mut piece: &[u8]) -> Result<(), String> {
        while self.holds.is_none() && !piece.is_empty() {
            let wanted = self.head_bytes()? - self.head.len();
            let (now, rest) = piece.split_at(wanted.min(piece.len()));
            self.head.extend_from_slice(now);
            piece = rest;
            if self.head.len() > LENGTH_BYTES && self.head.len() == self.head_bytes()? {
                self.read_head()?;
            }
        }
        while !piece.is_empty() {
            let Some((_, info, buffer)) = self.tensors.get_mut(self.current) else {
                return Err("it has bytes after its last tensor".to_owned());
            };
            let buffer = match buffer {
                Some(buffer) => buffer,
                None => buffer.insert(Buffer::of(info)?),
            };
            let room = &mut buffer.bytes_mut()[self.filled..];
            let (now, rest) = piece.split_at(room.len().min(piece.len()));
            room[..now.len()].copy_from_slice(now);
            piece = rest;
            self.filled += now.len();
            if now.len() == room.len() {
                self.current += 1;
                self.filled = 0;
            }
        }
        Ok(())
    }

    /// The contents of the file. Fails if some bytes did not arrive.
    pub fn finish(self) -> Result<Contents, String> {
        let holds = self.holds.ok_or("it ends within its head")?;
        let missing = |info: &TensorInfo| info.data_offsets.0 < info.data_offsets.1;
        if self.filled > 0 || self.tensors[self.current..].iter().any(|(_, info, _)| missing(info)) {
            return Err("it ends within a tensor".to_owned());
        }
        let found = |(name, info, buffer): (String, TensorInfo, Option<Buffer>)| {
            let buffer = buffer.map_or_else(|| Buffer::of(&info), Ok)?;
            Ok(Found { name, shape: info.shape, buffer })
        };
        let tensors = self.tensors.into_iter().map(found).collect::<Result<_, String>>()?;
        Ok(Contents { holds, tensors })
    }

    /// How many bytes of length field and head are needed: until the length is known, those of the
    /// length field alone.
    fn head_bytes(&self) -> Result<usize, String> {
        let Some(length) = self.head.first_chunk::<LENGTH_BYTES>() else { return Ok(LENGTH_BYTES) };
        let length = u64::from_le_bytes(*length);
        let most = MOST_HEAD_BYTES.min(self.file_bytes.saturating_sub(LENGTH_BYTES as u64));
        if length == 0 || length > most {
            return Err(format!("its head cannot have {length} bytes"));
        }
        Ok(LENGTH_BYTES + length as usize)
    }

    fn read_head(&mut self) -> Result<(), String> {
        let metadata: Metadata = serde_json::from_slice(&self.head[LENGTH_BYTES..])
            .map_err(|error| format!("its head is not in the safetensors format: {error}"))?;
        let names = metadata.offset_keys();
        let tensors = names.into_iter().filter_map(|name| metadata.info(&name).cloned().map(|info| (name, info, None)));
        self.tensors = tensors.collect();
        if (self.file_bytes - self.head.len() as u64) != metadata.data_len() as u64 {
            return Err(format!(
                "its head lists {} bytes of tensors, and the file has more or fewer",
                metadata.data_len()
            ));
        }
        let holds = metadata.metadata().as_ref().and_then(|entries| entries.get(HOLDS));
        self.holds = Some(holds.cloned().unwrap_or_default());
        Ok(())
    }
}

impl Buffer {
    /// A buffer of zeros for a tensor. Its length was already compared with the file's.
    fn of(info: &TensorInfo) -> Result<Self, String> {
        let bytes = info.data_offsets.1 - info.data_offsets.0;
        Ok(match info.dtype {
            Dtype::U8 => Self::U8(vec![0; bytes]),
            Dtype::U64 => Self::U64(vec![0; bytes / 8]),
            Dtype::I64 => Self::I64(vec![0; bytes / 8]),
            Dtype::F32 => Self::F32(vec![0.0; bytes / 4]),
            Dtype::F64 => Self::F64(vec![0.0; bytes / 8]),
            other => return Err(format!("it has a tensor of {other:?}, which checkpoints do not have")),
        })
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::U8(numbers) => numbers,
            Self::U64(numbers) => bytemuck::cast_slice_mut(numbers),
            Self::I64(numbers) => bytemuck::cast_slice_mut(numbers),
            Self::F32(numbers) => bytemuck::cast_slice_mut(numbers),
            Self::F64(numbers) => bytemuck::cast_slice_mut(numbers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A buffer of any type, possibly empty.
    fn buffer() -> impl Strategy<Value = Buffer> {
        let few = 0..9_usize;
        prop_oneof![
            prop::collection::vec(any::<u8>(), few.clone()).prop_map(Buffer::U8),
            prop::collection::vec(any::<u64>(), few.clone()).prop_map(Buffer::U64),
            prop::collection::vec(any::<i64>(), few.clone()).prop_map(Buffer::I64),
            prop::collection::vec(-1e9_f32..1e9, few.clone()).prop_map(Buffer::F32),
            prop::collection::vec(-1e9_f64..1e9, few).prop_map(Buffer::F64),
        ]
    }

    fn file(buffers: &mut [Buffer]) -> Vec<u8> {
        let names: Vec<String> = (0..buffers.len()).map(|at| format!("tensor {at}")).collect();
        let tensors = buffers.iter_mut().zip(&names).map(|(buffer, name)| {
            let (dtype, numbers) = match buffer {
                Buffer::U8(numbers) => (Dtype::U8, numbers.len()),
                Buffer::U64(numbers) => (Dtype::U64, numbers.len()),
                Buffer::I64(numbers) => (Dtype::I64, numbers.len()),
                Buffer::F32(numbers) => (Dtype::F32, numbers.len()),
                Buffer::F64(numbers) => (Dtype::F64, numbers.len()),
            };
            Tensor { name, dtype, shape: vec![numbers], bytes: buffer.bytes_mut() }
        });
        let tensors: Vec<Tensor> = tensors.collect();
        let mut file = head("a test", &tensors).unwrap();
        tensors.iter().for_each(|tensor| file.extend_from_slice(tensor.bytes));
        file
    }

    fn decode(file: &[u8], piece_bytes: usize) -> Result<Contents, String> {
        let mut decoder = Decoder::new(file.len() as u64);
        file.chunks(piece_bytes).try_for_each(|piece| decoder.feed(piece))?;
        decoder.finish()
    }

    proptest! {
        #[test]
        fn a_file_is_read_in_pieces_of_any_size(
            mut buffers in prop::collection::vec(buffer(), 0..5),
            piece_bytes in 1..300_usize,
        ) {
            let file = file(&mut buffers);
            let contents = decode(&file, piece_bytes).unwrap();
            prop_assert_eq!(contents.holds, "a test");
            let mut found = contents.tensors;
            found.sort_by(|a, b| a.name.cmp(&b.name));
            let found: Vec<Buffer> = found.into_iter().map(|tensor| tensor.buffer).collect();
            prop_assert_eq!(found, buffers);
        }

        #[test]
        fn a_truncated_file_is_refused(
            mut buffers in prop::collection::vec(buffer(), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let file = file(&mut buffers);
            let end = cut.index(file.len());
            // With the length of the part, and with the length of the whole file.
            prop_assert!(decode(&file[..end], 64).is_err());
            let mut decoder = Decoder::new(file.len() as u64);
            prop_assert!(decoder.feed(&file[..end]).and_then(|()| decoder.finish().map(drop)).is_err());
        }
    }

    #[test]
    fn wrong_lengths_are_refused_before_memory_is_allocated() {
        let file = |length: u64, json: &str| [&length.to_le_bytes()[..], json.as_bytes()].concat();
        let tensor = |dtype: &str, shape: &str, end: &str| {
            let json = format!("{{\"t\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}");
            file(json.len() as u64, &json)
        };
        for (file, words) in [
            (file(0, "{}"), "its head cannot have 0 bytes"),
            (file(u64::MAX, "{}"), "its head cannot have"),
            (file(3, "{}"), "its head cannot have 3 bytes"),
            (file(2, "{]"), "not in the safetensors format"),
            (tensor("U8", "[1000000000000]", "1000000000000"), "lists 1000000000000 bytes"),
            (tensor("U64", "[2305843009213693951]", "18446744073709551608"), "overflow"),
            (tensor("U8", "[3]", "2"), "not in the safetensors format"),
            ([tensor("BF16", "[1]", "2"), vec![0; 2]].concat(), "a tensor of BF16"),
        ] {
            let problem = decode(&file, 1000).unwrap_err();
            assert!(problem.contains(words), "{problem} does not say `{words}`");
        }
    }
}

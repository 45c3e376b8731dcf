//! The residuals of one worker's codecs, as a file: named bytes that only the codecs understand.

use crate::tensors::{Buffer, Contents, Decoder, Found, Tensor, head};
use safetensors::tensor::Dtype;
use std::collections::{BTreeMap, HashSet};

/// The format reserves this name for the metadata of a head.
const RESERVED: &str = "__metadata__";

/// The bytes of residuals, by their names.
pub type ResidualBytes = BTreeMap<String, Vec<u8>>;

pub(crate) fn holds(worker: &str) -> String {
    format!("the residuals of worker `{worker}`")
}

/// The head of a file of residuals. Their bytes follow it, in order.
pub(crate) fn residuals_head(worker: &str, residuals: &[(&str, &[u8])]) -> Result<Vec<u8>, String> {
    let mut names = HashSet::new();
    for (name, _) in residuals {
        if *name == RESERVED || !names.insert(name) {
            return Err(format!("{}: the name `{name}` is reserved or comes twice", holds(worker)));
        }
    }
    let tensors: Vec<Tensor> = residuals
        .iter()
        .map(|&(name, bytes)| Tensor { name, dtype: Dtype::U8, shape: vec![bytes.len()], bytes })
        .collect();
    head(&holds(worker), &tensors)
}

/// Decodes a whole file from memory.
///
/// ```
/// assert!(store::residuals_from_bytes("3", b"something else").is_err());
/// ```
///
/// # Errors
/// The problem with the file, in words.
pub fn residuals_from_bytes(worker: &str, file: &[u8]) -> Result<ResidualBytes, String> {
    let mut decoder = Decoder::new(file.len() as u64);
    decoder.feed(file)?;
    residuals_from_contents(worker, decoder.finish()?)
}

pub(crate) fn residuals_from_contents(worker: &str, contents: Contents) -> Result<ResidualBytes, String> {
    if contents.holds != holds(worker) {
        return Err(format!("it says that it holds {}", contents.holds));
    }
    let bytes = |tensor: Found| match tensor.buffer {
        Buffer::U8(bytes) => Ok((tensor.name, bytes)),
        _ => Err(format!("its tensor `{}` is not of bytes", tensor.name)),
    };
    contents.tensors.into_iter().map(bytes).collect()
}

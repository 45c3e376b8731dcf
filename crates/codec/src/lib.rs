//! Codecs: they make the messages between workers and shards smaller.
//!
//! A [`Codec`] is one step: for keys, for values or for bytes. A [`Pipeline`] is the ordered list
//! of a table's codecs for one direction, checked to go together.
//!
//! - Each codec has a module of pure functions, `encode` and `decode`, whose head describes its
//!   bytes.
//! - A [`ValueEncoder`] holds the state of a value codec, such as its residuals.
//! - A [`Meter`] counts what a codec costs and gains.
//!
//! A decoder never panics. It allocates no more than the encoded bytes warrant: the caller passes
//! the number of values as the length of the output.
//!
//! # Names
//! | name | what is sent | bytes for n values | error feedback |
//! | --- | --- | --- | --- |
//! | `keys` | sorted keys as gaps of few bits, runs as ranges | | |
//! | `bf16`, `f16` | half an f32 | 2 n | |
//! | `fixed1` … `fixed16` | so many bits, rounded at random without bias | n b / 8 + n / 128 | |
//! | `1bit`, `2bit` | signs, and a mean for each side of zero | n / 8, n / 4, and 8 or 16 a row | yes |
//! | `topk=1%` | the largest values | about 5 a value sent | yes |
//! | `threshold=0.01` | values of at least this magnitude | about 5 a value sent | yes |
//! | `zeros` | values that are not zero, exactly | about 5 a value sent | |
//! | `lz4`, `zstd`, `zstd=3` | the bytes so far, compressed if a sample shows that it pays | | |
//! | `kkt` | only the active set of an ℓ1 problem, as the shard reports it | | |
//! | `skip=50%` | this share of pulls is not sent: cached rows answer | | |
//! | `spelt` | keys in full in every message: the baseline for comparisons | 8 a key | |
//! | `noresidual` | residuals are dropped, for experiments | | |
//!
//! `auto`, alone, chooses codecs by the measured bandwidth of the link.
//!
//! This crate does no I/O and reads no clock. Its random numbers follow from seeds that the caller
//! passes.

pub mod bf16;
mod bits;
pub mod bytes;
mod check;
mod codec;
mod columns;
mod encoder;
mod error;
pub mod f16;
pub mod fixed;
mod format;
mod group;
pub mod grouped_sign;
pub mod keys;
mod meter;
mod name;
mod payload;
mod pipeline;
mod places;
mod random;
mod residuals;
mod sides;
mod signatures;
mod single_rows;
pub mod sparse;
mod table;
#[cfg(test)]
mod testing;
pub mod threshold;
pub mod top_k;
mod twin;
pub mod zeros;

pub use bytes::{ByteCodec, BytesDecoder, BytesEncoder};
pub use check::check_spec;
pub use codec::{Codec, ErrorBound, Sums, ValueCodec};
pub use encoder::ValueEncoder;
pub use error::DecodeError;
pub use format::{PayloadFormat, ValueFormat};
pub use group::group_values;
pub use meter::Meter;
pub use name::NameError;
pub use payload::{Formats, PayloadDecoder, PayloadEncoder, Stopwatch};
pub use pipeline::{Pipeline, PipelineError, PipelineWarning};
pub use places::ZeroElide;
pub use residuals::{AbsorbError, BatchRows, Dropped, ResidualRun, RowResiduals};
pub use signatures::Signatures;
pub use table::{CodecChoice, TableCodecs};
pub use top_k::Percentage;

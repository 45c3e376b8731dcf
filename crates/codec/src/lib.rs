//! What shrinks a message.
//!
//! A [`Codec`] is one step: for keys, for values or for bytes. A [`Pipeline`] is the steps of a
//! table in one direction, in order, checked to go together. Each step has a module of pure
//! functions, `encode` and `decode`, and says there what its bytes are; a [`ValueEncoder`] holds
//! what a value codec remembers, a [`Meter`] what it costs. A decoder never panics and allocates no
//! more than the encoded bytes warrant: how many values there are is told from outside, as the
//! length of its output.
//!
//! # Names
//! | name | what is sent | bytes for n values | error feedback |
//! | --- | --- | --- | --- |
//! | `keys` | sorted keys as gaps of few bits, runs as ranges | | |
//! | `bf16`, `f16` | half an f32 | 2 n | |
//! | `fixed1` … `fixed16` | so many bits, rounded at random without bias | n b / 8 + n / 128 | |
//! | `1bit`, `2bit` | the side of each value and the means of the sides | n / 8, n / 4, and 8 or 16 a row | yes |
//! | `topk=1%` | the largest values | about 5 a value sent | yes |
//! | `threshold=0.01` | values of at least that magnitude | about 5 a value sent | yes |
//! | `zeros` | values that are not zero, exactly | about 5 a value sent | |
//! | `lz4`, `zstd`, `zstd=3` | whatever came before, compressed where a sample says it pays | | |
//! | `kkt` | only coordinates that an ℓ1 problem may still move, as the shard says | | |
//! | `skip=50%` | that share of pulls is not sent: older copies answer | | |
//! | `spelt` | keys in full in every message: what the others are compared with | 8 a key | |
//! | `noresidual` | what error feedback would keep is lost, for experiments | | |
//!
//! `auto` alone stands for what the measured link makes worth while.
//!
//! Nothing here does I/O, reads a clock or draws a random number that its caller did not seed.

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

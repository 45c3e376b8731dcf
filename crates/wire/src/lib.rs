//! The frame and the messages: the only wire format.
//!
//! A [`Frame`] is a [`Head`], which every message carries alike, and a [`Message`], which is one of
//! its kinds. Bulk data (positions and values) rides behind a message as [`Payload`]s that are
//! never copied here: encoding writes the small part into a buffer and leaves the payloads to the
//! transport's vectored write; decoding takes payloads that the transport has read straight from
//! the socket.

mod bits;
mod buffer;
mod changes;
mod feed;
mod field;
mod frame;
mod keys;
mod leader;
mod loan;
mod message;
mod order;
mod outbox;
mod whole;

pub use bits::Bits;
pub use buffer::{Backing, Fresh, MemoryKind, Payload, Pool};
pub use changes::{ChangeChunk, ChangeStep, FollowerCursor};
pub use feed::{FeedProgress, FeedReader, FeedStep};
pub use field::{Field, Reader};
#[doc(hidden)]
pub use frame::seal;
pub use frame::{
    CodecPipeline, Frame, HEADER_BYTES, Head, Header, MAX_BODY_BYTES, Stage, VERSION, WireError, decode, encode,
};
pub use keys::{KeyError, KeyPart, KeySlice, Keys, Signature};
pub use leader::Leader;
pub use loan::lend;
pub use message::{
    ASK_AGAIN, Acked, ChunkContents, Control, Delta, FailedClock, FeedCursor, LeaseTerms, LeasedPart, Marker, Member,
    MemberState, MemberStatus, Message, NodeReport, NodeRole, Pull, PullRefused, Pulled, Push, READ_WHOLE, ReadWaiting,
    Refresh, Refreshed, Refusal, Refused, ReplicaChunk, Replicated, Resend, ResendReason, Status, TableStatus, Timeout,
    Tune, Wants, Writes,
};
pub use outbox::Outbox;

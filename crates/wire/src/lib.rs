//! The wire format: frames and messages.
//!
//! A [`Frame`] is a [`Head`], which has the same fields in every frame, and a [`Message`]. Bulk
//! data (positions and values) follows a message as [`Payload`]s, which this crate never copies.
//! [`encode`] writes the head and the small fields into a buffer, and the transport writes the
//! payloads from where they are. [`decode`] takes payloads that the transport has read from the
//! socket.
//!
//! The crate also has what both ends of a connection share: key lists ([`Keys`]), the cursors of
//! followers ([`FollowerCursor`], [`FeedReader`]), heartbeats and the silence of peers
//! ([`Heartbeats`]), and the check for the newest coordinator ([`Leader`]).

mod authority;
mod bits;
mod buffer;
mod changes;
mod feed;
mod field;
mod frame;
mod heartbeats;
mod keys;
mod leader;
mod loan;
mod message;
mod order;
mod outbox;
mod sample;
mod whole;

pub use authority::{may_send, may_send_unseated};
pub use bits::Bits;
pub use buffer::{Backing, Fresh, MemoryKind, Payload, Pool};
pub use changes::{ChangeChunk, ChangeStep, FollowerCursor};
pub use feed::{FeedPage, FeedReader, FeedStep};
pub use field::{Field, Reader};
pub use frame::{
    CodecPipeline, Frame, HEADER_BYTES, Head, Header, MAX_BODY_BYTES, Stage, VERSION, WireError, decode, encode,
};
#[doc(hidden)]
pub use frame::{encode_unchecked, seal};
pub use heartbeats::Heartbeats;
pub use keys::{KeyError, KeyPart, KeySlice, Keys, Signature};
pub use leader::Leader;
pub use loan::lend;
pub use message::{
    ASK_AGAIN, Acked, ChunkContents, Control, Delta, FailedClock, FeedCursor, LeaseTerms, LeasedPart, Marker, Member,
    MemberState, MemberStatus, Message, NodeReport, NodeRole, Pull, PullRefused, Pulled, Push, READ_WHOLE, ReadWaiting,
    Refresh, Refreshed, Refusal, Refused, ReplicaChunk, Replicated, Resend, ResendReason, Status, TableStatus, Timeout,
    Trouble, Tune, WaitingRead, Wants, Writes,
};
pub use outbox::Outbox;
#[doc(hidden)]
pub use sample::{Sample, sample_frame, sample_of_each_kind};

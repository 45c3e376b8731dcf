//! Connections through shared memory between two processes of one host: a ring buffer in each
//! direction, which carries a byte stream as a socket would.
//!
//! The caller makes the memory and passes it over a Unix socket. Afterwards the socket carries
//! doorbells: bytes that wake a sleeping peer. When a process ends, however it ends, its socket
//! closes, and that tells the peer.
//!
//! A process trusts nothing that its peer can write:
//! - It copies and checks the peer's ring positions before it uses them.
//! - It copies bytes out of the rings before it parses them.
//! - The memory is sealed, so the peer can neither shrink nor grow it.
//! - Unless the run is insecure, a TLS handshake over the Unix socket comes first.

mod caches;
mod copy;
mod handshake;
mod page;
mod place;
mod ring;
mod stream;
mod watch;

pub use place::{Door, call, open};
pub use stream::SharedStream;
pub use watch::{WatchList, Watched, WatchedRings};

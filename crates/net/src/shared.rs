//! Shared memory between two processes of one host: a stream of bytes each way, as a socket would
//! carry it.
//!
//! The one who calls makes the memory and passes it over a Unix socket, which afterwards carries
//! bells: a byte that wakes a sleeping peer. When a process ends, however it ends, its socket
//! closes, and the other side learns of it there.
//!
//! Nothing that the other side can write is trusted. What it says about the rings is copied and
//! checked before it is used; bytes are copied out before anybody looks at them; and the memory is
//! sealed, so that it cannot be taken away.

mod caches;
mod copy;
mod page;
mod place;
mod ring;
mod stream;
mod watch;

pub use place::{Door, call, open};
pub use stream::SharedStream;
pub use watch::{WatchList, Watched, WatchedRings};

//! A deadline for tests that hang if something is wrong.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A test that takes longer hangs. No run takes a tenth of it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs `body` and fails if it takes longer than [`LIMIT`].
pub fn ends<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || sender.send(body()).ok());
    match receiver.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("only a panic ends the thread without a result"))
        }
        Err(RecvTimeoutError::Timeout) => panic!("{what} hangs: not done after {LIMIT:?}"),
    }
}

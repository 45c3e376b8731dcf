//! A fake socket for tests and fuzzing: delivers bytes in pieces of any length.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Result};

/// A socket that delivers its pieces one after another and then returns `WouldBlock`.
pub struct ChunkedSocket(pub VecDeque<Vec<u8>>);

impl Read for ChunkedSocket {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let Some(piece) = self.0.front_mut() else { return Err(ErrorKind::WouldBlock.into()) };
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        piece.drain(..count);
        if piece.is_empty() {
            self.0.pop_front();
        }
        Ok(count)
    }
}

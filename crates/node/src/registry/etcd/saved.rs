//! How a memory is written and read: whole, whatever its length, and by the leader alone.

use super::chunks::{PIECE_BYTES, Pieces};
use super::gateway::Failure;
use super::response::Answer;
use super::{EtcdRegistry, Leading, ROUNDS, request};
use crate::registry::RegistryError;
use crate::registry::stored::{self, Kind};
use std::time::Instant;

impl EtcdRegistry {
    /// Puts `memory` in the place of what is known to be there, or removes that.
    pub(super) fn replace(&mut self, now: Instant, memory: Option<&[u8]>) -> Result<(), RegistryError> {
        let mut leading = self.led(now)?;
        let job = self.candidate.job.clone();
        let pieces = match memory {
            Some(memory) if memory.len() > PIECE_BYTES => Some(self.write_pieces(leading, memory)?),
            _ => None,
        };
        let value = match (pieces, memory) {
            (Some(pieces), _) => Some(stored::seal(Kind::Pieces, &job, &pieces.to_bytes())),
            (None, Some(memory)) => Some(stored::seal(Kind::Memory, &job, memory)),
            (None, None) => None,
        };
        for _ in 0..ROUNDS {
            let by = self.in_time(leading)?;
            let request = request::replace(
                &self.keys,
                (leading.term, leading.revision),
                value.as_deref(),
                pieces.map(|pieces| pieces.name),
            );
            let read = |answer: &Answer| {
                Ok(match answer.succeeded()? {
                    true => Ok(answer.revision),
                    false => Err((answer.pair_at(0)?, answer.pair_at(1)?)),
                })
            };
            match self.gateway.call(request::TXN, &request, by, read)? {
                Ok(revision) => {
                    let revision = if memory.is_some() { revision } else { 0 };
                    self.leading.iter_mut().for_each(|leading| leading.revision = revision);
                    return Ok(());
                }
                Err((Some(leader), held)) if leader.created == leading.term => {
                    // An earlier leader wrote it, or this one in a request that it gave up. Another job did not.
                    let revision = held.as_ref().map_or(0, |held| held.modified);
                    held.map(|held| stored::open(&held.value, &job, &self.place).map(|_| ())).transpose()?;
                    leading.revision = revision;
                }
                Err((leader, _)) => return Err(self.superseded(leader.as_ref())),
            }
        }
        let reason = format!("the memory was changed {ROUNDS} times by others while this coordinator led");
        Err(RegistryError::Damaged { place: self.place.clone(), reason })
    }

    fn write_pieces(&mut self, leading: Leading, memory: &[u8]) -> Result<Pieces, RegistryError> {
        let pieces = Pieces::of((leading.term, leading.saves), memory);
        // A name is not used again, even if this fails: what was given up may yet be written.
        self.leading.iter_mut().for_each(|leading| leading.saves += 1);
        for (index, piece) in memory.chunks(PIECE_BYTES).enumerate() {
            let by = self.in_time(leading)?;
            let key = self.keys.piece(pieces.name, index);
            let request = request::put_if_leading(&self.keys.leader, leading.term, &key, piece);
            let read = |answer: &Answer| Ok(if answer.succeeded()? { Ok(()) } else { Err(answer.pair_at(0)?) });
            match self.gateway.call(request::TXN, &request, by, read)? {
                Ok(()) => {}
                Err(leader) => return Err(self.superseded(leader.as_ref())),
            }
        }
        Ok(pieces)
    }

    /// One attempt, which fails if the pieces were removed before they were read.
    pub(super) fn try_load(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let request = request::range(&self.keys.memory, None);
        let by = self.soon();
        let read = |answer: &Answer| Ok((answer.pair()?, answer.revision));
        let (pair, revision) = self.gateway.call(request::RANGE, &request, by, read)?;
        let Some(pair) = pair else { return Ok(None) };
        let damaged = |reason: &str| RegistryError::Damaged { place: self.place.clone(), reason: reason.to_owned() };
        let (kind, body) = stored::open(&pair.value, &self.candidate.job, &self.place)?;
        let pieces = match kind {
            Kind::Memory => return Ok(Some(body.to_vec())),
            Kind::Pieces => Pieces::from_bytes(body).ok_or_else(|| damaged("it does not say where its pieces are"))?,
            Kind::Leader => return Err(damaged("it holds a leader's address").into()),
        };
        let mut memory = Vec::with_capacity(pieces.bytes as usize);
        for index in 0..pieces.count() {
            // As they were then, even if a newer memory has replaced them since.
            let request = request::range(&self.keys.piece(pieces.name, index), Some(revision));
            let by = self.soon();
            let piece = self.gateway.call(request::RANGE, &request, by, Answer::pair)?;
            memory.extend(piece.into_iter().flat_map(|piece| piece.value));
        }
        Ok(Some(pieces.check(memory, &self.place)?))
    }
}

//! Saves and loads a memory in etcd: of any length, whole or not at all, and written by the leader
//! alone.

use super::chunks::{CHUNK_BYTES, ChunkManifest};
use super::gateway::GatewayError;
use super::response::EtcdResponse;
use super::{EtcdRegistry, Leadership, ROUNDS, request};
use crate::registry::RegistryError;
use crate::registry::stored::{self, StoredKind};
use std::time::Instant;

impl EtcdRegistry {
    /// Replaces the memory that etcd holds, or removes it.
    pub(super) fn replace(&mut self, now: Instant, memory: Option<&[u8]>) -> Result<(), RegistryError> {
        let mut leading = self.led(now)?;
        let job = self.candidate.job.clone();
        let chunks = match memory {
            Some(memory) if memory.len() > CHUNK_BYTES => Some(self.write_chunks(leading, memory)?),
            _ => None,
        };
        let value = match (chunks, memory) {
            (Some(chunks), _) => Some(stored::seal(StoredKind::Chunks, &job, &chunks.to_bytes())),
            (None, Some(memory)) => Some(stored::seal(StoredKind::Memory, &job, memory)),
            (None, None) => None,
        };
        for _ in 0..ROUNDS {
            let by = self.in_time(leading)?;
            let request = request::replace(
                &self.keys,
                (leading.term, leading.revision),
                value.as_deref(),
                chunks.map(|chunks| chunks.name),
            );
            let read = |response: &EtcdResponse| {
                Ok(match response.succeeded()? {
                    true => Ok(response.revision),
                    false => Err((response.pair_at(0)?, response.pair_at(1)?)),
                })
            };
            match self.gateway.call(request::TXN, &request, by, read)? {
                Ok(revision) => {
                    let revision = if memory.is_some() { revision } else { 0 };
                    self.leading.iter_mut().for_each(|leading| leading.revision = revision);
                    return Ok(());
                }
                Err((Some(leader), held)) if leader.created == leading.term => {
                    // An earlier leader wrote the memory, or this one in a request that it gave up.
                    // `open` fails if another job did.
                    let revision = held.as_ref().map_or(0, |held| held.modified);
                    held.map(|held| stored::open(&held.value, &job, &self.place).map(|_| ())).transpose()?;
                    leading.revision = revision;
                }
                Err((leader, _)) => return Err(self.superseded(leader.as_ref())),
            }
        }
        let reason = format!("another writer changed the memory {ROUNDS} times while this coordinator led");
        Err(RegistryError::Damaged { place: self.place.clone(), reason })
    }

    fn write_chunks(&mut self, leading: Leadership, memory: &[u8]) -> Result<ChunkManifest, RegistryError> {
        let chunks = ChunkManifest::of((leading.term, leading.saves), memory);
        // A name is never used again, even if this fails: etcd may still execute requests that were
        // given up.
        self.leading.iter_mut().for_each(|leading| leading.saves += 1);
        for (index, chunk) in memory.chunks(CHUNK_BYTES).enumerate() {
            let by = self.in_time(leading)?;
            let key = self.keys.chunk(chunks.name, index);
            let request = request::put_if_leading(&self.keys.leader, leading.term, &key, chunk);
            let read =
                |response: &EtcdResponse| Ok(if response.succeeded()? { Ok(()) } else { Err(response.pair_at(0)?) });
            match self.gateway.call(request::TXN, &request, by, read)? {
                Ok(()) => {}
                Err(leader) => return Err(self.superseded(leader.as_ref())),
            }
        }
        Ok(chunks)
    }

    /// One attempt to load the memory. Fails if the chunks were removed before they were read.
    pub(super) fn try_load(&mut self) -> Result<Option<Vec<u8>>, GatewayError> {
        let request = request::range(&self.keys.memory, None);
        let by = self.soon();
        let read = |response: &EtcdResponse| Ok((response.pair()?, response.revision));
        let (pair, revision) = self.gateway.call(request::RANGE, &request, by, read)?;
        let Some(pair) = pair else { return Ok(None) };
        let damaged = |reason: &str| RegistryError::Damaged { place: self.place.clone(), reason: reason.to_owned() };
        let (kind, body) = stored::open(&pair.value, &self.candidate.job, &self.place)?;
        let chunks = match kind {
            StoredKind::Memory => return Ok(Some(body.to_vec())),
            StoredKind::Chunks => {
                ChunkManifest::from_bytes(body).ok_or_else(|| damaged("the manifest of its chunks cannot be read"))?
            }
            StoredKind::Leader => return Err(damaged("it holds a leader's address").into()),
        };
        let mut memory = Vec::with_capacity(chunks.bytes as usize);
        for index in 0..chunks.count() {
            // Reads the chunks of that revision, even if a newer memory has replaced them since.
            let request = request::range(&self.keys.chunk(chunks.name, index), Some(revision));
            let by = self.soon();
            let chunk = self.gateway.call(request::RANGE, &request, by, EtcdResponse::pair)?;
            memory.extend(chunk.into_iter().flat_map(|chunk| chunk.value));
        }
        Ok(Some(chunks.check(memory, &self.place)?))
    }
}

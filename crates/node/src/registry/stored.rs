//! The label on everything that is written to a registry: it names the job, so that a job never
//! mistakes another job's data for its own.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `slackmem` |
//! | 2 | the format's number, little-endian |
//! | 1 | the kind: see [`StoredKind`] |
//! | 4 | the length of the job's name, little-endian |
//! | … | the job's name, UTF-8 |
//! | … | the body |

use crate::registry::RegistryError;

const MAGIC: &[u8; 8] = b"slackmem";
const FORMAT: u16 = 1;

/// The contents of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum StoredKind {
    /// The address of the leader.
    Leader = 1,
    /// A memory.
    Memory = 2,
    /// The manifest of the chunks of a memory that is too large for one value.
    Chunks = 3,
}

const KINDS: [StoredKind; 3] = [StoredKind::Leader, StoredKind::Memory, StoredKind::Chunks];

/// `body` with its label.
pub(crate) fn seal(kind: StoredKind, job: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + 7 + job.len() + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&(job.len() as u32).to_le_bytes());
    bytes.extend_from_slice(job.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Returns the kind and the body, if the label names `job`. Messages call the source `place`.
pub(crate) fn open<'a>(bytes: &'a [u8], job: &str, place: &str) -> Result<(StoredKind, &'a [u8]), RegistryError> {
    let damaged = |reason: &str| RegistryError::Damaged { place: place.to_owned(), reason: reason.to_owned() };
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it does not begin with Slackwater's label"))?;
    let (format, rest) = rest.split_first_chunk().ok_or_else(|| damaged("it is cut short"))?;
    let found = u16::from_le_bytes(*format);
    if found != FORMAT {
        return Err(RegistryError::OtherVersion { place: place.to_owned(), found, expected: FORMAT });
    }
    let (&kind, rest) = rest.split_first().ok_or_else(|| damaged("it is cut short"))?;
    let kind =
        KINDS.into_iter().find(|known| *known as u8 == kind).ok_or_else(|| damaged("it is of an unknown kind"))?;
    let (length, rest) = rest.split_first_chunk().ok_or_else(|| damaged("it is cut short"))?;
    let (found, body) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(|| damaged("it is cut short"))?;
    let found = std::str::from_utf8(found).map_err(|_| damaged("its job has no readable name"))?;
    if found != job {
        return Err(RegistryError::OtherJob {
            place: place.to_owned(),
            found: found.to_owned(),
            expected: job.to_owned(),
        });
    }
    Ok((kind, body))
}

/// The address in a [`StoredKind::Leader`].
pub(crate) fn open_leader(bytes: &[u8], job: &str, place: &str) -> Result<String, RegistryError> {
    let damaged = || RegistryError::Damaged { place: place.to_owned(), reason: "it names no leader".to_owned() };
    match open(bytes, job, place)? {
        (StoredKind::Leader, address) => String::from_utf8(address.to_vec()).map_err(|_| damaged()),
        (StoredKind::Memory | StoredKind::Chunks, _) => Err(damaged()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stored_data_is_opened_by_its_own_job_only() {
        let bytes = seal(StoredKind::Memory, "clicks", b"plan");
        assert_eq!(open(&bytes, "clicks", "here"), Ok((StoredKind::Memory, &b"plan"[..])));
        let error = open(&bytes, "ratings", "etcd path /jobs").expect_err("another's").to_string();
        assert!(error.starts_with("etcd path /jobs belongs to job `clicks`, not to `ratings`"), "{error}");
        assert!(matches!(open_leader(&bytes, "clicks", "here"), Err(RegistryError::Damaged { .. })));
    }

    #[test]
    fn another_format_is_refused_before_the_job_is_compared() {
        let mut bytes = seal(StoredKind::Memory, "clicks", b"plan");
        bytes[8] = 9;
        let error = open(&bytes, "ratings", "here").expect_err("another format");
        assert_eq!(error, RegistryError::OtherVersion { place: "here".into(), found: 9, expected: FORMAT });
    }

    #[test]
    fn a_truncated_label_is_damage() {
        let bytes = seal(StoredKind::Memory, "clicks", b"");
        for length in 0..bytes.len() {
            let error = open(&bytes[..length], "clicks", "here").expect_err("cut short");
            assert!(matches!(error, RegistryError::Damaged { .. }), "{length}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_opened_or_refused(bytes: Vec<u8>, is_begun: bool) {
            let bytes = if is_begun { [&MAGIC[..], &[1, 0], &bytes].concat() } else { bytes };
            let _ = open(&bytes, "clicks", "here");
            let _ = open_leader(&bytes, "clicks", "here");
        }
    }
}

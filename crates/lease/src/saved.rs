//! The data leases in a checkpoint: the name and terms of a data set, and its finished leases.
//! Reading refuses finished leases that do not fit the terms.

use super::{FinishedLeases, GrantTerms, LeaseAllocator, ResumeError};
use wire::{Field, LeaseTerms, Reader, WireError};

/// The leases of a data set in a checkpoint. The rows of every table hold all pushes of finished
/// leases. The others run again, and shards skip the parts of them that they hold already.
///
/// ```
/// use lease::{FinishedLeases, SavedLeases, LeaseOrder};
/// use wire::{Field, LeaseTerms, Reader};
///
/// let terms =
///     LeaseTerms { ranges: 10, epochs: 3, shuffle: None, per_clock: 8, fingerprint: 7, input: "a9a".into() };
/// let none = FinishedLeases::none(LeaseOrder { ranges: 10, shuffle: None });
/// let kept = SavedLeases::new("train".into(), terms, none)?;
/// let mut bytes = Vec::new();
/// kept.put(&mut bytes);
/// assert_eq!(SavedLeases::get(&mut Reader(&bytes)), Ok(kept));
/// # Ok::<(), lease::ResumeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedLeases {
    name: String,
    terms: LeaseTerms,
    done: FinishedLeases,
}

impl SavedLeases {
    /// Checks the terms and finished leases of a data set.
    ///
    /// # Errors
    /// [`ResumeError`]: the terms are not valid, or do not fit the finished leases.
    pub fn new(name: String, terms: LeaseTerms, done: FinishedLeases) -> Result<Self, ResumeError> {
        LeaseAllocator::resume(GrantTerms::of(&terms), &done)?;
        Ok(Self { name, terms, done })
    }

    /// The name of the data set.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The terms of its leases.
    #[must_use]
    pub fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// The finished leases.
    #[must_use]
    pub fn done(&self) -> &FinishedLeases {
        &self.done
    }
}

impl Field for SavedLeases {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        self.terms.put(out);
        self.done.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let name = Field::get(input)?;
        let terms = Field::get(input)?;
        let kept = Self::new(name, terms, Field::get(input)?);
        kept.map_err(|_| WireError::Malformed("finished leases that do not fit their terms"))
    }
}

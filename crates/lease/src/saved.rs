//! What a checkpoint keeps of a data set: how it was leased, and which leases are done.

use super::{FinishedLeases, GrantTerms, LeaseAllocator, ResumeError};
use wire::{Field, LeaseTerms, Reader, WireError};

/// A data set as a checkpoint knows it. Leases that are done are in the rows of every table; the
/// others run again, and shards skip the parts of them that they hold.
///
/// ```
/// use lease::{FinishedLeases, SavedLeases, LeaseOrder};
/// use wire::{Field, LeaseTerms, Reader};
///
/// let (epochs, shuffle, per_clock, fingerprint) = (3, None, 8, 7);
/// let terms = LeaseTerms { ranges: 10, epochs, shuffle, per_clock, fingerprint, input: "a9a".into() };
/// let kept = SavedLeases::new("train".into(), terms, FinishedLeases::none(LeaseOrder { ranges: 10, shuffle }))?;
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
    /// Of a data set that such leases can be of.
    ///
    /// # Errors
    /// [`ResumeError`]: they cannot.
    pub fn new(name: String, terms: LeaseTerms, done: FinishedLeases) -> Result<Self, ResumeError> {
        LeaseAllocator::resume(GrantTerms::of(&terms), &done)?;
        Ok(Self { name, terms, done })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it was leased.
    #[must_use]
    pub fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    /// What is done.
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
        kept.map_err(|_| WireError::Malformed("leases that are done and cannot be"))
    }
}

//! Validation: a part of a push is checked whole before any of it is applied.

use crate::rows::Rows;
use crate::rows::resolve::NotApplied;
use types::Setting;
use update::{Number, first_not_finite};
use wire::{KeyPart, Push, Refusal};

/// The values of a part whose rows have `width` numbers. Refuses values of the wrong type, of the
/// wrong length for the part's keys, or that are not finite.
pub(crate) fn checked<'p, T: Number>(push: &'p Push, width: usize, rows: &mut Rows<T>) -> Result<&'p [T], NotApplied> {
    if push.number != T::TYPE {
        return Err(Refusal::WrongNumber { expected: T::TYPE, found: push.number }.into());
    }
    let count = push.keys.count().ok_or(Refusal::NotOrdered)?;
    let expected = count.saturating_mul((width * size_of::<T>()) as u64);
    let wrong_length = Refusal::WrongLength { expected, found: push.values.len() as u64 };
    if push.values.len() as u64 != expected {
        return Err(wrong_length.into());
    }
    let values = push.values.numbers::<T>().ok_or_else(|| wrong_length.clone())?;
    let Some(index) = first_not_finite(values) else { return Ok(values) };
    let position = rows.position_of(&push.keys, index / width);
    match (position, &push.keys) {
        (Some(position), _) => Err(Refusal::NotFinite { position }.into()),
        // The shard did not keep the positions of these keys. A resend with the keys written out
        // tells which row is not finite.
        (None, KeyPart::Known { signature, .. } | KeyPart::Chosen { signature, .. }) => {
            Err(NotApplied::UnknownKeys(signature.0))
        }
        (None, KeyPart::Run { .. } | KeyPart::List { .. } | KeyPart::Packed { .. } | KeyPart::Scan { .. }) => {
            Err(rows.resolve(&push.keys, false).err().unwrap_or(NotApplied::Refuse(wrong_length)))
        }
    }
}

/// Refuses a learning rate that is negative or not finite.
pub(crate) fn check_setting(setting: Setting) -> Result<(), Refusal> {
    let Setting::Rate(rate) = setting;
    if rate.is_finite() && rate >= 0.0 { Ok(()) } else { Err(Refusal::BadSetting) }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NumberType, Position, PositionRange, ShardId, TableId, TableSpec};
    use update::Updaters;
    use wire::{Payload, Signature, Writes};

    /// What a push of these values is refused for: a refusal, or the signature of unknown keys.
    fn refused(rows: &mut Rows<f32>, keys: KeyPart, number: NumberType, values: Payload) -> Option<NotApplied> {
        let writes = Writes::GRADIENTS;
        let push = Push { table: TableId(0), shard: ShardId(0), settled: 0, number, writes, keys, values };
        checked(&push, 2, rows).err()
    }

    #[test]
    fn part_is_checked_whole_for_type_length_and_finite_values() {
        let spec = TableSpec::sparse("t", 2).ordered();
        let mut rows = Rows::<f32>::new(&spec, PositionRange::ALL, &Updaters::builtin(), 1 << 20).expect("they fit");
        let list = KeyPart::List { signature: Signature(3), start: 0, positions: Payload::new(vec![4u64, 9]) };
        let known = KeyPart::Known { signature: Signature(7), start: 0, count: 2 };
        let run = KeyPart::Run { first: Position(5), count: 2 };
        let nan = [1.0, 2.0, 3.0, f32::NAN];
        let length = |found| Refusal::WrongLength { expected: 16, found };
        let expected = NumberType::F32;
        // (keys, type of number, values, refusal)
        for (keys, number, values, refusal) in [
            (&run, NumberType::F32, &[1.0; 4][..], None),
            (&known, NumberType::F32, &[1.0; 4], None),
            (&run, NumberType::F64, &[1.0; 4], Some(Refusal::WrongNumber { expected, found: NumberType::F64 })),
            (&run, NumberType::F32, &[1.0; 3], Some(length(12))),
            (&list, NumberType::F32, &[1.0; 5], Some(length(20))),
            (&run, NumberType::F32, &nan, Some(Refusal::NotFinite { position: Position(6) })),
            (&list, NumberType::F32, &nan, Some(Refusal::NotFinite { position: Position(9) })),
            (&list, NumberType::F32, &[f32::INFINITY; 4], Some(Refusal::NotFinite { position: Position(4) })),
        ] {
            match (refused(&mut rows, keys.clone(), number, Payload::new(values.to_vec())), refusal) {
                (None, None) => {}
                (Some(NotApplied::Refuse(found)), Some(expected)) => assert_eq!(found, expected, "{keys:?}"),
                (_, expected) => panic!("{keys:?} {values:?} should be {expected:?}"),
            }
        }
        assert_eq!(rows.len(), 0, "a check makes no row");
        // The shard cannot name the row, so the worker sends the keys in full.
        let unknown = refused(&mut rows, known, NumberType::F32, Payload::new(nan.to_vec()));
        assert!(matches!(unknown, Some(NotApplied::UnknownKeys(7))));
    }

    #[test]
    fn learning_rate_is_refused_unless_it_is_finite_and_not_negative() {
        for (rate, is_fine) in
            [(0.0, true), (0.5, true), (-0.1, false), (f64::NAN, false), (f64::INFINITY, false), (f64::MAX, true)]
        {
            let expected = if is_fine { Ok(()) } else { Err(Refusal::BadSetting) };
            assert_eq!(check_setting(Setting::Rate(rate)), expected, "{rate}");
        }
    }
}

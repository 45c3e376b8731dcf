//! The recorded form of inputs: the encoding of [`wire::Field`], with a dictionary for key lists.
//!
//! [`recorded_fields`] and [`recorded_variants`] make the writer and the reader of a struct or an
//! enum from one list of its fields or variants. Code with an incomplete list does not compile.
//! Reading returns an error for malformed bytes, and never panics.

use crate::{Batch, KeyListDictionary, TicketId, Values};
use lease::{LeaseId, WorkReport};
use std::ops::Range;
use types::{Bandwidth, NodeId, NumberType, Position, PositionRange, Setting, Span, TableId, TableSpec, Time};
use wire::{FeedCursor, Field, Frame, Keys, LeaseTerms, Payload, Reader, WireError};

/// A value that a recording can hold.
pub(crate) trait Recorded: Sized {
    /// Appends the value to `out`. A key list that `lists` has goes by name; any other goes in full
    /// and is added to `lists`.
    fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>);

    /// Reads what [`Recorded::put`] has written. `lists` must be as it was for the writer.
    fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError>;
}

impl Recorded for Keys {
    fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        lists.put(self, out);
    }

    fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        lists.get(input)
    }
}

/// Records types without key lists as [`wire::Field`] writes them.
macro_rules! without_key_lists {
    ($($kind:ty),* $(,)?) => {$(
        impl Recorded for $kind {
            fn put(&self, _: &mut KeyListDictionary, out: &mut Vec<u8>) {
                Field::put(self, out);
            }

            fn get(input: &mut Reader<'_>, _: &mut KeyListDictionary) -> Result<Self, WireError> {
                Field::get(input)
            }
        }
    )*};
}
without_key_lists!(bool, u32, u64, String, Time, Span, NodeId, TableId, TableSpec, NumberType, PositionRange, Setting);
without_key_lists!(FeedCursor, Position, Payload, Frame, LeaseId, LeaseTerms);

impl<T: Recorded> Recorded for Box<T> {
    fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        (**self).put(lists, out);
    }

    fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(Self::new(T::get(input, lists)?))
    }
}

impl<T: Recorded> Recorded for Option<T> {
    fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Field::put(&self.is_some(), out);
        self.iter().for_each(|item| item.put(lists, out));
    }

    fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(if <bool as Field>::get(input)? { Some(T::get(input, lists)?) } else { None })
    }
}

impl Recorded for Vec<TicketId> {
    fn put(&self, lists: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Field::put(&(self.len() as u32), out);
        self.iter().for_each(|item| item.put(lists, out));
    }

    fn get(input: &mut Reader<'_>, lists: &mut KeyListDictionary) -> Result<Self, WireError> {
        // Reads items one by one, so that a made-up length runs into the end of the bytes before it
        // takes memory.
        let count = <u32 as Field>::get(input)?;
        (0..count).map(|_| TicketId::get(input, lists)).collect()
    }
}

impl Recorded for Range<usize> {
    fn put(&self, _: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Field::put(&(self.start as u64, self.end as u64), out);
    }

    fn get(input: &mut Reader<'_>, _: &mut KeyListDictionary) -> Result<Self, WireError> {
        let (start, end) = <(u64, u64) as Field>::get(input)?;
        match (usize::try_from(start), usize::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(start..end),
            (Err(_), _) | (_, Err(_)) => Err(WireError::Malformed("a range of rows beyond the memory of this machine")),
        }
    }
}

impl Recorded for Bandwidth {
    fn put(&self, _: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Field::put(&self.bytes_per_second(), out);
    }

    fn get(input: &mut Reader<'_>, _: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(Self::from_bytes_per_second(Field::get(input)?))
    }
}

impl Recorded for TicketId {
    fn put(&self, _: &mut KeyListDictionary, out: &mut Vec<u8>) {
        Field::put(&self.0, out);
    }

    fn get(input: &mut Reader<'_>, _: &mut KeyListDictionary) -> Result<Self, WireError> {
        Ok(Self(Field::get(input)?))
    }
}

/// Writes a struct field by field, in the order given.
macro_rules! recorded_fields {
    ($kind:ident { $($field:ident),* $(,)? }) => {
        impl crate::recorded::Recorded for $kind {
            fn put(&self, lists: &mut crate::KeyListDictionary, out: &mut Vec<u8>) {
                $(crate::recorded::Recorded::put(&self.$field, lists, out);)*
            }

            fn get(
                input: &mut wire::Reader<'_>,
                lists: &mut crate::KeyListDictionary,
            ) -> Result<Self, wire::WireError> {
                Ok(Self { $($field: crate::recorded::Recorded::get(input, lists)?),* })
            }
        }
    };
}
pub(crate) use recorded_fields;

/// Writes an enum as a tag and the fields of its variant.
macro_rules! recorded_variants {
    ($kind:ident {
        $($tag:literal => $variant:ident $(($($item:ident),*))? $({ $($field:ident),* $(,)? })?),* $(,)?
    }) => {
        impl crate::recorded::Recorded for $kind {
            fn put(&self, lists: &mut crate::KeyListDictionary, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(($($item),*))? $({ $($field),* })? => {
                        out.push($tag);
                        $($(crate::recorded::Recorded::put($item, lists, out);)*)?
                        $($(crate::recorded::Recorded::put($field, lists, out);)*)?
                    })*
                }
            }

            fn get(
                input: &mut wire::Reader<'_>,
                lists: &mut crate::KeyListDictionary,
            ) -> Result<Self, wire::WireError> {
                match <u8 as wire::Field>::get(input)? {
                    $($tag => {
                        $($(let $item = crate::recorded::Recorded::get(input, lists)?;)*)?
                        $($(let $field = crate::recorded::Recorded::get(input, lists)?;)*)?
                        Ok(Self::$variant $(($($item),*))? $({ $($field),* })?)
                    })*
                    _ => Err(wire::WireError::Malformed(concat!("an unknown kind of ", stringify!($kind)))),
                }
            }
        }
    };
}
pub(crate) use recorded_variants;

recorded_fields!(Values { number, bytes });
recorded_fields!(Batch { keys, values, examples, lease });
recorded_fields!(WorkReport { examples, busy });

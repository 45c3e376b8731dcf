//! Serialisation of the fields of messages: little-endian numbers of fixed width, and lengths that
//! are checked before use.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::frame::WireError;
use types::{
    Binding, CacheSpec, CertificateName, Chain, Clock, Codecs, Combine, Consistency, Initial, KeyFingerprint, Measured,
    NodeId, NumberType, Placement, Plan, PlanNumber, Position, Reduce, Setting, ShardId, Source, Span, TableId,
    TableShape, TableSpec, Time, UpdaterSpec, WorkerId,
};

/// A type that can be part of a message's body, or of a recording.
pub trait Field: Sized {
    /// Appends the value to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads a value from the start of `input`. Accepts any bytes without panic.
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// The unread rest of a body.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Removes and returns the next `bytes` bytes.
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(bytes).ok_or(WireError::Malformed("a body that is truncated"))?;
        self.0 = tail;
        Ok(head)
    }
}

macro_rules! integers {
    ($($kind:ty),*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()); }
            fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
                let mut bytes = [0; size_of::<$kind>()];
                bytes.copy_from_slice(input.take(size_of::<$kind>())?);
                Ok(<$kind>::from_le_bytes(bytes))
            }
        }
    )*};
}
integers!(u8, u32, u64, u128, f64);

macro_rules! wrappers {
    ($($kind:ident),*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) { self.0.put(out); }
            fn get(input: &mut Reader<'_>) -> Result<Self, WireError> { Ok($kind(Field::get(input)?)) }
        }
    )*};
}
wrappers!(Clock, Position, ShardId, Source, Span, TableId, Time, WorkerId, PlanNumber);

/// Implements [`Field`] for a struct: its fields in the order given.
macro_rules! fields {
    ($kind:ident { $($field:ident),* $(,)? }) => {
        impl crate::field::Field for $kind {
            fn put(&self, out: &mut Vec<u8>) { $(crate::field::Field::put(&self.$field, out);)* }
            fn get(input: &mut crate::field::Reader<'_>) -> Result<Self, crate::frame::WireError> {
                Ok(Self { $($field: crate::field::Field::get(input)?),* })
            }
        }
        crate::sample::sample_fields!($kind { $($field),* });
    };
}
pub(crate) use fields;

/// Implements `put` and `get` for a struct with payloads: its small fields in the order given, then
/// its keys if it has any. The last argument builds the remaining fields from the rest of the body
/// and the payloads.
macro_rules! fields_and_payloads {
    ($kind:ident { $($field:ident),* } $($keys:ident)?, |$input:ident, $payloads:pat_param| { $($rest:tt)* }) => {
        impl $kind {
            pub(super) fn put(&self, out: &mut Vec<u8>) {
                $(crate::field::Field::put(&self.$field, out);)*
                $(self.$keys.put(out);)?
            }

            pub(super) fn get(
                $input: &mut crate::field::Reader<'_>,
                $payloads: [crate::Payload; 2],
            ) -> Result<Self, crate::frame::WireError> {
                Ok(Self { $($field: crate::field::Field::get($input)?,)* $($rest)* })
            }
        }
        crate::sample::sample_with_payloads!($kind { $($field),* }, |$input, $payloads| { $($rest)* });
    };
}
pub(crate) use fields_and_payloads;

/// Implements [`Field`] for an enum: a tag, then the fields of the variant.
macro_rules! variants {
    ($kind:ident { $($tag:literal => $variant:ident $({ $($field:ident),* $(,)? })?),* $(,)? }) => {
        impl crate::field::Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        out.push($tag);
                        $($(crate::field::Field::put($field, out);)*)?
                    })*
                }
            }
            fn get(input: &mut crate::field::Reader<'_>) -> Result<Self, crate::frame::WireError> {
                match <u8 as crate::field::Field>::get(input)? {
                    $($tag => Ok(Self::$variant $({ $($field: crate::field::Field::get(input)?),* })?),)*
                    _ => Err(crate::frame::WireError::Malformed(concat!("an unknown kind of ", stringify!($kind)))),
                }
            }
        }
        crate::sample::sample_variants!($kind { $($variant $({ $($field),* })?),* });
    };
}
pub(crate) use variants;

/// Implements [`Field`](crate::Field) for an enum of tuple variants: a tag, then the fields of the
/// variant. The names of fields only document the list.
///
/// ```
/// use wire::{Field, Reader};
///
/// #[derive(Debug, PartialEq)]
/// enum Input { Said(u64, String), Settle }
/// wire::tuple_variants!(Input { 0 => Said(now, words), 1 => Settle });
///
/// let mut bytes = Vec::new();
/// Input::Said(3, "go".into()).put(&mut bytes);
/// assert_eq!(Input::get(&mut Reader(&bytes)), Ok(Input::Said(3, "go".into())));
/// assert!(Input::get(&mut Reader(&[2])).is_err());
/// ```
#[macro_export]
macro_rules! tuple_variants {
    ($kind:ident { $($tag:literal => $variant:ident $(( $($field:ident),* $(,)? ))?),* $(,)? }) => {
        impl $crate::Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(( $($field),* ))? => {
                        out.push($tag);
                        $($($crate::Field::put($field, out);)*)?
                    })*
                }
            }
            fn get(input: &mut $crate::Reader<'_>) -> Result<Self, $crate::WireError> {
                match <u8 as $crate::Field>::get(input)? {
                    $($tag => {
                        $($(let $field = $crate::Field::get(input)?;)*)?
                        Ok(Self::$variant $(( $($field),* ))?)
                    })*
                    _ => Err($crate::WireError::Malformed(concat!("an unknown kind of ", stringify!($kind)))),
                }
            }
        }
    };
}

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("a flag that is neither 0 nor 1")),
        }
    }
}

impl Field for KeyFingerprint {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(input.take(32)?);
        Ok(Self(bytes))
    }
}

impl Field for CertificateName {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_string().put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let text = String::get(input)?;
        text.parse().map_err(|_| WireError::Malformed("the name of a certificate that is not valid"))
    }
}

crate::tuple_variants!(Binding { 0 => Key(key), 1 => Certificate(name) });

impl Field for NodeId {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_bits().put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::from_bits(Field::get(input)?).ok_or(WireError::Malformed("a node name that is not valid"))
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = u32::get(input)? as usize;
        let bytes = input.take(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| WireError::Malformed("text that is not UTF-8"))
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        // Pushes items one by one, so that a forged length fails at the end of the body before it
        // costs memory.
        let count = u32::get(input)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::get(input)?);
        }
        Ok(items)
    }
}

impl<T: Field> Field for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Box::new(T::get(input)?))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(item) = self {
            item.put(out);
        }
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(if bool::get(input)? { Some(T::get(input)?) } else { None })
    }
}

impl<T: Field, E: Field> Field for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(item) => item.put(out),
            Err(error) => error.put(out),
        }
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(if bool::get(input)? { Ok(T::get(input)?) } else { Err(E::get(input)?) })
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok((A::get(input)?, B::get(input)?))
    }
}

variants!(NumberType { 0 => F32, 1 => F64, 2 => I64 });
variants!(Placement { 0 => Spread, 1 => Ordered });
variants!(TableShape { 0 => Dense { rows }, 1 => Sparse { placement, max_rows } });
variants!(Initial { 0 => Zero, 1 => Uniform { seed, scale }, 2 => Normal { seed, scale } });
variants!(CacheSpec { 0 => Off, 1 => Rows { max_rows } });
variants!(Consistency { 0 => Bounded { slack, eager }, 1 => Unbounded, 2 => Delay { tau } });
variants!(Reduce { 0 => Sum, 1 => Mean });
variants!(UpdaterSpec {
    0 => Sum,
    1 => Assign,
    2 => Sgd { rate },
    3 => Momentum { rate, momentum },
    4 => Adagrad { rate, epsilon },
    5 => Adam { rate, beta1, beta2, epsilon },
    6 => Ftrl { rate, beta, l1, l2 },
    7 => Custom { name, settings },
    8 => Proximal { rate, l1 },
});
fields!(TableSpec { name, number, shape, width, initial, consistency, combine, updater, cache, codecs });
fields!(Codecs { up, down });
fields!(Chain { replicas, backfilling });
fields!(Measured { mean, deviation, count });
fields!(Plan { number, chains, workers });

impl Field for Combine {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Each => None,
            Self::Clock(reduce) => Some(*reduce),
        }
        .put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Option::<Reduce>::get(input)?.map_or(Self::Each, Self::Clock))
    }
}

impl Field for Setting {
    fn put(&self, out: &mut Vec<u8>) {
        let Self::Rate(rate) = self;
        0u8.put(out);
        rate.put(out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::get(input)? {
            0 => Ok(Self::Rate(Field::get(input)?)),
            _ => Err(WireError::Malformed("an unknown setting")),
        }
    }
}

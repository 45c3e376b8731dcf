//! Serialisation in one piece of values that a connection carries in several, or not in full: a
//! payload with its length, a frame with its payloads, a key list with all its keys. Recordings use
//! it. Position ranges are written here, too.

use crate::field::{Field, Reader};
use crate::frame::WireError;
use crate::{Frame, HEADER_BYTES, Header, Keys, Payload, Pool, decode, encode};
use types::{Placement, PositionRange};

impl Field for Payload {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.bytes());
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = usize::try_from(u64::get(input)?).unwrap_or(usize::MAX);
        Ok(Pool::new().copy(input.take(bytes)?))
    }
}

/// Header, body and payloads one after the other, as on a connection.
impl Field for Frame {
    fn put(&self, out: &mut Vec<u8>) {
        // A frame that cannot be sent is not recorded either.
        if encode(self, out).is_ok() {
            self.message.payloads().iter().for_each(|payload| out.extend_from_slice(payload.bytes()));
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(input.take(HEADER_BYTES)?);
        let header = Header::parse(&header)?;
        let body = input.take(header.body)?;
        let pool = Pool::new();
        let [positions, values] = header.payloads;
        let positions = pool.copy(input.take(positions)?);
        let values = pool.copy(input.take(values)?);
        decode(&header, body, [positions, values])
    }
}

impl Field for PositionRange {
    fn put(&self, out: &mut Vec<u8>) {
        self.first.put(out);
        self.last.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { first: Field::get(input)?, last: Field::get(input)? })
    }
}

/// A list with all its positions, or a run with its first position and its length. A message may
/// name a list by its signature alone.
impl Field for Keys {
    fn put(&self, out: &mut Vec<u8>) {
        self.placement().put(out);
        let is_list = self.signature().is_some();
        is_list.put(out);
        if is_list {
            Payload::new(self.sorted().to_vec()).put(out);
        } else {
            let first = if self.is_empty() { 0 } else { self.position(0).0 };
            (first, self.len() as u64).put(out);
        }
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let placement = Placement::get(input)?;
        if bool::get(input)? {
            let positions = Payload::get(input)?;
            let positions =
                positions.numbers().ok_or(WireError::Malformed("a key list that is not a whole number of keys"))?;
            return Self::at(placement, positions).map_err(|_| WireError::Malformed("a key list that is not sorted"));
        }
        let (first, count) = <(u64, u64)>::get(input)?;
        let end = first.checked_add(count).ok_or(WireError::Malformed("keys beyond the largest key"))?;
        match placement {
            Placement::Ordered => Ok(Self::run(first..end)),
            Placement::Spread => Err(WireError::Malformed("a run of keys of a spread table")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Control, Head, Message, Push, Writes};
    use types::{NodeId, NumberType, ShardId, TableId};

    fn through_bytes<T: Field>(thing: &T) -> T {
        let mut bytes = Vec::new();
        thing.put(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(T::get(&mut Reader(&bytes[..cut])).is_err(), "cut after {cut} of {} bytes", bytes.len());
        }
        let mut input = Reader(&bytes);
        let read = T::get(&mut input).expect("valid bytes");
        assert!(input.0.is_empty());
        read
    }

    #[test]
    fn frames_round_trip_with_their_payloads() {
        let head = Head::plain(NodeId::Worker(1), NodeId::Server(0));
        let keys = Keys::distinct(Placement::Spread, &[1, 2, 3]).slice(0..3).in_full();
        let values = Pool::new().copy(&[1f32, 2.0, 3.0]);
        let table = TableId(5);
        let shard = ShardId(1);
        let push = Push { table, shard, settled: 2, number: NumberType::F32, writes: Writes::GRADIENTS, keys, values };
        for message in [Message::Push(push), Message::Control(Control::Heartbeat { heard: 0 })] {
            let frame = Frame { head, message };
            assert_eq!(through_bytes(&frame), frame);
        }
    }

    #[test]
    fn key_lists_round_trip_in_order() {
        let lists = [
            Keys::run(0..0),
            Keys::run(3..9),
            Keys::distinct(Placement::Spread, &[9, 4, 1]),
            Keys::distinct(Placement::Ordered, &[]),
        ];
        for keys in lists {
            let read = through_bytes(&keys);
            assert!(read.placement() == keys.placement() && read.signature() == keys.signature());
            assert!(read.ids().eq(keys.ids()));
        }
    }

    #[test]
    fn key_lists_out_of_order_are_refused() {
        let mut bytes = Vec::new();
        Keys::distinct(Placement::Ordered, &[4, 9]).put(&mut bytes);
        let first = bytes.len() - 16;
        bytes[first] = 10;
        assert!(Keys::get(&mut Reader(&bytes)).is_err());
    }
}

//! A bit set: one bit for each key of a list.

/// A fixed number of bits, eight to a byte, lowest bit first. Unused bits of the last byte are
/// zero.
///
/// ```
/// let mut bits = wire::Bits::none(11);
/// bits.set(2);
/// bits.set(10);
/// assert_eq!((bits.bytes(), bits.ones()), (&[4, 4][..], 2));
/// assert!(bits.indices().eq([2, 10]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    count: usize,
    bytes: Vec<u8>,
}

impl Bits {
    /// `count` bits, none of them set.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// assert_eq!((Bits::none(3).count(), Bits::none(3).ones()), (3, 0));
    /// ```
    #[must_use]
    pub fn none(count: usize) -> Self {
        Self { count, bytes: vec![0; count.div_ceil(8)] }
    }

    /// Reads bits from a message. Returns `None` if `bytes` does not hold exactly `count` bits.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let bits = Bits::read(3, &[0b101]).expect("three bits fit a byte");
    /// assert!(bits.get(0) && !bits.get(1) && bits.get(2));
    /// assert!(Bits::read(30, &[0b101]).is_none());
    /// ```
    #[must_use]
    pub fn read(count: usize, bytes: &[u8]) -> Option<Self> {
        is_bits(count, bytes).then(|| Self { count, bytes: bytes.to_vec() })
    }

    /// Sets the bit at `index`. Panics if there is none.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert_eq!(bits.ones(), 1);
    /// ```
    pub fn set(&mut self, index: usize) {
        assert!(index < self.count, "bit {index} of {}", self.count);
        self.bytes[index / 8] |= 1 << (index % 8);
    }

    /// Whether the bit at `index` is set; false past the end.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert!(bits.get(1) && !bits.get(0));
    /// ```
    #[must_use]
    pub fn get(&self, index: usize) -> bool {
        self.bytes.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }

    /// The number of bits.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert_eq!(bits.count(), 3);
    /// ```
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of bits that are set.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert_eq!(bits.ones(), 1);
    /// ```
    #[must_use]
    pub fn ones(&self) -> usize {
        ones(&self.bytes)
    }

    /// The indices of the bits that are set, rising.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert!(bits.indices().eq([1]));
    /// ```
    pub fn indices(&self) -> impl Iterator<Item = usize> + '_ {
        indices(&self.bytes)
    }

    /// The bytes to send.
    ///
    /// ```
    /// use wire::Bits;
    ///
    /// let mut bits = Bits::none(3);
    /// bits.set(1);
    /// assert_eq!(bits.bytes(), [0b010]);
    /// ```
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether `bytes` holds exactly `count` bits.
pub(crate) fn is_bits(count: usize, bytes: &[u8]) -> bool {
    let rest = count % 8;
    bytes.len() == count.div_ceil(8) && (rest == 0 || bytes.last().is_none_or(|last| last >> rest == 0))
}

/// The number of bits that are set.
pub(crate) fn ones(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// The indices of the bits that are set, rising.
pub(crate) fn indices(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).flat_map(|(place, byte)| {
        let byte = *byte;
        (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| 8 * place + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_read_accepts_one_form_only() {
        // (number of bits, bytes, whether they are valid)
        let cases: [(usize, &[u8], bool); 7] = [
            (0, &[], true),
            (0, &[0], false),
            (8, &[255], true),
            (7, &[127], true),
            (7, &[128], false),
            (9, &[0], false),
            (9, &[0, 1], true),
        ];
        for (count, bytes, expected) in cases {
            assert_eq!(Bits::read(count, bytes).is_some(), expected, "{count} bits as {bytes:?}");
        }
    }

    #[test]
    fn bits_yield_set_indices_in_order() {
        let wanted = [0, 1, 7, 8, 63, 64, 99];
        let mut bits = Bits::none(100);
        wanted.iter().for_each(|index| bits.set(*index));
        assert!(bits.indices().eq(wanted));
        assert!((0..120).all(|index| bits.get(index) == wanted.contains(&index)));
        assert_eq!(Bits::read(100, bits.bytes()), Some(bits));
    }
}

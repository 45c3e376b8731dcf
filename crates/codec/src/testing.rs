//! Values for tests: ordinary numbers, and bit patterns that break careless arithmetic.

/// `length` ordinary numbers around zero.
pub fn noise(length: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..length).map(|_| next() + next() + next() - 1.5).collect()
}

/// `length` numbers of every bit pattern, NaNs and infinities among them.
pub fn awkward(length: usize, seed: u64) -> Vec<f32> {
    let special = [0, 1, 0x7F7F_FFFF, 0x7F80_0000, 0x7F80_0001, 0x7FC0_0000, 0x477F_F000, 0x3300_0000];
    let scattered = noise(length, seed).into_iter().enumerate();
    scattered
        .map(|(index, value)| {
            let bits = value.to_bits().wrapping_mul(0x85EB_CA6B) ^ index as u32;
            f32::from_bits(if index % 3 == 0 { special[bits as usize % 8] | bits & 0x8000_0000 } else { bits })
        })
        .collect()
}

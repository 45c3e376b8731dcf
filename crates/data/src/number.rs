//! Parses numbers in text: short decimal numbers eight bytes at a time, indices digit by digit, all
//! others with `str::parse`. Every number equals the result of `str::parse`, bit for bit.

/// Up to eight bytes of `line` from `at`, the first one lowest, with zeros past the end.
#[inline(always)]
fn eight(line: &[u8], at: usize) -> u64 {
    if let Some(bytes) = line.get(at..).and_then(<[u8]>::first_chunk) {
        return u64::from_le_bytes(*bytes);
    }
    let left = line.len().saturating_sub(at);
    match line.last_chunk() {
        // The last eight bytes of the line, shifted so that bytes before `at` drop out and zeros
        // come in.
        Some(bytes) if left > 0 => u64::from_le_bytes(*bytes) >> (8 * (8 - left)),
        Some(_) => 0,
        None => line.iter().skip(at).rev().fold(0, |word, &byte| (word << 8) | u64::from(byte)),
    }
}

/// How many of the eight bytes, from the lowest, come before the first that is not a digit.
#[inline(always)]
fn leading_digits(word: u64) -> u32 {
    // A digit is 0x30..=0x39. The xor takes the 3 away. After adding 0x76, a byte above 9 has its
    // high bit set; a byte whose high bit was set before is above 9, too. A carry only goes
    // upwards, out of a byte that is not a digit.
    let values = word ^ 0x3030_3030_3030_3030;
    let others = (values.wrapping_add(0x7676_7676_7676_7676) | values) & 0x8080_8080_8080_8080;
    others.trailing_zeros() / 8
}

/// The number that the lowest `count` bytes spell. They must all be digits, and 1 ≤ `count` ≤ 8.
#[inline(always)]
fn spelt(word: u64, count: u32) -> u64 {
    // The shift puts leading zeros in front. Then neighbours are joined: digits to pairs, pairs to
    // fours, fours to all eight.
    let digits = (word ^ 0x3030_3030_3030_3030) << (64 - 8 * count);
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF
}

const POWERS_OF_TEN: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Appends the digits of `line` from `at` to `start` as decimal digits. Returns the number and how
/// many digits there were, or none if the number takes more than 64 bits.
#[inline(always)]
fn digits(line: &[u8], at: usize, start: u64) -> Option<(u64, usize)> {
    let word = eight(line, at);
    let count = leading_digits(word);
    if count == 0 {
        return Some((start, 0));
    }
    let number = start.checked_mul(POWERS_OF_TEN[count as usize])?.checked_add(spelt(word, count))?;
    if count < 8 {
        return Some((number, count as usize));
    }
    let (number, more) = digits_slowly(line, at + 8, number)?;
    Some((number, 8 + more))
}

/// The rest of a number of more than eight digits.
#[cold]
fn digits_slowly(line: &[u8], at: usize, start: u64) -> Option<(u64, usize)> {
    let mut number = start;
    let rest = line.get(at..).unwrap_or_default();
    let count = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    for byte in &rest[..count] {
        number = number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
    }
    Some((number, count))
}

/// The unsigned whole number at `at` and where it ends. None if there is no digit, or if the number
/// takes more than 64 bits.
///
/// Reads digit by digit, on purpose. In sorted rows an index is nearly always as long as the one
/// before it. So the processor predicts its end, and need not wait for it.
#[inline(always)]
pub fn unsigned(line: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut number = 0;
    let mut end = at;
    while let Some(digit) = line.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit < 10) {
        number = number * 10 + u64::from(digit);
        end += 1;
        // The largest 64-bit number has 20 digits: 19 always fit.
        if end - at == 19 {
            return digits_slowly(line, end, number).map(|(number, more)| (number, end + more));
        }
    }
    (end > at).then_some((number, end))
}

/// Every whole number up to this one is exactly an f64.
const EXACT: u64 = 1 << 53;

/// The powers of ten that are exactly f64s.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// The last 29 bits of the f64 that is halfway between two neighbouring f32s.
const HALFWAY: u64 = 0x1000_0000;

/// A number without exponent, at most 2^53 without its point, and where it ends. None only means
/// that this function cannot decide; the text may be a number.
#[inline(always)]
fn short_decimal(line: &[u8], at: usize) -> Option<(f32, usize)> {
    let sign = line.get(at).copied();
    let start = at + usize::from(matches!(sign, Some(b'-' | b'+')));
    let (whole, count) = digits(line, start, 0)?;
    let mut end = start + count;
    let mut size = whole as f32;
    if line.get(end) == Some(&b'.') {
        let (number, decimals) = digits(line, end + 1, whole)?;
        if number > EXACT || count + decimals == 0 {
            return None;
        }
        end += 1 + decimals;
        // Both are exact, so the quotient is the f64 nearest to the number. It is on the same side
        // of each halfway point between f32s as the number, unless it is such a point itself. So
        // rounding again gives the nearest f32. With at most 22 decimals no number but 0 is so
        // small that halfway points have other last bits than HALFWAY.
        let near = number as f64 / EXACT_POWERS.get(decimals)?;
        if near.to_bits() & (2 * HALFWAY - 1) == HALFWAY {
            return None;
        }
        size = near as f32;
    } else if count == 0 {
        return None;
    }
    Some((if sign == Some(b'-') { -size } else { size }, end))
}

/// The finite number at `at` and where it ends: at the line's end, or at a byte for which `stops`
/// is true. The error is where the text ends that is not such a number.
#[inline(always)]
pub fn number(line: &[u8], at: usize, stops: impl Fn(u8) -> bool) -> Result<(f32, usize), usize> {
    // Most values are one digit.
    if let Some(&first) = line.get(at)
        && first.is_ascii_digit()
        && line.get(at + 1).is_none_or(|&byte| stops(byte))
    {
        return Ok((f32::from(first - b'0'), at + 1));
    }
    match short_decimal(line, at) {
        Some((number, end)) if line.get(end).is_none_or(|&byte| stops(byte)) => Ok((number, end)),
        _ => number_slowly(line, at, stops),
    }
}

#[cold]
fn number_slowly(line: &[u8], at: usize, stops: impl Fn(u8) -> bool) -> Result<(f32, usize), usize> {
    let rest = line.get(at..).unwrap_or_default();
    let length = rest.iter().position(|&byte| stops(byte)).unwrap_or(rest.len());
    let end = at + length;
    finite(&rest[..length]).map(|number| (number, end)).ok_or(end)
}

/// The finite number that all of `text` spells.
pub fn finite(text: &[u8]) -> Option<f32> {
    match short_decimal(text, 0) {
        Some((number, end)) if end == text.len() => Some(number),
        _ => std::str::from_utf8(text).ok()?.parse::<f32>().ok().filter(|number| number.is_finite()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_the_book(text: &str) -> Option<u32> {
        text.parse::<f32>().ok().filter(|number| number.is_finite()).map(f32::to_bits)
    }

    fn ours(text: &str) -> Option<u32> {
        finite(text.as_bytes()).map(f32::to_bits)
    }

    #[test]
    fn finite_reads_difficult_spellings_like_the_standard_library() {
        for text in [
            "",
            "0",
            "-0",
            "+0",
            "1",
            "-1",
            "+1",
            "+",
            "-",
            ".",
            "-.",
            "1.",
            ".5",
            "-.5",
            "1.5",
            "00001",
            "0.1",
            "1e3",
            "1E3",
            "1e",
            "e3",
            "1.5e-3",
            "inf",
            "-inf",
            "nan",
            "infinity",
            "0x10",
            "1_000",
            " 1",
            "1 ",
            "12345678",
            "123456789",
            "16777216",
            "16777217",
            "16777219",
            "0.000000000000000000000001",
            "1e39",
            "1e-50",
            "1e-45",
            "340282350000000000000000000000000000000",
            "340282360000000000000000000000000000000",
            "1..2",
            "1.2.3",
            "--1",
            "9007199254740993",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999999",
            "1.17549435e-38",
            "0.00000000000000000000000000000000000001175494",
            "8388608.5",
            "8388609.5",
            "16777217.0",
            "16777219.0",
            "١",
            "0.30000001192092896",
            "7.038531e-26",
            "1:2",
            "1,2",
        ] {
            assert_eq!(ours(text), by_the_book(text), "{text:?}");
        }
    }

    #[test]
    fn unsigned_reads_numbers_up_to_64_bits() {
        for (text, expected) in [
            ("", None),
            ("x", None),
            ("0", Some((0, 1))),
            ("7:", Some((7, 1))),
            ("1234567", Some((1_234_567, 7))),
            ("12345678", Some((12_345_678, 8))),
            ("123456789 ", Some((123_456_789, 9))),
            ("000000000000000000000012", Some((12, 24))),
            ("18446744073709551615", Some((u64::MAX, 20))),
            ("18446744073709551616", None),
            ("184467440737095516150", None),
        ] {
            assert_eq!(unsigned(text.as_bytes(), 0), expected, "{text:?}");
            let later = format!("a longer beginning {text}");
            let expected = expected.map(|(number, end)| (number, end + 19));
            assert_eq!(unsigned(later.as_bytes(), 19), expected, "{later:?}");
        }
        assert_eq!(unsigned(b"12", 2), None);
        assert_eq!(unsigned(b"12", 9), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn finite_reads_decimals_like_the_standard_library(text in "[-+]?[0-9]{0,12}(\\.[0-9]{0,22})?") {
            prop_assert_eq!(ours(&text), by_the_book(&text));
        }

        #[test]
        fn finite_reads_any_number_like_text_like_the_standard_library(text in "[-+.eE0-9infa: ]{0,12}") {
            prop_assert_eq!(ours(&text), by_the_book(&text));
        }

        #[test]
        fn finite_reads_back_every_printed_number(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            prop_assume!(number.is_finite());
            for text in [format!("{number}"), format!("{number:e}"), format!("{:.17}", f64::from(number))] {
                prop_assert_eq!(ours(&text), by_the_book(&text));
            }
            prop_assert_eq!(ours(&format!("{number}")), Some(bits));
        }

        /// The text of a point halfway between two f32s, and of its neighbours.
        #[test]
        fn finite_rounds_halfway_points_like_the_standard_library(mantissa in 0x80_0000u32..0xFF_FFFF, exponent in -20i32..8, nudge in -1i32..=1) {
            let halfway = (f64::from(mantissa) + 0.5) * 2f64.powi(exponent);
            let text = format!("{}", f64::from_bits(halfway.to_bits().wrapping_add_signed(i64::from(nudge))));
            prop_assert_eq!(ours(&text), by_the_book(&text));
        }

        #[test]
        fn unsigned_reads_back_numbers_at_any_place(number in any::<u64>(), before in 0usize..12, after in "[:, ]{0,9}") {
            let text = format!("{}{number}{after}", "x".repeat(before));
            let end = text.len() - after.len();
            prop_assert_eq!(unsigned(text.as_bytes(), before), Some((number, end)));
        }
    }
}

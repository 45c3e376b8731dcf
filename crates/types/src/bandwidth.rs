//! Bandwidth: a rate in bytes a second, written as in networking: `100mbit`.

use std::fmt;
use std::str::FromStr;

/// A rate of at least one byte a second.
///
/// ```
/// use types::Bandwidth;
/// let rate: Bandwidth = "100mbit".parse().unwrap();
/// assert_eq!((rate.bytes_per_second(), rate.to_string()), (12_500_000, "100mbit".to_owned()));
/// assert!("fast".parse::<Bandwidth>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth(u64);

/// Units with their bits a second, the largest first.
const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

/// Why a text is not a bandwidth. Holds the text.
///
/// ```
/// use types::Bandwidth;
///
/// let error = "fast".parse::<Bandwidth>().expect_err("no number");
/// let words = "`fast` is not a bandwidth; write a number and kbit, mbit or gbit, as in 100mbit";
/// assert_eq!(error.to_string(), words);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthError(String);

impl fmt::Display for BandwidthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a bandwidth; write a number and kbit, mbit or gbit, as in 100mbit", self.0)
    }
}

impl std::error::Error for BandwidthError {}

impl Bandwidth {
    /// A rate of `bytes` a second; 0 becomes 1.
    ///
    /// ```
    /// use types::Bandwidth;
    ///
    /// assert_eq!(Bandwidth::from_bytes_per_second(125_000).to_string(), "1mbit");
    /// assert_eq!(Bandwidth::from_bytes_per_second(0).bytes_per_second(), 1);
    /// ```
    #[must_use]
    pub fn from_bytes_per_second(bytes: u64) -> Self {
        Self(bytes.max(1))
    }

    /// The rate in bytes a second.
    ///
    /// ```
    /// use types::Bandwidth;
    ///
    /// assert_eq!("1gbit".parse().map(Bandwidth::bytes_per_second), Ok(125_000_000));
    /// ```
    #[must_use]
    pub fn bytes_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for Bandwidth {
    type Err = BandwidthError;

    fn from_str(text: &str) -> Result<Self, BandwidthError> {
        let wrong = || BandwidthError(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, bits)| lower.strip_suffix(name).map(|number| (number.trim_end(), *bits)))
            .ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = number * unit as f64 / 8.0;
        if (1.0..1e18).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.saturating_mul(8);
        let (name, unit) = UNITS.into_iter().find(|(_, unit)| bits >= *unit).unwrap_or(UNITS[3]);
        write!(f, "{}{name}", bits as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_parses_and_prints_each_case() {
        for (text, bytes, printed) in [
            ("100mbit", 12_500_000, "100mbit"),
            ("1 Gbit", 125_000_000, "1gbit"),
            ("2.5gbit", 312_500_000, "2.5gbit"),
            ("8bit", 1, "8bit"),
            ("64kbit", 8_000, "64kbit"),
        ] {
            let rate: Bandwidth = text.parse().expect(text);
            assert_eq!((rate.bytes_per_second(), rate.to_string().as_str()), (bytes, printed), "{text}");
        }
        for text in ["", "100", "mbit", "-1mbit", "nanmbit", "0mbit", "infgbit", "100 parsecs", "1e300gbit"] {
            assert!(text.parse::<Bandwidth>().is_err(), "{text}");
        }
    }
}

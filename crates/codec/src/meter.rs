//! Codec meter: counts bytes, processor time and error, and computes ratios from them.

/// Counts for one codec of one table and direction. The meter reads no clock: its caller passes the
/// time taken.
///
/// ```
/// use codec::Meter;
///
/// let mut meter = Meter::default();
/// meter.encoded(4_000, 1_000, 20_000);
/// assert_eq!(meter.ratio(), Some(4.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meter {
    /// Bytes before encoding.
    pub bytes_in: u64,
    /// Bytes after it.
    pub bytes_out: u64,
    /// Processor time spent encoding, in nanoseconds.
    pub encode_ns: u64,
    /// Bytes after decoding.
    pub bytes_decoded: u64,
    /// Processor time spent decoding, in nanoseconds.
    pub decode_ns: u64,
    /// Σ (x − decoded)² over the compared values.
    pub squared_error: f64,
    /// Σ x² over the same.
    pub squared_norm: f64,
}

impl Meter {
    /// Counts an encoded batch.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let mut meter = Meter::default();
    /// meter.encoded(4_000, 1_000, 20_000);
    /// assert_eq!((meter.bytes_in, meter.bytes_out, meter.encode_ns), (4_000, 1_000, 20_000));
    /// ```
    pub fn encoded(&mut self, bytes_in: usize, bytes_out: usize, took_ns: u64) {
        self.bytes_in += bytes_in as u64;
        self.bytes_out += bytes_out as u64;
        self.encode_ns += took_ns;
    }

    /// Counts a decoded batch.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let mut meter = Meter::default();
    /// meter.decoded(4_000, 10_000);
    /// assert_eq!((meter.bytes_decoded, meter.decode_ns), (4_000, 10_000));
    /// ```
    pub fn decoded(&mut self, bytes: usize, took_ns: u64) {
        self.bytes_decoded += bytes as u64;
        self.decode_ns += took_ns;
    }

    /// Counts the error of `decoded` against `x`. A sample of the batches is enough.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let mut meter = Meter::default();
    /// meter.compare(&[3.0, 4.0], &[3.0, 3.5]);
    /// assert_eq!(meter.relative_error(), Some(0.1));
    /// ```
    pub fn compare(&mut self, x: &[f32], decoded: &[f32]) {
        for (&x, &decoded) in x.iter().zip(decoded) {
            let x = f64::from(x);
            let error = x - f64::from(decoded);
            self.squared_error += error * error;
            self.squared_norm += x * x;
        }
    }

    /// Adds the counts of another meter.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let (mut sum, mut other) = (Meter::default(), Meter::default());
    /// other.encoded(4_000, 1_000, 0);
    /// sum.add(&other);
    /// sum.add(&other);
    /// assert_eq!(sum.bytes_in, 8_000);
    /// ```
    pub fn add(&mut self, other: &Self) {
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.encode_ns += other.encode_ns;
        self.bytes_decoded += other.bytes_decoded;
        self.decode_ns += other.decode_ns;
        self.squared_error += other.squared_error;
        self.squared_norm += other.squared_norm;
    }

    /// Bytes before encoding divided by bytes after; `None` before the first batch.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// assert_eq!(Meter { bytes_in: 300, bytes_out: 100, ..Meter::default() }.ratio(), Some(3.0));
    /// assert_eq!(Meter::default().ratio(), None);
    /// ```
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (self.bytes_out > 0).then(|| self.bytes_in as f64 / self.bytes_out as f64)
    }

    /// ‖x − decoded‖ / ‖x‖; `None` if only zeros, or nothing, was compared.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// assert_eq!(Meter { squared_error: 1.0, squared_norm: 4.0, ..Meter::default() }.relative_error(), Some(0.5));
    /// assert_eq!(Meter::default().relative_error(), None);
    /// ```
    #[must_use]
    pub fn relative_error(&self) -> Option<f64> {
        (self.squared_norm > 0.0).then(|| (self.squared_error / self.squared_norm).sqrt())
    }

    /// Encoding time in nanoseconds per megabyte of input; `None` before the first batch.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let meter = Meter { bytes_in: 2_000_000, encode_ns: 1_000_000, ..Meter::default() };
    /// assert_eq!(meter.encode_ns_per_megabyte(), Some(500_000.0));
    /// ```
    #[must_use]
    pub fn encode_ns_per_megabyte(&self) -> Option<f64> {
        (self.bytes_in > 0).then(|| self.encode_ns as f64 * 1e6 / self.bytes_in as f64)
    }

    /// Decoding time in nanoseconds per megabyte of output; `None` before the first batch.
    ///
    /// ```
    /// use codec::Meter;
    ///
    /// let meter = Meter { bytes_decoded: 2_000_000, decode_ns: 1_000_000, ..Meter::default() };
    /// assert_eq!(meter.decode_ns_per_megabyte(), Some(500_000.0));
    /// ```
    #[must_use]
    pub fn decode_ns_per_megabyte(&self) -> Option<f64> {
        (self.bytes_decoded > 0).then(|| self.decode_ns as f64 * 1e6 / self.bytes_decoded as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_computes_ratios_and_none_without_counts() {
        let mut meter = Meter::default();
        let rates = [Meter::ratio, Meter::relative_error, Meter::encode_ns_per_megabyte, Meter::decode_ns_per_megabyte];
        assert_eq!(rates.map(|rate| rate(&meter)), [None; 4]);
        meter.encoded(4000, 1000, 20);
        meter.decoded(2000, 30);
        meter.compare(&[3.0, 4.0], &[3.0, 1.0]);
        let mut twice = meter;
        twice.add(&meter);
        for meter in [meter, twice] {
            assert_eq!(rates.map(|rate| rate(&meter)), [Some(4.0), Some(0.6), Some(5000.0), Some(15_000.0)]);
        }
        assert_eq!(twice.bytes_in, 8000);
    }
}

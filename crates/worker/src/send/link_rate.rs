//! Bandwidth estimation from acknowledgements: how fast the network link to the servers is, and
//! which codecs pay at that rate.

use codec::{Meter, Pipeline, ValueCodec};
use std::collections::VecDeque;
use types::{NumberType, TableSpec, Time};

/// Fewer bytes than this say more of latency than of the rate.
const SAMPLE_BYTES: u64 = 32 << 10;
/// Samples that are remembered.
const SAMPLES: usize = 32;
/// Samples before anything is decided.
const ENOUGH: usize = 3;

/// Measures bytes acknowledged while some were under way. A sample is of parts acknowledged
/// together: their bytes, over the time since the first of them was sent or something else was last
/// acknowledged, whichever is later.
#[derive(Debug, Default)]
pub(crate) struct LinkRate {
    /// When each part was sent, and its bytes.
    under_way: VecDeque<(Time, u64)>,
    arrived: Time,
    /// Bytes, and bytes a second.
    samples: VecDeque<(u64, f64)>,
}

impl LinkRate {
    /// A part of so many bytes goes out.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        self.under_way.push_back((now, bytes));
    }

    /// So many parts have arrived. Returns whether there is something new to decide by.
    pub fn arrived(&mut self, now: Time, parts: usize) -> bool {
        let Some((first, _)) = self.under_way.front().copied() else { return false };
        // Shards acknowledge out of step: which parts these are hardly matters, only how many
        // bytes.
        let bytes: u64 = self.under_way.drain(..parts.min(self.under_way.len())).map(|(_, bytes)| bytes).sum();
        let seconds = now.since(first.max(self.arrived)).as_secs_f64();
        self.arrived = now;
        if bytes < SAMPLE_BYTES || seconds <= 0.0 {
            return false;
        }
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((bytes, bytes as f64 / seconds));
        self.samples.len() >= ENOUGH
    }

    /// Bytes per second, once there are enough samples: the rate that a quarter of the bytes
    /// exceeded. Slower ones were held up by a busy processor; a few faster ones may be bursts that
    /// the link lets through.
    pub fn bytes_per_second(&self) -> Option<f64> {
        if self.samples.len() < ENOUGH {
            return None;
        }
        let mut samples: Vec<(u64, f64)> = self.samples.iter().copied().collect();
        samples.sort_by(|a, b| b.1.total_cmp(&a.1));
        let all: u64 = samples.iter().map(|(bytes, _)| bytes).sum();
        let mut faster = 0;
        let quarter = samples.iter().find(|(bytes, _)| {
            faster += bytes;
            faster * 4 >= all
        });
        quarter.map(|(_, rate)| *rate)
    }
}

/// The seconds that it takes to move a megabyte of f32 through a codec: on the link, on the
/// processors of both ends, and by how much longer learning takes for what the codec leaves out.
pub(crate) struct TransferCost;

/// On a link that is faster than this, no lossy codec is chosen: a slower one is no link within a
/// machine, even a busy one.
const FAST: f64 = 100e6;
/// Bytes encoded before what that has cost says something.
const MEASURED_BYTES: u64 = 4 << 20;
/// What is taken must be better than what is in use by this much.
const BETTER: f64 = 0.8;

impl TransferCost {
    /// Of `pipeline` at this rate. The processor times are those of decision 13; the factors for
    /// what is left out are judgements, on the careful side.
    pub fn of(pipeline: &Pipeline, bytes_per_second: f64) -> f64 {
        let (share, processor, longer) = match pipeline.values() {
            None => (1.0, 0.0, 1.0),
            Some(ValueCodec::Bf16 | ValueCodec::F16) => (0.5, 0.2e-3, 1.1),
            Some(ValueCodec::Fixed(bits)) => (f64::from(bits.get()) / 32.0 + 0.003, 0.5e-3, 1.2),
            Some(ValueCodec::OneBit) => (0.034, 0.25e-3, 1.5),
            Some(ValueCodec::TwoBit) => (0.066, 0.45e-3, 1.4),
            Some(ValueCodec::TopK(kept)) => (kept.percent() / 100.0 * 1.3, 0.6e-3, 1.5),
            Some(ValueCodec::Threshold(_) | ValueCodec::Zeros) => (0.5, 0.3e-3, 1.0),
        };
        let compressing = if pipeline.bytes().is_some() { 2e-3 } else { 0.0 };
        (share * 1e6 / bytes_per_second + processor + compressing) * longer
    }

    /// The best pipeline for a table at this rate; the one in use, unless another is clearly
    /// better.
    pub fn best(bytes_per_second: f64, spec: &TableSpec, in_use: &Pipeline) -> Pipeline {
        let mut candidates = vec![&[][..]];
        if spec.number == NumberType::F32 && bytes_per_second < FAST {
            // Feedback only where what comes late counts as if it had come in time.
            candidates.extend([&["keys", "bf16"][..], &["keys", "fixed8"], &["keys", "1bit"]]);
        }
        let pipelines = candidates.into_iter().filter_map(|names| Pipeline::parse(names.iter().copied()).ok());
        let fits = |pipeline: &Pipeline| matches!(pipeline.check(spec.number, &spec.updater), Ok(None));
        let best = pipelines
            .filter(fits)
            .min_by(|a, b| Self::of(a, bytes_per_second).total_cmp(&Self::of(b, bytes_per_second)))
            .unwrap_or_default();
        let usable = bytes_per_second < FAST || !in_use.is_lossy();
        let clearly = Self::of(&best, bytes_per_second) < BETTER * Self::of(in_use, bytes_per_second);
        if clearly || !usable { best } else { in_use.clone() }
    }

    /// Whether codecs that the program asked for take longer than sending everything as it is: by
    /// what they are known to cost, or by what they have cost so far. Only for a warning: nothing
    /// that is sent depends on it.
    pub fn does_not_pay(pipeline: &Pipeline, meter: &Meter, bytes_per_second: f64) -> bool {
        let (saved, spent) = (meter.bytes_in.saturating_sub(meter.bytes_out), meter.encode_ns);
        let measured = meter.bytes_in > MEASURED_BYTES && spent as f64 / 1e9 > saved as f64 / bytes_per_second;
        measured
            || pipeline.is_lossy()
                && Self::of(pipeline, bytes_per_second) > Self::of(&Pipeline::default(), bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Span, UpdaterSpec};

    fn ms(milliseconds: u64) -> Time {
        Time(0) + Span::from_millis(milliseconds)
    }

    fn rate(bytes: u64, milliseconds: u64) -> Option<f64> {
        let mut rate = LinkRate::default();
        for sample in 0..ENOUGH as u64 {
            let start = sample * 10_000;
            rate.sent(ms(start), bytes / 2);
            rate.sent(ms(start), bytes / 2);
            rate.arrived(ms(start + milliseconds / 2), 1);
            rate.arrived(ms(start + milliseconds), 1);
        }
        rate.bytes_per_second()
    }

    #[test]
    fn a_rate_is_what_was_acknowledged_while_something_was_under_way() {
        assert_eq!(rate(1_000_000, 80), Some(12_500_000.0));
        assert_eq!(rate(1_000, 80), None, "too little to say");
    }

    #[test]
    fn what_was_sent_early_and_computing_in_between_do_not_count_as_the_link() {
        let mut rate = LinkRate::default();
        for round in 0..10 {
            let start = round * 1000;
            // A small part, long computing in which nobody looks, then a large part that is waited
            // for.
            rate.sent(ms(start), 5_000);
            rate.sent(ms(start + 100), 800_000);
            rate.arrived(ms(start + 100), 1);
            rate.arrived(ms(start + 101), 1);
        }
        assert!(rate.bytes_per_second().is_some_and(|rate| rate > 700e6), "{rate:?}");
    }

    #[test]
    fn a_burst_that_a_slow_link_lets_through_does_not_make_it_fast() {
        let mut rate = LinkRate::default();
        for round in 0..10 {
            let start = round * 1000;
            rate.sent(ms(start), 100_000);
            rate.arrived(ms(start + 1), 1);
            rate.sent(ms(start + 1), 900_000);
            rate.arrived(ms(start + 73), 1);
        }
        assert!(rate.bytes_per_second().is_some_and(|rate| rate < 13e6), "{rate:?}");
    }

    #[test]
    fn what_pays_by_rate_and_updater() {
        let sgd = TableSpec::dense("t", 10, 100).updater(UpdaterSpec::Sgd { rate: 0.1 });
        let adagrad = sgd.clone().updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 });
        let none = Pipeline::default();
        // (bytes a second, with a linear updater, with another)
        for (rate, linear, other) in [
            (12.5e6, "keys, 1bit", "keys, fixed8"),
            (60e6, "keys, 1bit", "keys, fixed8"),
            (125e6, "", ""),
            (1e9, "", ""),
            (5e9, "", ""),
        ] {
            assert_eq!(TransferCost::best(rate, &sgd, &none).to_string(), linear, "{rate}");
            assert_eq!(TransferCost::best(rate, &adagrad, &none).to_string(), other, "{rate}");
        }
        let i64s = TableSpec::dense("t", 10, 100).number(NumberType::I64);
        assert_eq!(TransferCost::best(1e6, &i64s, &none), none);
        let one_bit = Pipeline::parse(["keys", "1bit"]).expect("a pipeline");
        assert_eq!(TransferCost::best(12.5e6, &sgd, &one_bit), one_bit, "what is in use stays");
        assert_eq!(TransferCost::best(5e9, &sgd, &one_bit), none, "a link that turns out fast");
    }

    #[test]
    fn what_does_not_pay_is_known() {
        let pipeline = |name| Pipeline::parse([name]).expect("a pipeline");
        for (name, rate, expected) in [
            ("1bit", 12.5e6, false),
            ("1bit", 5e9, true),
            ("fixed8", 5e9, true),
            ("lz4", 5e9, false),
            ("bf16", 1e8, false),
        ] {
            assert_eq!(
                TransferCost::does_not_pay(&pipeline(name), &Meter::default(), rate),
                expected,
                "{name} at {rate}"
            );
        }
        // Half the bytes at 10 MB/s: five megabytes in half a second.
        for (seconds, expected) in [(0.1, false), (1.0, true)] {
            let mut meter = Meter::default();
            meter.encoded(10_000_000, 5_000_000, (seconds * 1e9) as u64);
            assert_eq!(TransferCost::does_not_pay(&pipeline("zstd=19"), &meter, 10e6), expected, "{seconds} s");
        }
    }
}

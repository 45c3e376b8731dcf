//! Bandwidth estimation from acknowledgements: measures the rate of the network link to the
//! servers, and chooses the codecs that save time at that rate.

use codec::{Meter, Pipeline, ValueCodec};
use std::collections::VecDeque;
use types::{NumberType, TableSpec, Time};

/// The least bytes of a sample: fewer measure latency rather than the rate.
const SAMPLE_BYTES: u64 = 32 << 10;
/// How many samples are remembered.
const SAMPLES: usize = 32;
/// How many samples an estimate needs.
const ENOUGH: usize = 3;

/// The measured rate of the network link. A sample is the bytes of parts acknowledged together,
/// over the time since the first of them was sent or the previous acknowledgement arrived,
/// whichever is later.
#[derive(Debug, Default)]
pub(crate) struct LinkRate {
    /// For each part under way: when it was sent, and its bytes.
    under_way: VecDeque<(Time, u64)>,
    /// When the last acknowledgement arrived.
    arrived: Time,
    /// For each sample: its bytes, and its rate in bytes per second.
    samples: VecDeque<(u64, f64)>,
}

impl LinkRate {
    /// A part of this many bytes is sent.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        self.under_way.push_back((now, bytes));
    }

    /// This many parts are acknowledged. Returns whether there is a new estimate.
    pub fn arrived(&mut self, now: Time, parts: usize) -> bool {
        let Some((first, _)) = self.under_way.front().copied() else { return false };
        // Shards acknowledge out of step, so these may be other parts than the acknowledged ones.
        // That hardly matters: only the count of bytes does.
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
    /// reached or exceeded. A busy processor may have held up slower samples; a few faster ones may
    /// be bursts that the link lets through.
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

/// The cost model of codecs: the seconds that it takes to move a megabyte of f32 numbers through a
/// codec. It adds the time on the link and on the processors of both ends, and multiplies by how
/// much longer learning takes with what the codec leaves out.
pub(crate) struct TransferCost;

/// On a link faster than this, in bytes per second, `auto` chooses no lossy codec. Links within a
/// machine are faster, even on a busy machine.
const FAST: f64 = 100e6;
/// The least bytes that a codec must have encoded before its measured cost counts.
const MEASURED_BYTES: u64 = 4 << 20;
/// Another pipeline replaces the one in use if its cost is below this share of the present cost.
const BETTER: f64 = 0.8;

impl TransferCost {
    /// The cost of `pipeline` at this rate. Decision 13 measured the processor times. The factors
    /// for longer learning are cautious judgements.
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

    /// The best pipeline for a table at this rate. Keeps the pipeline in use unless another is
    /// clearly better.
    pub fn best(bytes_per_second: f64, spec: &TableSpec, in_use: &Pipeline) -> Pipeline {
        let mut candidates = vec![&[][..]];
        if spec.number == NumberType::F32 && bytes_per_second < FAST {
            // The check below leaves out codecs with residuals unless the updater is linear. Only
            // then does a late gradient count the same as one in time.
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

    /// Whether codecs that the program asked for take longer than sending plain values, by the cost
    /// model or by their measured cost so far. Used for a warning only, so measured times do not
    /// affect what the worker sends.
    pub fn does_not_pay(pipeline: &Pipeline, meter: &Meter, bytes_per_second: f64) -> bool {
        let saved_bytes = meter.bytes_in.saturating_sub(meter.bytes_out);
        let spent_seconds = meter.encode_ns as f64 / 1e9;
        let measured = meter.bytes_in > MEASURED_BYTES && spent_seconds > saved_bytes as f64 / bytes_per_second;
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
    fn link_rate_is_the_acknowledged_bytes_over_the_time_under_way() {
        assert_eq!(rate(1_000_000, 80), Some(12_500_000.0));
        assert_eq!(rate(1_000, 80), None, "too few bytes for a sample");
    }

    #[test]
    fn link_rate_leaves_out_the_time_that_the_program_computes() {
        let mut rate = LinkRate::default();
        for round in 0..10 {
            let start = round * 1000;
            // A small part, then a long computation during which no frame is handled, then a large
            // part that the program waits for.
            rate.sent(ms(start), 5_000);
            rate.sent(ms(start + 100), 800_000);
            rate.arrived(ms(start + 100), 1);
            rate.arrived(ms(start + 101), 1);
        }
        assert!(rate.bytes_per_second().is_some_and(|rate| rate > 700e6), "{rate:?}");
    }

    #[test]
    fn link_rate_is_not_raised_by_bursts_that_a_slow_link_lets_through() {
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
    fn transfer_cost_chooses_the_pipeline_by_rate_and_updater() {
        let sgd = TableSpec::dense("t", 10, 100).updater(UpdaterSpec::Sgd { rate: 0.1 });
        let adagrad = sgd.clone().updater(UpdaterSpec::Adagrad { rate: 0.1, epsilon: 1e-8 });
        let none = Pipeline::default();
        // (bytes per second, the choice for a linear updater, for another updater)
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
        assert_eq!(TransferCost::best(12.5e6, &sgd, &one_bit), one_bit, "the pipeline in use stays");
        assert_eq!(TransferCost::best(5e9, &sgd, &one_bit), none, "a link that turns out fast");
    }

    #[test]
    fn transfer_cost_finds_codecs_that_cost_more_time_than_they_save() {
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

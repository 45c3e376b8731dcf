//! Property tests of every codec on random numbers: decoded values lie within the declared error
//! bound, and error feedback loses nothing.

use codec::{
    BatchRows, BytesDecoder, BytesEncoder, Codec, ErrorBound, PayloadFormat, RowResiduals, ValueCodec, ValueEncoder,
    ValueFormat, fixed, keys, sparse, zeros,
};
use proptest::prelude::*;

const VALUE_CODECS: [&str; 16] = [
    "bf16",
    "f16",
    "fixed1",
    "fixed2",
    "fixed3",
    "fixed8",
    "fixed13",
    "fixed16",
    "1bit",
    "2bit",
    "topk=0.5%",
    "topk=20%",
    "topk=100%",
    "threshold=0.01",
    "threshold=100000",
    "zeros",
];

/// Row widths: narrow, odd, and wider than any batch.
const WIDTHS: [usize; 6] = [1, 2, 7, 64, 129, 3000];

fn codec(name: &str) -> ValueCodec {
    match name.parse() {
        Ok(Codec::Values(codec)) => codec,
        other => panic!("{name} is {other:?}"),
    }
}

/// Finite numbers: ordinary ones, all magnitudes, and the extremes.
fn finite() -> impl Strategy<Value = f32> {
    let extremes =
        [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 1e-45, -1e-45, 65504.0, 65520.0];
    prop_oneof![
        6 => -1f32..1.0,
        2 => any::<f32>().prop_filter("finite", |value| value.is_finite()),
        1 => prop::sample::select(extremes.to_vec()),
        2 => Just(0.0),
    ]
}

fn lists() -> impl Strategy<Value = Vec<f32>> {
    let ordinary = || prop::collection::vec(-1f32..1.0, 0..1500);
    prop_oneof![
        prop::collection::vec(finite(), 0..4),
        prop::collection::vec(finite(), 0..700),
        ordinary(),
        // Only subnormal numbers, among which steps and means cannot be exact.
        ordinary().prop_map(|values| values.into_iter().map(|value| value * 1e-42).collect()),
    ]
}

/// Whole rows of `width` values, padded with zeros.
fn rows_of(mut values: Vec<f32>, width: usize) -> (Vec<u64>, Vec<f32>) {
    let rows = values.len().div_ceil(width);
    values.resize(rows * width, 0.0);
    ((0..rows as u64).map(|row| row * 3).collect(), values)
}

fn decoded(encoder: &ValueEncoder, bytes: &[u8], width: usize, count: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; count];
    ValueFormat::of(encoder.codec()).decode(bytes, width, &mut out).expect("as encoded");
    out
}

fn residual(encoder: &mut ValueEncoder, rows: BatchRows<'_>, count: usize) -> Vec<f32> {
    let residuals = encoder.residuals_mut();
    residuals.map_or_else(|| vec![0.0; count], |residuals| residuals.with(rows, |residual| residual.to_vec()))
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

/// Describes the first value that breaks the bound. Comparisons are negated, so that a NaN breaks
/// it.
#[allow(clippy::neg_cmp_op_on_partial_ord)]
fn breaks(bound: ErrorBound, x: &[f32], decoded: &[f32]) -> Option<String> {
    // A few times the smallest f32: rounding is no finer than that.
    let grain = 4.0 * f64::from(f32::from_bits(1));
    let pairs = || x.iter().zip(decoded).map(|(&x, &decoded)| (f64::from(x), f64::from(decoded)));
    let in_norm = |x: &[f32], decoded: &[f32], rest: f64| {
        let error = squares(x.iter().zip(decoded).map(|(&x, &decoded)| f64::from(x) - f64::from(decoded)));
        error <= rest * squares(x.iter().map(|&x| f64::from(x))) + x.len() as f64 * grain * grain
    };
    let broken = match bound {
        ErrorBound::Exact => pairs().position(|(x, decoded)| x.to_bits() != decoded.to_bits()),
        ErrorBound::Value { relative, absolute, largest } => pairs().position(|(x, decoded)| {
            let held = x.clamp(-f64::from(largest), f64::from(largest));
            !((decoded - held).abs() <= (relative * x.abs()).max(absolute))
        }),
        ErrorBound::Block { values, share } => {
            let largest = |block: &[f32]| block.iter().fold(0f64, |largest, &x| largest.max(f64::from(x).abs()));
            let mut bounds = x.chunks(values).flat_map(|block| std::iter::repeat_n(largest(block), block.len()));
            pairs().position(|(x, decoded)| {
                let largest = bounds.next().expect("one a value");
                !((decoded - x).abs() <= share * largest + grain)
            })
        }
        ErrorBound::Norm { values, rest } => {
            let values = values.unwrap_or(x.len()).max(1);
            x.chunks(values).zip(decoded.chunks(values)).position(|(x, decoded)| !in_norm(x, decoded, rest))
        }
        ErrorBound::Below { least } => pairs().position(|(x, decoded)| !((x - decoded).abs() < f64::from(least))),
    };
    broken.map(|place| format!("{bound:?} is broken at {place}"))
}

/// Half the distance from `value` to the next number away from zero.
fn half_ulp(value: f32) -> f64 {
    let magnitude = value.abs();
    (f64::from(f32::from_bits(magnitude.to_bits() + 1)) - f64::from(magnitude)) / 2.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn value_codecs_stay_within_the_declared_error_and_feedback_loses_nothing(
        name in prop::sample::select(VALUE_CODECS.to_vec()),
        width in prop::sample::select(WIDTHS.to_vec()),
        batches in prop::collection::vec(lists(), 1..4),
        sequence in any::<u64>(),
    ) {
        let codec = codec(name);
        let mut encoder = ValueEncoder::new(codec, width, 10_000, 1);
        let mut bytes = Vec::new();
        for values in batches {
            let (positions, values) = rows_of(values, width);
            let rows = BatchRows::List(&positions);
            let before = residual(&mut encoder, rows, values.len());
            let x: Vec<f32> = values.iter().zip(&before).map(|(g, e)| if *e == 0.0 { *g } else { g + e }).collect();
            encoder.encode(rows, &values, sequence, &mut bytes);
            let sent = decoded(&encoder, &bytes, width, values.len());
            if !x.iter().all(|x| x.is_finite()) {
                // A sum that overflows is sent as infinite, and the receiver refuses it.
                prop_assert!(sent.iter().any(|sent| !sent.is_finite()));
                return Ok(());
            }
            prop_assert_eq!(breaks(codec.error(width), &x, &sent), None, "{} of width {}", name, width);
            if !codec.keeps_residual() {
                continue;
            }
            let after = residual(&mut encoder, rows, values.len());
            let exact = matches!(codec, ValueCodec::TopK(_) | ValueCodec::Threshold(_));
            for ((x, sent), after) in x.iter().zip(&sent).zip(&after) {
                let lost = (f64::from(*sent) + f64::from(*after) - f64::from(*x)).abs();
                let allowed = if exact { 0.0 } else { half_ulp(*after) };
                prop_assert!(lost <= allowed, "{}: {:e} = {:e} + {:e} loses {:e}", name, x, sent, after, lost);
            }
        }
    }

    #[test]
    fn top_k_sends_exactly_its_share_of_nonzero_values(values in lists(), percent in 0.1f64..100.0) {
        let share = codec::top_k::Percentage::from_percent(percent).expect("a share");
        let mut residual = vec![0.0; values.len()];
        let mut bytes = Vec::new();
        codec::top_k::encode(&values, &mut residual, share, &mut codec::top_k::TopKScratch::default(), &mut bytes);
        let mut sent = vec![0f32; values.len()];
        sparse::decode(&bytes, &mut sent).expect("as encoded");
        let occupied = values.iter().filter(|&&value| value != 0.0).count();
        prop_assert_eq!(sent.iter().filter(|&&value| value != 0.0).count(), share.of(values.len()).min(occupied));
        let least = sent.iter().filter(|&&value| value != 0.0).fold(f32::INFINITY, |least, value| least.min(value.abs()));
        prop_assert!(residual.iter().all(|left| left.abs() <= least));
    }

    #[test]
    fn zeros_round_trip_any_numbers(values in prop::collection::vec(prop_oneof![3 => Just(0i64), 1 => any::<i64>()], 0..600)) {
        let mut bytes = Vec::new();
        let mut again = vec![7i64; values.len()];
        zeros::encode(&values, &mut Vec::new(), &mut bytes);
        sparse::decode(&bytes, &mut again).expect("as encoded");
        prop_assert_eq!(&values, &again);
        let floats: Vec<f64> = values.iter().map(|&value| f64::from_bits(value as u64)).collect();
        let mut again = vec![7f64; values.len()];
        zeros::encode(&floats, &mut Vec::new(), &mut bytes);
        sparse::decode(&bytes, &mut again).expect("as encoded");
        prop_assert!(floats.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
        prop_assert!(bytes.len() <= 1 + 8 * values.len());
    }

    #[test]
    fn keys_round_trip(
        pieces in prop::collection::vec((prop_oneof![0u64..3, 0u64..1000, any::<u64>()], 1u64..600, 1u64..4), 0..8)
    ) {
        let mut list: Vec<u64> = Vec::new();
        for (gap, count, step) in pieces {
            let next = list.last().map_or(Some(gap), |last| last.checked_add(1)?.checked_add(gap));
            let Some(start) = next else { break };
            list.extend((0..count).map_while(|i| start.checked_add(i * step)));
        }
        let mut bytes = Vec::new();
        let mut again = vec![7; list.len()];
        keys::encode(&list, &mut bytes);
        keys::decode(&bytes, &mut again).expect("as encoded");
        prop_assert!(list == again);
        prop_assert!(bytes.len() <= 8 * list.len() + list.len() / 32 * 3 + 16);
    }

    #[test]
    fn decoders_refuse_or_read_damaged_bytes_without_panic(
        values in prop::collection::vec(finite(), 0..300),
        id in 0u8..40,
        cut in 0usize..2000,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        count in 0usize..400,
    ) {
        let Some(format) = PayloadFormat::from_id(id) else { return Ok(()) };
        let mut bytes = Vec::new();
        match format {
            PayloadFormat::Keys => keys::encode(&(0..values.len() as u64).map(|i| i * i).collect::<Vec<_>>(), &mut bytes),
            PayloadFormat::Bytes => {
                let name = if count % 2 == 0 { "lz4" } else { "zstd" };
                let Ok(Codec::Bytes(codec)) = name.parse() else { panic!("{name} is one for bytes") };
                BytesEncoder::new(codec).encode(&vec![1; values.len()], &mut bytes);
            }
            PayloadFormat::Values(format) => {
                let fitting = VALUE_CODECS.map(codec).into_iter().find(|codec| ValueFormat::of(*codec) == format);
                let positions: Vec<u64> = (0..values.len() as u64).collect();
                ValueEncoder::new(fitting.unwrap_or(ValueCodec::Zeros), 1, 1000, 1)
                    .encode(BatchRows::List(&positions), &values, 1, &mut bytes);
            }
        }
        bytes.truncate(cut);
        for (index, flip) in flips {
            if !bytes.is_empty() {
                let place = index.index(bytes.len());
                bytes[place] ^= flip;
            }
        }
        match format {
            PayloadFormat::Keys => {
                let mut out = vec![0; count];
                if keys::decode(&bytes, &mut out).is_ok() {
                    prop_assert!(out.is_sorted_by(|a, b| a < b));
                }
            }
            PayloadFormat::Bytes => {
                let mut out = Vec::new();
                if BytesDecoder::default().decode(&bytes, count, &mut out).is_ok() {
                    prop_assert!(out.len() <= count);
                }
                prop_assert!(out.capacity() <= count.max(8).max(bytes.len()));
            }
            PayloadFormat::Values(format) => {
                let _ = format.decode(&bytes, 1 + count % 5, &mut vec![0.0; count]);
            }
        }
    }
}

/// Over fifty thousand draws of a batch, the mean decoded value is the encoded one, for each value
/// and over all.
#[test]
fn fixed_point_is_unbiased() {
    let values: Vec<f32> = (0..100).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(-(i % 5))).collect();
    for bits in [1, 2, 4, 8].into_iter().filter_map(fixed::FixedBits::new) {
        let draws = 50_000;
        let mut sums = vec![0f64; 100];
        let mut bytes = Vec::new();
        let mut sent = vec![0.0; 100];
        for sequence in 0..draws {
            fixed::encode(&values, bits, fixed::Draw { seed: 42, sequence }, &mut bytes);
            fixed::decode(&bytes, bits, &mut sent).expect("as encoded");
            sums.iter_mut().zip(&sent).for_each(|(sum, sent)| *sum += f64::from(*sent));
        }
        let largest = values.iter().fold(0f64, |largest, &x| largest.max(f64::from(x).abs()));
        let step = largest / f64::from(bits.highest()) * if bits.get() == 1 { 2.0 } else { 1.0 };
        let deviation = step / 2.0 / (draws as f64).sqrt();
        let biases: Vec<f64> = sums.iter().zip(&values).map(|(sum, &x)| sum / draws as f64 - f64::from(x)).collect();
        assert!(biases.iter().all(|bias| bias.abs() < 5.0 * deviation + 1e-6 * largest), "{bits:?}: {biases:?}");
        let overall = biases.iter().sum::<f64>() / 100.0;
        assert!(overall.abs() < 5.0 * deviation / 10.0 + 1e-6 * largest, "{bits:?}: {overall}");
    }
}

/// Without residuals, top-k would leave out the same values for ever. With them, all arrive.
#[test]
fn feedback_sends_small_values_in_the_end() {
    let values = [1.0, 0.01, -0.01, 0.02];
    let mut encoder = ValueEncoder::new(codec("topk=25%"), 4, 1, 1);
    let mut bytes = Vec::new();
    let mut total = [0f64; 4];
    for _ in 0..1000 {
        encoder.encode(BatchRows::List(&[0]), &values, 0, &mut bytes);
        let sent = decoded(&encoder, &bytes, 4, 4);
        total.iter_mut().zip(sent).for_each(|(total, sent)| *total += f64::from(sent));
    }
    for (total, value) in total.iter().zip(values) {
        // The error is about what the largest value gathers while the others are sent.
        assert!((total - 1000.0 * f64::from(value)).abs() <= 3.0, "{value} arrives as {total} in a thousand");
    }
    assert_eq!(encoder.residuals().map(RowResiduals::dropped), Some(codec::Dropped::default()));
}

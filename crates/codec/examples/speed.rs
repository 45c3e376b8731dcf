//! How fast each codec is on one core, beside memcpy, in GB of f32 a second (keys: millions a second):
//!
//!     cargo run --release -p slackwater-codec --example speed [VALUES [ROUNDS]]
//!
//! Each round runs memcpy and every codec once over buffers that no cache holds; the medians are printed.

use std::{env, hint::black_box, time::Instant};

use codec::{bf16, f16, fixed, keys, one_bit, sparse, threshold, top_k, two_bit};

/// 64 MiB of f32.
const VALUES: usize = 16 << 20;

const ROUNDS: usize = 7;

/// As wide as a row of a first layer on 28 × 28 images: pixels and a bias.
const GROUP: usize = 785;

struct Buffers {
    values: Vec<f32>,
    residual: Vec<f32>,
    decoded: Vec<f32>,
    encoded: Vec<u8>,
    keys: Vec<u64>,
    keys_decoded: Vec<u64>,
    places: Vec<u64>,
    scratch: top_k::Scratch,
}

type Work = Box<dyn FnMut(&mut Buffers)>;

struct Measure {
    name: String,
    encode: Work,
    decode: Work,
    seconds: [Vec<f64>; 2],
    bytes: usize,
}

fn main() {
    let argument = |place, default| env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (values, rounds) = (argument(1, VALUES), argument(2, ROUNDS));
    let mut buffers = Buffers::new(values);
    let mut measures = measures();
    let mut copies = Vec::new();
    for _ in 0..rounds {
        for measure in &mut measures {
            copies.push(seconds(|| buffers.decoded.copy_from_slice(&buffers.values)));
            measure.seconds[0].push(seconds(|| (measure.encode)(&mut buffers)));
            measure.bytes = buffers.encoded.len();
            measure.seconds[1].push(seconds(|| (measure.decode)(&mut buffers)));
        }
    }
    let rate = |seconds: &mut Vec<f64>| values as f64 / median(seconds);
    // Sorted by then: what a busy machine can do when it is left alone.
    let best = |seconds: &Vec<f64>| values as f64 / seconds[0];
    let copy = rate(&mut copies);
    println!("memcpy           {:6.2} GB/s, at best {:.2}", 4e-9 * copy, 4e-9 * best(&copies));
    println!("codec            encode  decode   over memcpy   bytes   best of all rounds");
    for measure in &mut measures {
        let [encode, decode] = measure.seconds.each_mut().map(rate);
        let unit = if measure.name.starts_with("keys") { 1e-6 } else { 4e-9 };
        let (over, share) = ([encode / copy, decode / copy], measure.bytes as f64 / (4 * values) as f64);
        let name = &measure.name;
        println!(
            "{name:16} {:6.2}  {:6.2}   {:.2}   {:.2}   {share:.4}   {:6.2}  {:6.2}",
            unit * encode,
            unit * decode,
            over[0],
            over[1],
            unit * best(&measure.seconds[0]),
            unit * best(&measure.seconds[1]),
        );
    }
}

impl Buffers {
    fn new(count: usize) -> Self {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) as f32 / (1u64 << 31) as f32
        };
        // Many small ones and few large, as gradients are.
        let values: Vec<f32> = (0..count).map(|_| (next() + next() + next() - 1.5) * next().powi(4)).collect();
        let mut keys: Vec<u64> = (1..=count as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        keys.sort_unstable();
        Self {
            residual: vec![0.0; count],
            decoded: vec![1.0; count],
            encoded: Vec::with_capacity(8 * count + 4096),
            keys_decoded: vec![1; count],
            places: Vec::new(),
            scratch: top_k::Scratch::default(),
            values,
            keys,
        }
    }
}

fn measure(
    name: impl Into<String>,
    encode: impl FnMut(&mut Buffers) + 'static,
    decode: impl FnMut(&mut Buffers) + 'static,
) -> Measure {
    let seconds = [Vec::new(), Vec::new()];
    Measure { name: name.into(), encode: Box::new(encode), decode: Box::new(decode), seconds, bytes: 0 }
}

fn measures() -> Vec<Measure> {
    let mut measures = vec![
        measure(
            "bf16",
            |b| bf16::encode(&b.values, &mut b.encoded),
            |b| bf16::decode(&b.encoded, &mut b.decoded).expect("as encoded"),
        ),
        measure(
            "f16",
            |b| f16::encode(&b.values, &mut b.encoded),
            |b| f16::decode(&b.encoded, &mut b.decoded).expect("as encoded"),
        ),
        measure(
            "1bit",
            |b| one_bit::encode(&b.values, &mut b.residual, GROUP, &mut b.encoded),
            |b| one_bit::decode(&b.encoded, GROUP, &mut b.decoded).expect("as encoded"),
        ),
        measure(
            "2bit",
            |b| two_bit::encode(&b.values, &mut b.residual, GROUP, &mut b.encoded),
            |b| two_bit::decode(&b.encoded, GROUP, &mut b.decoded).expect("as encoded"),
        ),
    ];
    measures.extend([1, 2, 4, 8, 12, 16].into_iter().filter_map(fixed::Bits::new).map(|bits| {
        let draw = fixed::Draw { seed: 1, sequence: 1 };
        measure(
            format!("fixed{}", bits.get()),
            move |b| fixed::encode(&b.values, bits, draw, &mut b.encoded),
            move |b| fixed::decode(&b.encoded, bits, &mut b.decoded).expect("as encoded"),
        )
    }));
    measures.extend([0.1, 1.0, 10.0].into_iter().filter_map(top_k::Share::from_percent).map(|share| {
        measure(
            format!("topk={}%", share.percent()),
            move |b| top_k::encode(&b.values, &mut b.residual, share, &mut b.scratch, &mut b.encoded),
            |b| sparse::decode(&b.encoded, &mut b.decoded).expect("as encoded"),
        )
    }));
    measures.extend(threshold::Least::new(1.0).map(|least| {
        measure(
            "threshold=1",
            move |b| threshold::encode(&b.values, &mut b.residual, least, &mut b.places, &mut b.encoded),
            |b| sparse::decode(&b.encoded, &mut b.decoded).expect("as encoded"),
        )
    }));
    measures.push(measure(
        "keys, M/s",
        |b| keys::encode(&b.keys, &mut b.encoded),
        |b| keys::decode(&b.encoded, &mut b.keys_decoded).expect("as encoded"),
    ));
    measures
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    black_box(start.elapsed().as_secs_f64())
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

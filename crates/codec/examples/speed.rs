//! How fast each codec is on one core, beside memcpy, in GB of f32 a second (keys: millions a second):
//!
//!     cargo run --release -p slackwater-codec --example speed [VALUES [ROUNDS]]
//!
//! Each round runs memcpy and every codec once over buffers that no cache holds. The medians are printed, by the clock and by
//! the thread's processor time: they are alike on a quiet machine, and the second says more on one that others use.

use std::{env, hint::black_box, time::Instant};

use codec::{bf16, f16, fixed, keys, one_bit, sparse, threshold, top_k, two_bit};
use rustix::time::{ClockId, clock_gettime};

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

/// Seconds of each round.
#[derive(Default)]
struct Times {
    clock: Vec<f64>,
    processor: Vec<f64>,
}

type Work = Box<dyn FnMut(&mut Buffers)>;

struct Measure {
    name: String,
    encode: Work,
    decode: Work,
    encode_times: Times,
    decode_times: Times,
    bytes: usize,
}

fn main() {
    let argument = |place, default| env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (values, rounds) = (argument(1, VALUES), argument(2, ROUNDS));
    let mut buffers = Buffers::new(values);
    let mut measures = measures();
    let mut copies = Times::default();
    for _ in 0..rounds {
        for measure in &mut measures {
            copies.time(|| buffers.decoded.copy_from_slice(&buffers.values));
            measure.encode_times.time(|| (measure.encode)(&mut buffers));
            measure.bytes = buffers.encoded.len();
            measure.decode_times.time(|| (measure.decode)(&mut buffers));
        }
    }
    let copy = copies.rates(values);
    println!("                   by the clock   over memcpy   by processor time   over memcpy    bytes");
    println!("memcpy           {:6.2}                        {:6.2}", 4e-9 * copy[0], 4e-9 * copy[1]);
    for measure in &mut measures {
        let unit = if measure.name.starts_with("keys") { 1e-6 } else { 4e-9 };
        let (encode, decode) = (measure.encode_times.rates(values), measure.decode_times.rates(values));
        print!("{:16}", measure.name);
        for clock in 0..2 {
            print!(" {:6.2} {:6.2}", unit * encode[clock], unit * decode[clock]);
            print!("   {:5.2} {:5.2}  ", encode[clock] / copy[clock], decode[clock] / copy[clock]);
        }
        println!("  {:.4}", measure.bytes as f64 / (4 * values) as f64);
    }
}

impl Times {
    fn time(&mut self, work: impl FnOnce()) {
        let (clock, processor) = (Instant::now(), processor_seconds());
        work();
        self.processor.push(processor_seconds() - processor);
        self.clock.push(black_box(clock.elapsed().as_secs_f64()));
    }

    /// Values a second, by the clock and by processor time.
    fn rates(&mut self, values: usize) -> [f64; 2] {
        [&mut self.clock, &mut self.processor].map(|seconds| values as f64 / median(seconds))
    }
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
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
    Measure {
        name: name.into(),
        encode: Box::new(encode),
        decode: Box::new(decode),
        encode_times: Times::default(),
        decode_times: Times::default(),
        bytes: 0,
    }
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

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

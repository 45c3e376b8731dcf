//! Linear regression on three workers that do not keep step. Each pulls the weights, computes a gradient from rows of its
//! own, pushes it and ends its clock; with a slack of 2 it waits only when it is more than 2 clocks ahead of the slowest.

use slackwater::{Consistency, Error, Session, Shape, TableSpec, UpdaterSpec};

const TRUE_WEIGHTS: [f32; 4] = [2.0, -1.0, 0.5, 3.0];
const ROWS: usize = 32;
const CLOCKS: u64 = 60;

fn main() -> Result<(), Error> {
    let sessions = Session::embedded(Shape { servers: 2, workers: 3 })?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| work(session))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

fn work(session: Session) -> Result<(), Error> {
    let spec = TableSpec::dense("weights", 4, 1) // four rows of one number
        .consistency(Consistency::slack(2))
        .updater(UpdaterSpec::Sgd { rate: 0.05 });
    let weights = session.table::<f32>(spec)?;
    let mut seed = 1 + u64::from(session.rank());

    for clock in 0..CLOCKS {
        let read = weights.pull_range(0..4)?.wait()?;

        let (mut gradient, mut squared_error) = (vec![0.0; 4], 0.0);
        for _ in 0..ROWS {
            let features: [f32; 4] = std::array::from_fn(|_| uniform(&mut seed));
            let label = dot(&TRUE_WEIGHTS, &features) + 0.1 * uniform(&mut seed);
            let error = dot(read.values(), &features) - label;
            squared_error += error * error / ROWS as f32;
            for (slope, feature) in gradient.iter_mut().zip(features) {
                *slope += 2.0 * error * feature / ROWS as f32; // ∂(w·x − y)² / ∂w = 2 (w·x − y) x
            }
        }
        weights.push_range(0..4, gradient)?.wait()?;
        session.clock()?;

        if session.rank() == 0 && clock % 6 == 0 {
            let behind = read.staleness();
            println!("clock {clock:>2}: mean squared error {squared_error:.4}, from weights {behind} clocks behind");
        }
    }
    session.close()
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

/// A number between −1 and 1, and the seed of the next (Knuth's MMIX generator).
fn uniform(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

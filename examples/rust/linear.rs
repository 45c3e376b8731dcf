//! Linear regression on three workers with slack 2: how far does a car go while it brakes?
//!
//! In each clock, a worker pulls the weights, computes a gradient from its own rows, pushes it and
//! ends its clock. It may be at most 2 clocks ahead of the slowest worker.

use slackwater::{Consistency, Error, Keys, RunSize, Session, TableSpec, UpdaterSpec};

/// Speeds of cars, in miles per hour, measured in the 1920s (M. Ezekiel, Methods of Correlation
/// Analysis, 1930).
const SPEEDS: [u8; 50] = [
    4, 4, 7, 7, 8, 9, 10, 10, 10, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 16, 16, 17, 17,
    17, 18, 18, 18, 18, 19, 19, 19, 20, 20, 20, 20, 20, 22, 23, 24, 24, 24, 24, 25,
];
/// The distances in which these cars stopped, in feet.
const DISTANCES: [u8; 50] = [
    2, 10, 4, 22, 16, 10, 18, 26, 34, 17, 28, 14, 20, 24, 28, 26, 34, 34, 46, 26, 36, 60, 80, 20, 26, 54, 32, 40, 32,
    40, 50, 42, 56, 76, 84, 36, 46, 68, 32, 48, 52, 56, 64, 66, 54, 70, 92, 93, 120, 85,
];
/// Clocks of each worker, with one gradient each.
const CLOCKS: u64 = 800;

fn main() -> Result<(), Error> {
    let sessions = Session::embedded(RunSize { servers: 2, workers: 3 })?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = sessions.into_iter().map(|session| scope.spawn(|| work(session))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

fn work(session: Session) -> Result<(), Error> {
    let spec = TableSpec::dense("weights", 2, 1) // two rows of one number
        .consistency(Consistency::slack(2))
        .updater(UpdaterSpec::Sgd { rate: 0.01 });
    let weights = session.table::<f32>(spec)?;
    let cars = SPEEDS.into_iter().zip(DISTANCES).skip(session.rank() as usize);
    let own: Vec<(u8, u8)> = cars.step_by(session.size().workers as usize).collect();
    for clock in 0..CLOCKS {
        let read = weights.pull(&Keys::run(0..2))?.wait()?;
        let mut gradient = vec![0.0; 2];
        let mut squared_error = 0.0;
        for (speed, distance) in &own {
            let features = [1.0, (f32::from(*speed) - 15.0) / 5.0]; // around 0: both weights learn at one speed
            let error = read.values()[0] * features[0] + read.values()[1] * features[1] - f32::from(*distance);
            squared_error += error * error;
            for (slope, feature) in gradient.iter_mut().zip(features) {
                *slope += 2.0 * error * feature / SPEEDS.len() as f32; // ∂(w·x − y)² / ∂w = 2 (w·x − y) x
            }
        }
        drop(weights.push(&Keys::run(0..2), gradient)?); // no ticket: a failure shows at the clock
        session.clock()?;
        if session.rank() == 0 && clock % 100 == 0 {
            let rmse = (squared_error / own.len() as f32).sqrt();
            println!("clock {clock:>3}: error {rmse:.1} feet (RMSE), weights {} clocks behind", read.staleness());
        }
    }
    session.barrier()?;
    if session.rank() == 0 {
        let learnt = weights.pull(&Keys::run(0..2))?.wait()?.into_values();
        println!(
            "{:.1} feet at 15 miles per hour, {:.1} more for each 5 (least squares: 41.4 and 19.7)",
            learnt[0], learnt[1]
        );
    }
    session.close()
}

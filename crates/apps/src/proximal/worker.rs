//! The worker's side of the proximal method: it pushes the gradient and curvatures of a block, and
//! updates its rows' scores when it reads new weights. It tracks the steps under way, whose joint
//! effect the curvatures must bound.

use super::blocks::{BlockFeatures, Blocks, Take};
use super::columns::ExampleColumns;
use slackwater::table::{Clock, PushOptions};
use slackwater::{Session, Table};
use std::collections::VecDeque;
use std::time::Duration;

/// While a worker waits for the last steps, it checks this often.
const WAIT: Duration = Duration::from_micros(100);
/// How far a score is expected to move in a step: curvatures are the greatest within that distance.
const REACH: f64 = 0.5;

/// F(z): the greatest curvature of the logistic loss within [`REACH`] of a score.
fn curvature(score: f64) -> f64 {
    let beyond = score.abs() - REACH;
    if beyond <= 0.0 { 0.25 } else { 1.0 / (2.0 + beyond.exp() + (-beyond).exp()) }
}

/// A step that this worker has pushed: at which clock, and with which features of which block.
#[derive(Clone)]
struct Step {
    clock: Clock,
    block: usize,
    part: BlockFeatures,
}

/// A worker's state: the weights as it last read them, and its rows' scores under them.
pub struct ProximalWorker<'a> {
    session: &'a Session,
    columns: &'a ExampleColumns,
    table: &'a Table<f32>,
    blocks: Blocks<'a>,
    /// The weight of each column, as last read.
    weights: Vec<f32>,
    /// The score of each row: Σ w x.
    pub scores: Vec<f64>,
    /// For each row: the derivative of its loss by its score, and F of its score.
    slopes: Vec<[f32; 2]>,
    /// The rows whose score has changed since their slopes were computed.
    changed: Vec<u32>,
    /// For each row: whether it is in `changed`.
    is_changed: Vec<bool>,
    /// The steps whose result has not been read yet, oldest first.
    under_way: VecDeque<Step>,
    /// For each row: Σ |x| over the features of all steps under way.
    loads: Vec<f32>,
    /// The most clocks that a read was behind, since the last check.
    pub staleness: u64,
    /// How many reads were parked, since the last check.
    pub parked: u64,
}

impl<'a> ProximalWorker<'a> {
    pub fn new(session: &'a Session, columns: &'a ExampleColumns, table: &'a Table<f32>, blocks: usize) -> Self {
        let rows = columns.labels.len();
        let mut worker = Self {
            session,
            columns,
            table,
            blocks: Blocks::new(table, columns, blocks),
            weights: vec![0.0; columns.keys.len()],
            scores: vec![0.0; rows],
            slopes: vec![[0.0; 2]; rows],
            changed: (0..rows as u32).collect(),
            is_changed: vec![true; rows],
            under_way: VecDeque::new(),
            loads: vec![0.0; rows],
            staleness: 0,
            parked: 0,
        };
        worker.find_slopes();
        worker
    }

    /// Computes the slopes of rows whose scores have changed.
    fn find_slopes(&mut self) {
        for row in self.changed.drain(..).map(|row| row as usize) {
            let label = f64::from(self.columns.labels[row]);
            let score = self.scores[row];
            self.slopes[row] = [(-label / (1.0 + (label * score).exp())) as f32, curvature(score) as f32];
            self.is_changed[row] = false;
        }
    }

    /// Makes a step: updates the scores, then pushes a block's gradient and curvatures.
    pub fn step(&mut self, block: usize, take: Take) -> Result<(), slackwater::Error> {
        self.catch_up()?;
        let part = self.blocks.part(block, take);
        self.begin(block, part.clone());
        let mut pushed = Vec::with_capacity(2 * part.columns.len());
        for &column in &*part.columns {
            let mut gradient = 0.0;
            let mut bound = 0.0;
            for (row, value) in self.columns.column(column) {
                let [slope, curvature] = self.slopes[row];
                gradient += f64::from(slope * value);
                bound += f64::from(curvature * value.abs() * self.loads[row]);
            }
            pushed.extend([gradient as f32, bound as f32]);
        }
        let examples = if block == 0 { self.columns.labels.len() as u64 } else { 0 };
        // If the push is refused, the end of the clock fails.
        drop(self.table.push_opts(&part.keys, pushed, PushOptions { examples, ..PushOptions::default() })?);
        Ok(())
    }

    /// Reads the results of steps under way. With a bound, of the steps that are sure to be made by
    /// now; without one, of those that have been made.
    fn catch_up(&mut self) -> Result<(), slackwater::Error> {
        let now = self.session.now();
        let bound = self.table.spec().consistency.bound();
        while let Some(step) = self.under_way.front().cloned() {
            if bound.is_some_and(|slack| step.clock.0 + slack >= now.0) || !self.read(&step)? {
                break;
            }
            self.under_way.pop_front();
            self.add_load(&step.part, -1.0);
        }
        Ok(())
    }

    /// Reads the results of all steps. All workers do so after the same clock.
    pub fn settle(&mut self) -> Result<(), slackwater::Error> {
        // Once these clocks have ended, a read holds every step that was made.
        for _ in 0..=self.table.spec().consistency.bound().unwrap_or(0) {
            self.session.clock()?;
        }
        self.catch_up()?;
        while !self.under_way.is_empty() {
            // Some workers have not come so far yet.
            std::thread::sleep(WAIT);
            self.catch_up()?;
        }
        Ok(())
    }

    /// Reads the weights of a step, and updates the scores. Returns whether the weights include the
    /// step.
    fn read(&mut self, Step { clock, block, part }: &Step) -> Result<bool, slackwater::Error> {
        let asked = self.blocks.ask(*block)?;
        if part.columns.is_empty() {
            self.blocks.keep(*block, asked)?;
            return Ok(true);
        }
        let rows = self.table.pull(&part.keys)?.wait()?;
        self.blocks.keep(*block, asked)?;
        self.staleness = self.staleness.max(rows.staleness());
        self.parked += u64::from(rows.waited_for().is_some());
        for (&column, row) in part.columns.iter().zip(rows.values().chunks_exact(2)) {
            let change = f64::from(row[0]) - f64::from(self.weights[column]);
            if change != 0.0 {
                self.weights[column] = row[0];
                for (row, value) in self.columns.column(column) {
                    self.scores[row] += change * f64::from(value);
                    if !std::mem::replace(&mut self.is_changed[row], true) {
                        self.changed.push(row as u32);
                    }
                }
            }
        }
        self.find_slopes();
        Ok(rows.clock() > *clock)
    }

    /// Notes that a step is under way.
    fn begin(&mut self, block: usize, part: BlockFeatures) {
        self.under_way.push_back(Step { clock: self.session.now(), block, part: part.clone() });
        if block == 0 {
            // Computes the loads anew once in each pass, so that rounding errors do not add up.
            self.loads.fill(0.0);
            let all: Vec<BlockFeatures> = self.under_way.iter().map(|step| step.part.clone()).collect();
            all.iter().for_each(|part| self.add_load(part, 1.0));
        } else {
            self.add_load(&part, 1.0);
        }
    }

    /// Adds the features of a step to the loads, or subtracts them if `sign` is −1.
    fn add_load(&mut self, part: &BlockFeatures, sign: f32) {
        for column in &*part.columns {
            for (row, value) in self.columns.column(*column) {
                self.loads[row] += sign * value.abs();
            }
        }
    }
}

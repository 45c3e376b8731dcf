//! Training of programs of sparse examples. For each minibatch: pull the weights of its features,
//! compute the gradients, push them.
//!
//! Also the settings that all programs share (update rule, learning rates, consistency, codecs),
//! and how workers set the learning rate of each epoch.

use crate::gather::{Gather, GatheredKeys};
use crate::program::{Program, Weights};
pub use crate::rounds::{Data, Go, Learnt, TrainError};
use crate::rounds::{Lesson, RoundsEnd, make_rounds};
use crate::scaling::Scaling;
use crate::shrink::shrunk;
use crate::tally::Tally;
use data::{Loan, Minibatch};
use slackwater::data_leases::DataLease;
use slackwater::policy::{Codecs, Initial, NumberType};
use slackwater::table::{PullOptions, PushOptions};
use slackwater::{Consistency, Keys, Session, Table, TableSpec, UpdaterSpec};

/// The rule by which weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// FTRL-proximal, the only rule for ℓ1. It is given gradients summed over the minibatch.
    Ftrl {
        /// α
        rate: f64,
        /// β
        beta: f64,
    },
    /// Adagrad: steps that shrink as a weight's gradients add up. It is given means over the
    /// minibatch, like the next two.
    Adagrad {
        /// η
        rate: Rate,
    },
    /// Adam: steps along running means.
    Adam {
        /// η
        rate: Rate,
    },
    /// Plain gradient descent.
    Sgd {
        /// η
        rate: Rate,
    },
}

/// A learning rate for each epoch. Ftrl has one rate: its steps shrink by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// The same in all epochs.
    Constant(f64),
    /// This in the first epoch, then falling by equal steps to zero after the last. With a constant
    /// rate the weights keep moving around the optimum, as far as minibatches differ. With a
    /// falling rate they approach it.
    Falling(f64),
}

impl Rate {
    /// The rate in epoch `epoch` of `epochs`.
    #[must_use]
    pub fn at(self, epoch: u32, epochs: u32) -> f64 {
        match self {
            Self::Constant(rate) => rate,
            Self::Falling(rate) => rate * (1.0 - f64::from(epoch) / f64::from(epochs.max(1))),
        }
    }
}

/// The settings that all programs share.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The rule by which weights follow gradients.
    pub rule: Rule,
    /// λ₁ in mean loss + λ₁ |w| + λ₂ w²/2, only for ftrl. The program gives λ₂ for each of its
    /// tables. Ftrl applies λ₂ exactly, the others only to the features of a minibatch.
    pub l1: f64,
    /// How fresh the weights that a worker reads must be.
    pub consistency: Consistency,
    /// Whether there is a constant term.
    pub bias: bool,
    /// The codecs of the tables.
    pub codecs: Codecs,
}

impl Training {
    /// Settings for `rule` and `consistency`, with a constant term, without λ₁ and without codecs.
    #[must_use]
    pub fn new(rule: Rule, consistency: Consistency) -> Self {
        Self { rule, l1: 0.0, consistency, bias: true, codecs: Codecs::default() }
    }

    /// The updater of a table whose weights begin as `initial` and have the strength `l2` of λ₂.
    #[must_use]
    pub fn updater(&self, initial: Initial, l2: f64) -> UpdaterSpec {
        let adagrad = |rate| UpdaterSpec::Adagrad { rate, epsilon: 1e-8 };
        let first = |rate: Rate| rate.at(0, 1);
        match self.rule {
            // Ftrl computes weights from sums of gradients, so they can only begin as zero. Tables
            // with other initial weights use adagrad.
            Rule::Ftrl { rate, .. } if initial != Initial::Zero => adagrad(rate),
            Rule::Ftrl { rate, beta } => UpdaterSpec::Ftrl { rate, beta, l1: self.l1, l2 },
            Rule::Adagrad { rate } => adagrad(first(rate)),
            Rule::Adam { rate } => UpdaterSpec::Adam { rate: first(rate), beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
            Rule::Sgd { rate } => UpdaterSpec::Sgd { rate: first(rate) },
        }
    }

    /// The spec of one of a program's tables.
    #[must_use]
    pub fn spec(&self, weights: &Weights) -> TableSpec {
        let updater = self.updater(weights.initial, weights.l2);
        let spec = TableSpec::sparse(weights.name, weights.width).initial(weights.initial);
        shrunk(spec.consistency(self.consistency).updater(updater), &self.codecs)
    }

    /// Makes a program's tables, or opens them if another worker has made them.
    pub fn tables(&self, session: &Session, program: &dyn Program) -> Result<Vec<Table<f32>>, slackwater::Error> {
        program.tables().iter().map(|weights| session.table(self.spec(weights))).collect()
    }
}

/// The result of [`train`].
pub struct Trained {
    /// The program's tables.
    pub tables: Vec<Table<f32>>,
    /// Whether a worker was told to stop before it had learnt from all its minibatches.
    pub stopped: bool,
    /// How far this worker has read its data.
    pub progress: data::ReadProgress,
    /// If data is leased: what all workers together have learnt from.
    pub tally: Option<Tally>,
}

/// Runs one worker's part of the training, and returns when every worker has finished.
///
/// The worker learns from all minibatches of its share of the data, or from ranges of
/// [leased](crate::leased::Leased) data that it is granted. Features are standardised if `scaling`
/// is given. `watch` gets a report of each minibatch, and may end the training early, for all
/// workers. If one worker cannot go on with its share, all workers return an error.
pub fn train<'d>(
    session: &Session,
    program: &dyn Program,
    training: &Training,
    scaling: Option<&Scaling>,
    data: impl Into<Data<'d>>,
    watch: impl FnMut(Learnt) -> Go,
) -> Result<Trained, TrainError> {
    let data = data.into();
    let tables = training.tables(session, program)?;
    let mut gather = Gather::new(tables[0].spec().shape.placement(), training.bias, scaling);
    let prepare = move |batch: &Minibatch, gathered: &mut GatheredKeys| gather.gather(batch, gathered);
    let mut learner = Learner::new(program, &tables);
    let mut pace = Pace::new(session, training.rule, &tables, data)?;
    let learn = |batch: &Loan<GatheredKeys>, lease: Option<&DataLease>| {
        pace.reach(batch.epoch())?;
        Ok(learner.learn(batch, lease)?)
    };
    let RoundsEnd { stopped, progress, tally } =
        make_rounds(session, training.consistency, data, prepare, learn, watch)?;
    Ok(Trained { tables, stopped, progress, tally })
}

/// Pushes the gradients of `examples` examples, as part of their lease if they have one. Does not
/// wait: if the push is refused, the end of the clock fails.
pub(crate) fn push(
    table: &Table<f32>,
    keys: &Keys,
    gradients: &[f32],
    examples: u64,
    lease: Option<&DataLease>,
) -> Result<(), slackwater::Error> {
    table.push_opts(keys, gradients, PushOptions { examples, lease, ..PushOptions::default() }).map(drop)
}

/// Sets the learning rate of each epoch, for all workers.
pub(crate) struct Pace<'a> {
    tables: &'a [Table<f32>],
    rate: Rate,
    setter: Setter,
    /// The epoch and rate that were last set, by this training. A session that trains again may
    /// find any rate.
    set: Option<(u32, f64)>,
    epochs: u32,
}

/// Who sets the rates.
enum Setter {
    /// Not this worker: another one, or none because the rate never changes.
    Other,
    /// This worker, which has rank 0 and takes part from the beginning to the end.
    First,
    /// Every worker that reaches an epoch, because workers come and go. The table has the epochs
    /// that workers have reached. So a worker that is granted the rest of an earlier epoch does not
    /// set that epoch's rate again.
    Anyone(Table<i64>),
}

impl<'a> Pace<'a> {
    pub fn new(
        session: &Session,
        rule: Rule,
        tables: &'a [Table<f32>],
        data: Data<'_>,
    ) -> Result<Self, slackwater::Error> {
        let (rate, is_set) = match rule {
            Rule::Adagrad { rate } | Rule::Adam { rate } | Rule::Sgd { rate } => (rate, true),
            Rule::Ftrl { rate, .. } => (Rate::Constant(rate), false),
        };
        let setter = match data {
            Data::Share(_) if is_set && session.rank() == 0 => Setter::First,
            Data::Leased(_) if matches!(rate, Rate::Falling(_)) => {
                let spec =
                    TableSpec::sparse(&format!(".epochs {}", session.unique_number()), 1).number(NumberType::I64);
                Setter::Anyone(session.table(spec.consistency(Consistency::Unbounded))?)
            }
            _ => Setter::Other,
        };
        Ok(Self { tables, rate, setter, set: None, epochs: data.settings().epochs })
    }

    /// Called before each minibatch, with its epoch. Sets the epoch's rate if need be.
    pub fn reach(&mut self, epoch: u32) -> Result<(), slackwater::Error> {
        match &self.setter {
            Setter::Other => Ok(()),
            Setter::First if self.set.is_some_and(|(of, _)| of == epoch) => Ok(()),
            Setter::First => {
                let rate = self.rate.at(epoch, self.epochs);
                if self.set.is_none_or(|(_, known)| known != rate) {
                    // There is no need to wait until every shard knows.
                    self.tables.iter().try_for_each(|table| table.set_rate(rate).map(drop))?;
                }
                self.set = Some((epoch, rate));
                Ok(())
            }
            Setter::Anyone(_) if self.set.is_some_and(|(of, _)| of >= epoch) => Ok(()),
            Setter::Anyone(reached) => {
                reached.push(&reached.keys(&[epoch.into()]), vec![1])?.wait()?;
                let furthest = || -> Result<u32, slackwater::Error> {
                    let epochs = reached.scan(..)?.wait()?;
                    Ok(epochs.ids().iter().copied().max().map_or(epoch, |epoch| epoch as u32))
                };
                let mut latest = furthest()?;
                loop {
                    let rate = self.rate.at(latest, self.epochs);
                    for table in self.tables {
                        table.set_rate(rate)?.wait()?;
                    }
                    self.set = Some((latest, rate));
                    // Another worker may have reached a later epoch meanwhile, and set its rate
                    // before this worker set the older one.
                    match furthest()? {
                        further if further > latest => latest = further,
                        _ => return Ok(()),
                    }
                }
            }
        }
    }
}

/// Learns from one minibatch after another.
struct Learner<'a> {
    program: &'a dyn Program,
    tables: &'a [Table<f32>],
    shapes: Vec<Weights>,
    /// How many rows the largest minibatch so far has.
    largest: usize,
    /// The pulled weights and the gradients, for each table. Their memory is used again.
    weights: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl<'a> Learner<'a> {
    fn new(program: &'a dyn Program, tables: &'a [Table<f32>]) -> Self {
        let none = || vec![Vec::new(); tables.len()];
        Self { program, tables, shapes: program.tables(), largest: 0, weights: none(), gradients: none() }
    }

    fn learn(&mut self, batch: &Loan<GatheredKeys>, lease: Option<&DataLease>) -> Result<Lesson, slackwater::Error> {
        let Self { program, tables, shapes, largest, weights, gradients } = self;
        let examples = batch.prepared().examples(batch);
        *largest = examples.len().max(*largest);
        let mut pulls = Vec::new();
        for ((table, weights), shape) in tables.iter().zip(weights.iter_mut()).zip(shapes.iter()) {
            weights.resize(examples.keys.len() * shape.width as usize, 0.0);
            pulls.push(table.pull_opts(
                examples.keys,
                PullOptions { into: Some(std::mem::take(weights).into()), ..PullOptions::default() },
            )?);
        }
        let mut lesson = Lesson::default();
        for (pull, weights) in pulls.into_iter().zip(weights.iter_mut()) {
            let rows = pull.wait()?;
            lesson.staleness = lesson.staleness.max(rows.staleness());
            lesson.parked += u64::from(rows.waited_for().is_some());
            *weights = rows.into_values();
        }
        for (gradients, weights) in gradients.iter_mut().zip(weights.iter()) {
            gradients.clear();
            gradients.resize(weights.len(), 0.0);
        }
        let views: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
        lesson.loss = program.learn(&examples, &views, gradients);
        let count = examples.len() as u64;
        for (((table, gradients), weights), shape) in tables.iter().zip(gradients).zip(weights).zip(shapes) {
            if !matches!(table.spec().updater, UpdaterSpec::Ftrl { .. }) {
                to_mean(gradients, weights, shape.l2, examples.len(), *largest);
            }
            push(table, examples.keys, gradients, count, lease)?;
        }
        Ok(lesson)
    }
}

/// Turns a sum of gradients over `examples` into a mean, and adds λ₂ times the weights. The last
/// minibatch of an epoch is mostly smaller than `largest`, the size of the others. The sum is
/// divided by `largest` all the same, so that every row counts alike.
pub(crate) fn to_mean(gradients: &mut [f32], weights: &[f32], l2: f64, examples: usize, largest: usize) {
    let share = 1.0 / largest as f32;
    let l2 = (l2 * examples as f64 / largest as f64) as f32;
    gradients.iter_mut().zip(weights).for_each(|(gradient, w)| *gradient = *gradient * share + l2 * *w);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Linear;
    use data::{DataReader, Format, Labels, ReaderSettings};
    use slackwater::RunSize;

    #[test]
    fn to_mean_counts_each_row_alike_in_any_division_into_minibatches() {
        let rows = [3.0f32, -1.0, 2.0, 5.0, 0.5];
        let weights = [2.0];
        let l2 = 0.25;
        let learnt = |cut: &[usize]| {
            let mut rest = &rows[..];
            let mut sum = 0.0;
            for &examples in cut {
                let (batch, others) = rest.split_at(examples);
                let mut gradient = [batch.iter().sum::<f32>()];
                to_mean(&mut gradient, &weights, l2, examples, 2);
                rest = others;
                sum += gradient[0];
            }
            sum
        };
        assert_eq!(learnt(&[2, 2, 1]), (9.5 + 5.0 * 0.5) / 2.0);
        assert_eq!(learnt(&[1, 2, 2]), learnt(&[2, 2, 1]));
    }

    #[test]
    fn a_falling_rate_falls_by_equal_steps_towards_zero() {
        let rates = |rate: Rate| [0, 1, 2, 3].map(|epoch| rate.at(epoch, 4));
        assert_eq!(rates(Rate::Falling(0.8)), [0.8, 0.8 * 0.75, 0.4, 0.2]);
        assert_eq!(rates(Rate::Constant(0.8)), [0.8; 4]);
    }

    #[test]
    fn training_uses_the_rate_of_each_epoch() {
        let path = std::env::temp_dir().join(format!("slackwater-rates-{}.libsvm", std::process::id()));
        std::fs::write(&path, "1 7:1\n").expect("a file can be written");
        let settings = ReaderSettings { epochs: 2, ..ReaderSettings::new(Format::LibSvm, Labels::Real) };
        let reader = DataReader::open(&[path.to_str().expect("a path in UTF-8")], settings).expect("it is there");
        for (rate, expected) in [(Rate::Constant(0.5), 0.75), (Rate::Falling(0.5), 0.625)] {
            let session = Session::embedded(RunSize { servers: 2, workers: 1 }).expect("a cluster").remove(0);
            let consistency = Consistency::LOCK_STEP;
            let training = Training {
                rule: Rule::Sgd { rate },
                l1: 0.0,
                consistency,
                bias: false,
                codecs: slackwater::policy::Codecs::default(),
            };
            let trained = train(&session, &Linear { l2: 0.0 }, &training, None, &reader, |_| Go::On);
            let table = &trained.expect("it trains").tables[0];
            let weight = table.pull(&table.keys(&[7])).and_then(slackwater::Ticket::wait).expect("it can be read");
            // The first step goes from 0 to 1/2. The second goes half of the rest, or a quarter.
            assert_eq!(weight.values(), [expected], "{rate:?}");
        }
        std::fs::remove_file(&path).expect("it was there");
    }
}

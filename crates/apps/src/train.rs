//! How programs of sparse examples learn from a minibatch: pull the weights of its features,
//! compute gradients, push them.

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

/// How weights follow gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// FTRL-proximal: the one for ℓ1. Learns from sums over the minibatch.
    Ftrl {
        /// α
        rate: f64,
        /// β
        beta: f64,
    },
    /// Steps that shrink with the gradients a weight has seen. Learns from means over the
    /// minibatch, as the next two do.
    Adagrad {
        /// η
        rate: Rate,
    },
    /// Steps along running means.
    Adam {
        /// η
        rate: Rate,
    },
    /// Plain steps.
    Sgd {
        /// η
        rate: Rate,
    },
}

/// A learning rate, epoch by epoch. Ftrl has none: its steps shrink by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// The same in all of them.
    Constant(f64),
    /// From this in the first, by equal steps, towards nothing after the last. Steps that stay as
    /// long as they were keep circling the best weights, as far off as their minibatches differ;
    /// these close in on them.
    Falling(f64),
}

impl Rate {
    /// What it is in one of so many epochs.
    #[must_use]
    pub fn at(self, epoch: u32, epochs: u32) -> f64 {
        match self {
            Self::Constant(rate) => rate,
            Self::Falling(rate) => rate * (1.0 - f64::from(epoch) / f64::from(epochs.max(1))),
        }
    }
}

/// What all programs have to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// How weights follow gradients.
    pub rule: Rule,
    /// λ₁ of mean loss + λ₁ |w| + λ₂ w²/2, for ftrl alone. λ₂ is said by the program, for each of
    /// its tables: ftrl applies it exactly, the others to the features that a minibatch has.
    pub l1: f64,
    /// How fresh weights must be.
    pub consistency: Consistency,
    /// Whether there is a constant term.
    pub bias: bool,
    /// What shrinks messages.
    pub codecs: Codecs,
}

impl Training {
    /// Learns by `rule`, from weights as fresh as `consistency` says: with a constant term, without
    /// λ₁ and codecs.
    #[must_use]
    pub fn new(rule: Rule, consistency: Consistency) -> Self {
        Self { rule, l1: 0.0, consistency, bias: true, codecs: Codecs::default() }
    }

    /// What a table's updater is, by what its weights start from and how strong its λ₂ is.
    #[must_use]
    pub fn updater(&self, initial: Initial, l2: f64) -> UpdaterSpec {
        let adagrad = |rate| UpdaterSpec::Adagrad { rate, epsilon: 1e-8 };
        let first = |rate: Rate| rate.at(0, 1);
        match self.rule {
            // Its weights are computed from sums of gradients, so they cannot start from anything
            // but zero.
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

    /// Makes a program's tables, or finds them where another worker has made them.
    pub fn tables(&self, session: &Session, program: &dyn Program) -> Result<Vec<Table<f32>>, slackwater::Error> {
        program.tables().iter().map(|weights| session.table(self.spec(weights))).collect()
    }
}

/// What a worker comes back with.
pub struct Trained {
    /// The program's tables.
    pub tables: Vec<Table<f32>>,
    /// Whether some worker was told to stop before it had learnt from all its minibatches.
    pub stopped: bool,
    /// How far this worker's reading has come.
    pub progress: data::ReadProgress,
    /// What all workers have learnt from, where data is leased.
    pub tally: Option<Tally>,
}

/// One worker's part of the training: learns from all minibatches of its share of the data, or of
/// what it is granted of
/// [leased](crate::leased::Leased) data, on a scale if there is one, and returns when every worker has. `watch` is told of each, and
/// may end it early, for all workers alike. If one cannot go on with its share, none does.
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

/// Pushes what was learnt from so many examples, for a lease if they are of one. A refused push is
/// told by the end of the clock.
pub(crate) fn push(
    table: &Table<f32>,
    keys: &Keys,
    gradients: &[f32],
    examples: u64,
    lease: Option<&DataLease>,
) -> Result<(), slackwater::Error> {
    table.push_opts(keys, gradients, PushOptions { examples, lease, ..PushOptions::default() }).map(drop)
}

/// Sets the rate of each epoch, for all workers.
pub(crate) struct Pace<'a> {
    tables: &'a [Table<f32>],
    rate: Rate,
    setter: Setter,
    /// What was last set, and for which epoch. A session that trains again may find anything.
    set: Option<(u32, f64)>,
    epochs: u32,
}

/// Who sets rates.
enum Setter {
    /// Others do, or nobody.
    Other,
    /// The first worker, which is there from the beginning to the end.
    First,
    /// Whoever comes to an epoch, where workers come and go: here are the epochs that somebody has
    /// come to. One that is granted what another has left of an earlier epoch does not set its rate
    /// again.
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

    /// What comes next is of this epoch.
    pub fn reach(&mut self, epoch: u32) -> Result<(), slackwater::Error> {
        match &self.setter {
            Setter::Other => Ok(()),
            Setter::First if self.set.is_some_and(|(of, _)| of == epoch) => Ok(()),
            Setter::First => {
                let rate = self.rate.at(epoch, self.epochs);
                if self.set.is_none_or(|(_, known)| known != rate) {
                    // Nobody needs to wait until every shard knows.
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
                    // Somebody may have come to the next epoch and set its rate before this one
                    // did.
                    match furthest()? {
                        further if further > latest => latest = further,
                        _ => return Ok(()),
                    }
                }
            }
        }
    }
}

struct Learner<'a> {
    program: &'a dyn Program,
    tables: &'a [Table<f32>],
    shapes: Vec<Weights>,
    /// Rows of the largest minibatch so far.
    largest: usize,
    /// Of each table, in memory that is used again.
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

/// Makes a sum of gradients over `examples` a mean, with λ₂ of the weights. An epoch's last
/// minibatch is mostly shorter than the others; its mean is pushed for the share of a whole one
/// that it is, so that every row counts alike.
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
    fn however_rows_are_cut_into_minibatches_each_counts_alike() {
        let rows = [3.0f32, -1.0, 2.0, 5.0, 0.5];
        let (weights, l2) = ([2.0], 0.25);
        let learnt = |cut: &[usize]| {
            let (mut rest, mut sum) = (&rows[..], 0.0);
            for &examples in cut {
                let (batch, others) = rest.split_at(examples);
                let mut gradient = [batch.iter().sum::<f32>()];
                to_mean(&mut gradient, &weights, l2, examples, 2);
                (rest, sum) = (others, sum + gradient[0]);
            }
            sum
        };
        assert_eq!(learnt(&[2, 2, 1]), (9.5 + 5.0 * 0.5) / 2.0);
        assert_eq!(learnt(&[1, 2, 2]), learnt(&[2, 2, 1]));
    }

    #[test]
    fn a_falling_rate_falls_by_equal_steps_towards_nothing() {
        let rates = |rate: Rate| [0, 1, 2, 3].map(|epoch| rate.at(epoch, 4));
        assert_eq!(rates(Rate::Falling(0.8)), [0.8, 0.8 * 0.75, 0.4, 0.2]);
        assert_eq!(rates(Rate::Constant(0.8)), [0.8; 4]);
    }

    #[test]
    fn each_epoch_steps_at_its_own_rate() {
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
            // From 0 to 1/2; then half of what is left, or a quarter.
            assert_eq!(weight.values(), [expected], "{rate:?}");
        }
        std::fs::remove_file(&path).expect("it was there");
    }
}

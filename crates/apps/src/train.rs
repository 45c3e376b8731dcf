//! How programs of sparse examples learn from a minibatch: pull the weights of its features, compute gradients, push them.

use crate::gather::{Gather, Gathered};
use crate::program::{Program, Weights};
use crate::rounds::{Ended, Lesson, make_rounds};
pub use crate::rounds::{Go, Learnt, TrainError};
use crate::scaling::Scaling;
use data::{Loan, Minibatch, Reader};
use slackwater::{Consistency, Initial, Session, Table, TableSpec, Tickets, UpdaterSpec};

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
    /// Steps that shrink with the gradients a weight has seen. Learns from means over the minibatch, as the next two do.
    Adagrad {
        /// η
        rate: f64,
    },
    /// Steps along running means.
    Adam {
        /// η
        rate: f64,
    },
    /// Plain steps.
    Sgd {
        /// η
        rate: f64,
    },
}

/// What all programs have to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// How weights follow gradients.
    pub rule: Rule,
    /// λ₁ of mean loss + λ₁ |w| + λ₂ w²/2, for ftrl alone. λ₂ is said by the program, for each of its tables: ftrl applies it
    /// exactly, the others to the features that a minibatch has.
    pub l1: f64,
    /// How fresh weights must be.
    pub consistency: Consistency,
    /// Whether there is a constant term.
    pub bias: bool,
}

impl Training {
    /// What a table's updater is, by what its weights start from and how strong its λ₂ is.
    #[must_use]
    pub fn updater(&self, initial: Initial, l2: f64) -> UpdaterSpec {
        let adagrad = |rate| UpdaterSpec::Adagrad { rate, epsilon: 1e-8 };
        match self.rule {
            // Its weights are computed from sums of gradients, so they cannot start from anything but zero.
            Rule::Ftrl { rate, .. } if initial != Initial::Zero => adagrad(rate),
            Rule::Ftrl { rate, beta } => UpdaterSpec::Ftrl { rate, beta, l1: self.l1, l2 },
            Rule::Adagrad { rate } => adagrad(rate),
            Rule::Adam { rate } => UpdaterSpec::Adam { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
            Rule::Sgd { rate } => UpdaterSpec::Sgd { rate },
        }
    }

    /// The spec of one of a program's tables.
    #[must_use]
    pub fn spec(&self, weights: &Weights) -> TableSpec {
        let updater = self.updater(weights.initial, weights.l2);
        let spec = TableSpec::sparse(weights.name, weights.width).initial(weights.initial);
        spec.consistency(self.consistency).updater(updater)
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
    pub progress: data::Progress,
}

/// One worker's part of the training: learns from all minibatches of `reader`, on a scale if there is one, and
/// returns when every worker has. `watch` is told of each, and may end it early, for all workers
/// alike. If one cannot go on, none does.
pub fn train(
    session: &Session,
    program: &dyn Program,
    training: &Training,
    scaling: Option<&Scaling>,
    reader: &Reader,
    watch: impl FnMut(Learnt) -> Go,
) -> Result<Trained, TrainError> {
    let tables = training.tables(session, program)?;
    let mut gather = Gather::new(tables[0].spec().shape.placement(), training.bias, scaling);
    let prepare = move |batch: &Minibatch, gathered: &mut Gathered| gather.gather(batch, gathered);
    let mut learner = Learner::new(program, &tables);
    let learn = |batch: &Loan<Gathered>| Ok(learner.learn(batch)?);
    let Ended { stopped, progress } = make_rounds(session, training.consistency, reader, prepare, learn, watch)?;
    Ok(Trained { tables, stopped, progress })
}

struct Learner<'a> {
    program: &'a dyn Program,
    tables: &'a [Table<f32>],
    shapes: Vec<Weights>,
    /// Of each table, in memory that is used again.
    weights: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl<'a> Learner<'a> {
    fn new(program: &'a dyn Program, tables: &'a [Table<f32>]) -> Self {
        let none = || vec![Vec::new(); tables.len()];
        Self { program, tables, shapes: program.tables(), weights: none(), gradients: none() }
    }

    fn learn(&mut self, batch: &Loan<Gathered>) -> Result<Lesson, slackwater::Error> {
        let Self { program, tables, shapes, weights, gradients } = self;
        let examples = batch.prepared().examples(batch);
        let mut pulls = Vec::new();
        for ((table, weights), shape) in tables.iter().zip(weights.iter_mut()).zip(shapes.iter()) {
            weights.resize(examples.keys.len() * shape.width as usize, 0.0);
            pulls.push(table.pull_into(examples.keys, std::mem::take(weights), &Tickets::none())?);
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
                let (share, l2) = (1.0 / count as f32, shape.l2 as f32);
                gradients.iter_mut().zip(weights).for_each(|(gradient, w)| *gradient = *gradient * share + l2 * *w);
            }
            // A refused push is told by the end of the clock.
            drop(table.push_after(examples.keys, gradients.as_slice(), count, &Tickets::none())?);
        }
        Ok(lesson)
    }
}

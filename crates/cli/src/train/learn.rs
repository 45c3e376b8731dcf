//! One worker's learning, in the way that the settings ask for, and what there is to take away from
//! it.

use super::job::{Job, Method};
use super::monitor::TrainingMonitor;
use apps::model::ModelTable;
use apps::proximal::Gap;
use apps::scaling::Scaling;
use apps::tally::Tally;
use apps::train::{Data, Learnt, TrainError, Trained};
use data::{DataReader, ReadProgress};
use slackwater::{Session, Table};
use std::collections::BTreeMap;

/// What a worker comes back with.
pub(crate) struct Learned {
    weights: Weights,
    pub(crate) stopped: bool,
    pub(crate) progress: ReadProgress,
    /// How far from the optimum the weights are at most, where that is known.
    pub(crate) gap: Option<Gap>,
    /// What all workers have learnt from, where data is leased.
    pub(crate) tally: Option<Tally>,
}

/// Where the weights are.
enum Weights {
    Proximal(Table<f32>),
    /// Each with its name, on a scale if there is one.
    Tables(Vec<(String, Table<f32>)>, Option<Scaling>),
}

impl Learned {
    /// The weights as a model has them, by name.
    pub(crate) fn model(&self) -> Result<BTreeMap<String, ModelTable>, slackwater::Error> {
        match &self.weights {
            Weights::Proximal(table) => Ok([("weights".to_owned(), apps::proximal::weights(table)?)].into()),
            Weights::Tables(tables, scaling) => {
                let pull = |(name, table): &(String, Table<f32>)| {
                    let mut pulled = ModelTable::pull(table)?;
                    scaling.iter().for_each(|scaling| scaling.unfold(&mut pulled));
                    Ok((name.clone(), pulled))
                };
                tables.iter().map(pull).collect()
            }
        }
    }
}

/// Learns from a worker's share of the data by steps of all features together, to the optimum.
fn learn_proximal(
    session: &Session,
    proximal: &apps::proximal::Proximal,
    reader: &DataReader,
    watch: &mut TrainingMonitor<'_>,
) -> Result<Learned, TrainError> {
    let solved = apps::proximal::train(session, proximal, &reader.once(), |state| match state {
        Some(state) => watch.see(Learnt {
            epoch: state.pass - 1,
            examples: state.examples,
            weight: state.examples as f64,
            loss: state.loss,
            staleness: state.staleness,
            parked: state.parked,
            progress: ReadProgress::default(),
            share: None,
        }),
        None => watch.go(),
    })?;
    let (stopped, progress, gap) = (solved.stopped, solved.progress, Some(solved.gap));
    Ok(Learned { weights: Weights::Proximal(solved.table), stopped, progress, gap, tally: None })
}

/// Learns from a worker's share of the data, or from what it is granted.
pub(crate) fn learn(
    session: &Session,
    job: &Job,
    data: Data<'_>,
    watch: &mut TrainingMonitor<'_>,
) -> Result<Learned, TrainError> {
    if let (Method::Proximal(proximal, _), Data::Share(reader)) = (&job.method, data) {
        return learn_proximal(session, proximal, reader, watch);
    }
    let see = |learnt| watch.see(learnt);
    let mut scaling = None;
    let (trained, names): (Trained, Vec<String>) = match &job.method {
        Method::Mlp(mlp) => (apps::mlp::train(session, mlp, &job.training, data, see)?, mlp.tables().collect()),
        Method::Minibatches(program) | Method::Proximal(_, program) => {
            if job.settings.switch("standardise") {
                scaling = Some(Scaling::measure(session, program.task(), data)?);
            }
            let trained = apps::train::train(session, &**program, &job.training, scaling.as_ref(), data, see)?;
            (trained, program.tables().iter().map(|table| table.name.to_owned()).collect())
        }
    };
    let Trained { tables, stopped, progress, tally } = trained;
    let weights = Weights::Tables(names.into_iter().zip(tables).collect(), scaling);
    Ok(Learned { weights, stopped, progress, gap: None, tally })
}

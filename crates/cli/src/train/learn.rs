//! One worker's training by the method that the settings choose, and the weights that it results
//! in.

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

/// The result of one worker's training.
pub(crate) struct Learned {
    weights: Weights,
    pub(crate) stopped: bool,
    pub(crate) progress: ReadProgress,
    /// A bound on the weights' distance from the optimum, for proximal steps only.
    pub(crate) gap: Option<Gap>,
    /// The rows and losses of all workers, where data is leased.
    pub(crate) tally: Option<Tally>,
}

/// The tables that hold the weights.
enum Weights {
    Proximal(Table<f32>),
    /// Tables with their names, and the scaling of the features, if any.
    Tables(Vec<(String, Table<f32>)>, Option<Scaling>),
}

impl Learned {
    /// The tables of the model, by name.
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

/// Trains on a worker's share of the data by proximal steps, to the optimum.
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
    Ok(Learned {
        weights: Weights::Proximal(solved.table),
        stopped: solved.stopped,
        progress: solved.progress,
        gap: Some(solved.gap),
        tally: None,
    })
}

/// Trains on a worker's share of the data, or on its data leases.
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

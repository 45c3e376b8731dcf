//! One worker's learning, in the way that the settings ask for, and what the first worker takes away from it.

use super::job::{Job, Method};
use super::watch::Watch;
use apps::model::ModelTable;
use apps::proximal::Gap;
use apps::scaling::Scaling;
use apps::train::{Learnt, TrainError, Trained};
use data::{Progress, Reader};
use slackwater::Session;
use std::collections::BTreeMap;

/// What a worker comes back with.
pub struct Learned {
    /// By name; the first worker alone has them.
    pub tables: BTreeMap<String, ModelTable>,
    pub stopped: bool,
    pub progress: Progress,
    /// How far from the optimum the weights are at most, where that is known.
    pub gap: Option<Gap>,
}

/// Learns from a worker's share of the data.
pub fn learn(session: &Session, job: &Job, reader: &Reader, watch: &mut Watch<'_>) -> Result<Learned, TrainError> {
    if let Method::Proximal(proximal, _) = &job.method {
        let solved = apps::proximal::train(session, proximal, &reader.once(), |state| match state {
            Some(state) => watch.see(Learnt {
                epoch: state.pass - 1,
                examples: state.examples,
                weight: state.examples as f64,
                loss: state.loss,
                staleness: state.staleness,
                parked: state.parked,
                progress: Progress::default(),
            }),
            None => watch.go(),
        })?;
        let mut tables = BTreeMap::new();
        if session.rank() == 0 {
            tables.insert("weights".to_owned(), apps::proximal::weights(&solved.table)?);
        }
        let (stopped, gap) = (solved.stopped, Some(solved.gap));
        return Ok(Learned { tables, stopped, progress: solved.progress, gap });
    }
    let see = |learnt| watch.see(learnt);
    let mut scaling = None;
    let (trained, names): (Trained, Vec<String>) = match &job.method {
        Method::Mlp(mlp) => (apps::mlp::train(session, mlp, &job.training, reader, see)?, mlp.tables().collect()),
        Method::Minibatches(program) | Method::Proximal(_, program) => {
            if job.settings.switch("standardise") {
                scaling = Some(Scaling::measure(session, program.task(), &reader.once())?);
            }
            let trained = apps::train::train(session, &**program, &job.training, scaling.as_ref(), reader, see)?;
            (trained, program.tables().iter().map(|table| table.name.to_owned()).collect())
        }
    };
    let Trained { tables: trained, stopped, progress } = trained;
    let mut tables = BTreeMap::new();
    if session.rank() == 0 {
        for (table, name) in trained.iter().zip(names) {
            let mut pulled = ModelTable::pull(table)?;
            if let Some(scaling) = &scaling {
                scaling.unfold(&mut pulled);
            }
            tables.insert(name, pulled);
        }
    }
    Ok(Learned { tables, stopped, progress, gap: None })
}

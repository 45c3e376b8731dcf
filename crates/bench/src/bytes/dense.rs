//! Trains a perceptron on images by starting `slackwater train`, and reads its JSON report: bytes,
//! loss curve and test accuracy.

use std::path::Path;

use anyhow::{Context, ensure};
use launch::{OutputTarget, Start};
use serde_json::Value;

/// What a training reported.
pub(crate) struct Trained {
    /// Bytes that workers sent.
    pub(crate) up: f64,
    /// Bytes that workers received.
    pub(crate) down: f64,
    /// Test images classified correctly, per cent.
    pub(crate) accuracy: f64,
    /// Seconds since the start, and the loss of a minibatch at that time.
    pub(crate) curve: Vec<(f64, f64)>,
}

/// The arguments of `train` on a folder of images, with codecs upward and downward.
pub(crate) fn arguments(images: &Path, epochs: u32, seed: u32, up: &str, down: &str) -> Vec<String> {
    let file = |name: &str| images.join(name).display().to_string();
    let mut arguments: Vec<String> =
        ["train", "mlp", "--hidden", "256,128", "--updater", "sgd", "--rate", "0.1", "--json"]
            .map(str::to_owned)
            .to_vec();
    let more = [
        ("--data", file("train-images-idx3-ubyte.gz")),
        ("--test", file("t10k-images-idx3-ubyte.gz")),
        ("--epochs", epochs.to_string()),
        ("--seed", seed.to_string()),
        ("--codec", up.to_owned()),
        ("--codec-down", down.to_owned()),
    ];
    arguments.extend(more.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    arguments
}

/// Trains in one process with two workers and one server.
pub(crate) fn train(images: &Path, epochs: u32, seed: u32, up: &str, down: &str) -> anyhow::Result<Trained> {
    let mut process = Start::this_program("the training")?
        .args(arguments(images, epochs, seed, up, down))
        .args(["--workers", "2"])
        .stdout(OutputTarget::Capture)
        .stderr(OutputTarget::Capture)
        .spawn()?;
    ensure!(process.wait()?.success(), "the training failed: {}", process.stderr());
    read(&process.stdout())
}

/// Parses what `train --json` printed.
pub(crate) fn read(printed: &str) -> anyhow::Result<Trained> {
    let report: Value =
        serde_json::from_str(printed).with_context(|| format!("the training's report is not JSON: {printed}"))?;
    let number =
        |value: &Value, name: &str| value.as_f64().with_context(|| format!("the training's report has no {name}"));
    let points = report["seconds_and_loss"].as_array().map(Vec::as_slice).unwrap_or_default();
    let point = |point: &Value| Ok((number(&point[0], "seconds")?, number(&point[1], "losses")?));
    Ok(Trained {
        up: number(&report["bytes_sent_by_workers"], "bytes")?,
        down: number(&report["bytes_received_by_workers"], "bytes")?,
        accuracy: 100.0 * number(&report["test"]["accuracy"], "accuracy")?,
        curve: points.iter().map(point).collect::<anyhow::Result<_>>()?,
    })
}

impl Trained {
    /// The smoothed curve over megabytes. Every clock takes about as many bytes, so bytes are
    /// spread evenly over the points.
    pub(crate) fn over_bytes(&self) -> Vec<(f64, f64)> {
        let all = (self.up + self.down) / 1e6;
        let share = |index: usize| (index + 1) as f64 / self.curve.len() as f64;
        smooth(&self.curve).into_iter().enumerate().map(|(index, (_, loss))| (all * share(index), loss)).collect()
    }

    /// Seconds until the smoothed curve is first at or below `loss`.
    pub(crate) fn seconds_to(&self, loss: f64) -> Option<f64> {
        smooth(&self.curve).into_iter().find(|(_, smoothed)| *smoothed <= loss).map(|(seconds, _)| seconds)
    }
}

/// Smooths the losses of minibatches by an exponential moving average.
fn smooth(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const KEPT: f64 = 0.9;
    let mut mean = None;
    let next = |(seconds, loss): &(f64, f64)| {
        let smoothed = mean.map_or(*loss, |mean: f64| KEPT * mean + (1.0 - KEPT) * loss);
        mean = Some(smoothed);
        (*seconds, smoothed)
    };
    curve.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_takes_the_report_of_a_training_and_names_a_missing_figure() {
        let printed = r#"{"bytes_sent_by_workers": 4e6, "bytes_received_by_workers": 6e6, "test": {"accuracy": 0.85},
                          "seconds_and_loss": [[1.0, 2.0], [2.0, 1.0]]}"#;
        let trained = read(printed).expect("whole");
        assert_eq!((trained.up, trained.down, trained.accuracy), (4e6, 6e6, 85.0));
        assert_eq!(trained.over_bytes(), [(5.0, 2.0), (10.0, 1.9)]);
        assert_eq!((trained.seconds_to(1.95), trained.seconds_to(1.0)), (Some(2.0), None));
        let error = read(r#"{"bytes_sent_by_workers": 1}"#).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("the training's report has no bytes"));
    }
}

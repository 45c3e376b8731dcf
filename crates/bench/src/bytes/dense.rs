//! A perceptron on images, trained by this program itself: its bytes, its curve and how well it
//! predicts, by its own account.

use std::path::Path;

use anyhow::{Context, ensure};
use launch::{OutputTarget, Start};
use serde_json::Value;

/// What a training said of itself.
pub(crate) struct Trained {
    pub(crate) up: f64,
    pub(crate) down: f64,
    /// Of the test images that are told right, per cent.
    pub(crate) accuracy: f64,
    /// Seconds since the start, and the loss of a minibatch then.
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

/// Two workers of one process, and one server.
pub(crate) fn train(images: &Path, epochs: u32, seed: u32, up: &str, down: &str) -> anyhow::Result<Trained> {
    let mut process = Start::this_program("the training")?
        .args(arguments(images, epochs, seed, up, down))
        .args(["--workers", "2"])
        .stdout(OutputTarget::Capture)
        .stderr(OutputTarget::Capture)
        .spawn()?;
    ensure!(process.wait()?.success(), "the training ends with: {}", process.stderr());
    read(&process.stdout())
}

/// What `train --json` has printed.
pub(crate) fn read(printed: &str) -> anyhow::Result<Trained> {
    let said: Value = serde_json::from_str(printed).with_context(|| format!("a training printed: {printed}"))?;
    let number =
        |value: &Value, name: &str| value.as_f64().with_context(|| format!("a training says nothing of {name}"));
    let points = said["seconds_and_loss"].as_array().map(Vec::as_slice).unwrap_or_default();
    let point = |point: &Value| Ok((number(&point[0], "seconds")?, number(&point[1], "losses")?));
    Ok(Trained {
        up: number(&said["bytes_sent_by_workers"], "bytes")?,
        down: number(&said["bytes_received_by_workers"], "bytes")?,
        accuracy: 100.0 * number(&said["test"]["accuracy"], "accuracy")?,
        curve: points.iter().map(point).collect::<anyhow::Result<_>>()?,
    })
}

impl Trained {
    /// The curve over megabytes: every clock takes about as many.
    pub(crate) fn over_bytes(&self) -> Vec<(f64, f64)> {
        let all = (self.up + self.down) / 1e6;
        let share = |index: usize| (index + 1) as f64 / self.curve.len() as f64;
        smooth(&self.curve).into_iter().enumerate().map(|(index, (_, loss))| (all * share(index), loss)).collect()
    }

    /// When the smoothed curve first is at or below a loss.
    pub(crate) fn seconds_to(&self, loss: f64) -> Option<f64> {
        smooth(&self.curve).into_iter().find(|(_, smoothed)| *smoothed <= loss).map(|(seconds, _)| seconds)
    }
}

/// Minibatches differ: each loss becomes a mean in which those before it count less and less.
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
    fn what_a_training_prints_is_read_and_what_is_missing_is_named() {
        let printed = r#"{"bytes_sent_by_workers": 4e6, "bytes_received_by_workers": 6e6, "test": {"accuracy": 0.85},
                          "seconds_and_loss": [[1.0, 2.0], [2.0, 1.0]]}"#;
        let trained = read(printed).expect("whole");
        assert_eq!((trained.up, trained.down, trained.accuracy), (4e6, 6e6, 85.0));
        assert_eq!(trained.over_bytes(), [(5.0, 2.0), (10.0, 1.9)]);
        assert_eq!((trained.seconds_to(1.95), trained.seconds_to(1.0)), (Some(2.0), None));
        let error = read(r#"{"bytes_sent_by_workers": 1}"#).err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("a training says nothing of bytes"));
    }
}

//! `bench bytes`: the same training without and with codecs. It reports bytes each way, and what
//! the model has learnt.
//!
//! All runs are real and have the same seed. A missed target is printed as `missed`; the benchmark
//! still succeeds. What a run learns does not depend on timing, except over the slow link.

mod dense;
mod link;
mod runs;
mod sparse;

use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::ProgressBar;
use slackwater::policy::Codecs;

use super::measure::{Format, Report};
use dense::Trained;
use observe::chart::{Across, Chart, Curve};

/// The settings of `bench bytes`.
#[derive(clap::Args)]
pub struct BytesBench {
    /// The folder that holds the data sets `imdb` and `fashion-mnist`. Without this option, the
    /// variable SLACKWATER_DATA names it.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Passes of ℓ1 logistic regression over its data.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(20..))]
    passes: u32,
    /// Epochs that the perceptron trains for.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// How many seeds the perceptron is trained with; each figure is their mean.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// The loss to reach over the slow link; the benchmark reports the seconds until then.
    #[arg(long, default_value_t = 0.6)]
    target: f64,
    /// Run only these parts of the benchmark.
    #[arg(long, value_delimiter = ',', value_parser = ["l1", "mlp", "link"])]
    only: Vec<String>,
    /// The folder to write charts of loss against bytes to: bytes-l1.svg and bytes-mlp.svg.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print JSON rather than a table.
    #[arg(long)]
    json: bool,
}

/// The command `bench bytes`.
pub(crate) fn run(options: &BytesBench) -> anyhow::Result<()> {
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let data = options.data.clone().or_else(data::data_sets);
    let data = data.context("no folder of data sets is named: use --data FOLDER or SLACKWATER_DATA=FOLDER")?;
    let mut report = Report::default();
    let reviews = data.join("imdb");
    let images = data.join("fashion-mnist");
    if wanted("l1") && is_there(&reviews, "l1", &mut report) {
        l1(options, &reviews, &mut report)?;
    }
    if wanted("mlp") && is_there(&images, "mlp", &mut report) {
        mlp(options, &images, &mut report)?;
    }
    if wanted("link") && is_there(&images, "link", &mut report) {
        match link::Hosts::make() {
            Ok(hosts) => slow_link(options, &images, &hosts, &mut report)?,
            Err(reason) => {
                eprintln!(
                    "SKIPPED: link: cannot make network namespaces with a token bucket, which takes root, `ip` and `tc`: {reason:#}"
                );
                report.text("link", "skipped");
            }
        }
    }
    report.print(if options.json { Format::Json } else { Format::Table })?;
    Ok(())
}

/// Whether a data set is there. If it is missing, prints and reports that `run` is skipped.
fn is_there(folder: &Path, run: &str, report: &mut Report) -> bool {
    let is_there = folder.is_dir();
    if !is_there {
        eprintln!("SKIPPED: {run}: there is no {}", folder.display());
        report.text(run, "skipped");
    }
    is_there
}

/// Reports figures together with whether they reach their targets.
struct Judge<'a>(&'a mut Report);

impl Judge<'_> {
    fn at_least(&mut self, name: &str, found: f64, least: f64) {
        self.say(name, found, found >= least);
    }

    fn at_most(&mut self, name: &str, found: f64, most: f64) {
        self.say(name, found, found <= most);
    }

    fn say(&mut self, name: &str, found: f64, is_reached: bool) {
        self.0.number(name, found);
        self.0.text(&format!("{name}_target"), if is_reached { "ok" } else { "missed" });
    }
}

fn draw(folder: Option<&PathBuf>, name: &str, chart: &Chart) -> anyhow::Result<()> {
    let Some(folder) = folder else { return Ok(()) };
    let path = folder.join(name);
    std::fs::write(&path, chart.to_svg()).with_context(|| format!("cannot write {}", path.display()))
}

/// Colours of curves: the reference first, then what is compared with it.
const COLOURS: [&str; 3] = ["#c2410c", "#0f766e", "#1d4ed8"];

fn l1(options: &BytesBench, reviews: &Path, report: &mut Report) -> anyhow::Result<()> {
    let file = reviews.join("imdb.train.libsvm.zst");
    let progress = ProgressBar::new_spinner().with_message("l1 logistic regression on imdb");
    let plain = sparse::solve(&file, Codecs::both(sparse::PLAIN), options.passes)?;
    progress.tick();
    let shrunk = sparse::solve(&file, Codecs::up(sparse::UP).down(sparse::DOWN), options.passes)?;
    progress.finish_and_clear();
    report.text("l1_codecs", &format!("{}; down {}", sparse::UP.join(","), sparse::DOWN.join(",")));
    for (name, solved) in [("plain", &plain), ("shrunk", &shrunk)] {
        let (up, down) = solved.clocks.iter().fold((0, 0), |(up, down), bytes| (up + bytes.up, down + bytes.down));
        report.number(&format!("l1_{name}_up_bytes"), up as f64);
        report.number(&format!("l1_{name}_down_bytes"), down as f64);
        report.number(&format!("l1_{name}_check_bytes"), solved.checks.both());
        report.number(&format!("l1_{name}_objective"), solved.objective);
        report.number(&format!("l1_{name}_non_zeros"), solved.non_zeros as f64);
    }
    let mut judge = Judge(report);
    judge.at_most("l1_last_fifth_share_of_bytes", shrunk.bytes(1) / plain.bytes(1), 0.05);
    judge.at_most("l1_share_of_bytes", shrunk.bytes(5) / plain.bytes(5), 0.2);
    judge.at_most("l1_objective_off", (shrunk.objective / plain.objective - 1.0).abs(), 1e-3);
    judge.at_most("l1_non_zeros_off", (shrunk.non_zeros as f64 / plain.non_zeros as f64 - 1.0).abs(), 0.02);
    let curve = |label: &str, colour: &str, solved: &sparse::Solved| Curve {
        label: label.to_owned(),
        colour: colour.to_owned(),
        points: solved.curve.iter().map(|(bytes, objective)| (bytes / 1e6, *objective)).collect(),
    };
    let chart = Chart {
        title: "The same objective over a fraction of the bytes".to_owned(),
        subtitle: "ℓ1 logistic regression on imdb by proximal steps, two workers; mean loss and penalty".to_owned(),
        curves: vec![curve("plain", COLOURS[0], &plain), curve("keys, kkt, fixed12, zstd", COLOURS[1], &shrunk)],
        target: Some(1.001 * plain.objective),
        across: Across::Megabytes,
    };
    draw(options.out.as_ref(), "bytes-l1.svg", &chart)
}

/// What training the perceptron came to: means over its seeds.
struct Means {
    up: f64,
    down: f64,
    accuracy: f64,
    /// The training with the first seed, whose curve the chart shows.
    first: Trained,
}

fn means(options: &BytesBench, images: &Path, up: &str, down: &str, progress: &ProgressBar) -> anyhow::Result<Means> {
    let mut runs = Vec::new();
    for seed in 1..=options.seeds {
        runs.push(dense::train(images, options.epochs, seed, up, down)?);
        progress.inc(1);
    }
    let mean = |of: fn(&Trained) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let up = mean(|run| run.up);
    let down = mean(|run| run.down);
    let accuracy = mean(|run| run.accuracy);
    Ok(Means { up, down, accuracy, first: runs.remove(0) })
}

/// The codecs that are compared: (name in figures, codecs upward, codecs downward).
const PIPELINES: [(&str, &str, &str); 3] =
    [("f32", "none", "none"), ("1bit", "1bit", "1bit"), ("topk", "topk=1.5%", "none")];

fn mlp(options: &BytesBench, images: &Path, report: &mut Report) -> anyhow::Result<()> {
    let progress = ProgressBar::new(u64::from(options.seeds) * PIPELINES.len() as u64);
    let mut found = Vec::new();
    for (name, up, down) in PIPELINES {
        let means = means(options, images, up, down, &progress)?;
        report.number(&format!("mlp_{name}_up_bytes"), means.up);
        report.number(&format!("mlp_{name}_down_bytes"), means.down);
        report.number(&format!("mlp_{name}_accuracy_percent"), means.accuracy);
        found.push(means);
    }
    progress.finish_and_clear();
    let [plain, one_bit, top_k] = &found[..] else { unreachable!("three pipelines were run") };
    let mut judge = Judge(report);
    judge.at_least("mlp_1bit_times_fewer_bytes", (plain.up + plain.down) / (one_bit.up + one_bit.down), 25.0);
    judge.at_most("mlp_1bit_accuracy_points_lost", plain.accuracy - one_bit.accuracy, 0.5);
    judge.at_least("mlp_topk_times_fewer_bytes_up", plain.up / top_k.up, 30.0);
    judge.at_most("mlp_topk_accuracy_points_lost", plain.accuracy - top_k.accuracy, 1.0);
    let curves = PIPELINES.iter().zip(COLOURS).zip(&found).map(|(((name, ..), colour), means)| Curve {
        label: (*name).to_owned(),
        colour: colour.to_owned(),
        points: means.first.over_bytes(),
    });
    let chart = Chart {
        title: "The same loss over a fraction of the bytes".to_owned(),
        subtitle: "a perceptron on Fashion-MNIST, sgd, two workers; smoothed loss of minibatches".to_owned(),
        curves: curves.collect(),
        target: Some(options.target),
        across: Across::Megabytes,
    };
    draw(options.out.as_ref(), "bytes-mlp.svg", &chart)
}

fn slow_link(options: &BytesBench, images: &Path, hosts: &link::Hosts, report: &mut Report) -> anyhow::Result<()> {
    // Every pipeline reaches the target within these two epochs. More would only take longer, above
    // all for f32.
    let pipelines = [("f32", "none"), ("1bit", "1bit"), ("bf16", "bf16"), ("2bit", "2bit"), ("auto", "auto")];
    let progress = ProgressBar::new(pipelines.len() as u64);
    let mut seconds = Vec::new();
    for (name, codec) in pipelines {
        let trained = hosts.train(images, 2, codec, codec)?;
        let reached = trained.seconds_to(options.target).unwrap_or(f64::INFINITY);
        report.number(&format!("link_{name}_seconds_to_target"), reached);
        seconds.push(reached);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let best = seconds[..pipelines.len() - 1].iter().copied().fold(f64::INFINITY, f64::min);
    let mut judge = Judge(report);
    judge.at_least("link_1bit_times_sooner", seconds[0] / seconds[1], 5.0);
    judge.at_most("link_auto_over_best", seconds[pipelines.len() - 1] / best, 1.2);
    Ok(())
}

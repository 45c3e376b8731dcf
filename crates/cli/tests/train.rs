//! `train`, `predict` and `inspect` as users run them: real processes, real files, real signals.

#![expect(clippy::unwrap_used, reason = "a test says so by falling over")]

mod process;

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use process::{Process, start};
use serde_json::Value;

/// A folder for a test's files, gone when the test is.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("slackwater-train-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Rows whose label is 1 where features of low numbers outweigh those of high numbers, with one row in twenty mislabelled.
fn made_up(rows: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    for row in rows {
        let mut mixed = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678;
        let mut next = || {
            mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed >> 33
        };
        let mut features: Vec<u64> = (0..5).map(|_| 1 + next() % 40).collect();
        features.sort_unstable();
        features.dedup();
        let weight: i64 = features.iter().map(|feature| if *feature <= 20 { 1 } else { -1 }).sum();
        let label = (weight > 0) != (next() % 20 == 0);
        write!(text, "{}", if label { "+1" } else { "-1" }).unwrap();
        features.iter().for_each(|feature| write!(text, " {feature}:1").unwrap());
        text.push('\n');
    }
    text
}

/// Runs the program to its end, and returns what it printed.
fn run(arguments: &[&str]) -> String {
    let mut process = start(&arguments.join(" "), arguments);
    assert!(process.end(), "{} failed:\n{}", process.name, process.stderr());
    process.stdout()
}

fn run_json(arguments: &[&str]) -> Value {
    let printed = run(&[arguments, &["--json"]].concat());
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"))
}

fn fails(arguments: &[&str], words: &str) {
    start(&arguments.join(" "), arguments).fails_saying(words);
}

fn interrupt(process: &Process) {
    assert!(Command::new("kill").args(["-INT", &process.child.id().to_string()]).status().unwrap().success());
}

#[test]
fn what_train_writes_predict_and_inspect_read() {
    let folder = Folder::new("round");
    let (data, test) = (folder.write("a.libsvm", &made_up(0..4000)), folder.write("b.libsvm", &made_up(4000..5000)));
    let (model, plot, out) = (folder.path("m.safetensors"), folder.path("p.svg"), folder.path("predictions"));
    let trained = run_json(&[
        "train",
        "logistic",
        "--data",
        &data,
        "--test",
        &test,
        "--epochs=3",
        "--workers=3",
        "--servers=2",
        "--slack=2",
        "--out",
        &model,
        "--plot",
        &plot,
    ]);
    assert_eq!((&trained["rows"], &trained["stopped"]), (&12_000.into(), &false.into()));
    assert_eq!(trained["settings"]["format"], "libsvm");
    assert!(trained["test"]["accuracy"].as_f64().unwrap() > 0.9, "{trained}");
    assert!(trained["train"]["log_loss"].as_f64().unwrap() < 0.45, "{trained}");
    assert!(trained["bytes_sent_by_workers"].as_f64().unwrap() > 0.0);
    // Without a bound workers wait for nobody, but at the end of each epoch.
    let unbound =
        run_json(&["train", "logistic", "--data", &data, "--epochs=3", "--workers=3", "--minibatch=100", "--async"]);
    assert_eq!(unbound["share_waiting_for_workers"], 0.0, "{unbound}");
    assert!(unbound["share_waiting_at_barriers"].as_f64().unwrap() > 0.0, "{unbound}");
    assert_eq!(trained["seconds_waited_by_worker_for_worker"].as_array().unwrap().len(), 3);
    let reads: Vec<f64> =
        trained["reads_by_staleness"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    assert!(reads[3..].iter().all(|count| *count == 0.0), "no read breaks its bound: {reads:?}");
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg"));

    let predicted = run_json(&["predict", "--model", &model, "--data", &test, "--out", &out]);
    assert_eq!(predicted["figures"], trained["test"], "the same model on the same rows");
    let probabilities: Vec<f64> =
        std::fs::read_to_string(&out).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(probabilities.len(), 1000);
    assert!(probabilities.iter().all(|probability| (0.0..=1.0).contains(probability)));
    // Without labels there are predictions all the same, and the same ones.
    let unlabelled: String = made_up(4000..5000).lines().map(|line| line[3..].to_owned() + "\n").collect();
    let unlabelled = folder.write("c.libsvm", &unlabelled);
    let printed = run(&["predict", "--model", &model, "--data", &unlabelled]);
    assert_eq!(printed, std::fs::read_to_string(&out).unwrap());
    let predicted = run_json(&["predict", "--model", &model, "--data", &unlabelled]);
    assert_eq!((&predicted["rows"], &predicted["figures"]), (&1000.into(), &Value::Null));

    let names: String = (1..=40).map(|index| format!("word-{index}\n")).collect();
    let names = folder.write("names", &names);
    let printed = run(&["inspect", &model, "--top", "3", "--names", &names]);
    for words in ["program              logistic", "learnt-rows          12000", "41 features", "word-"] {
        assert!(printed.contains(words), "'{words}' is not in\n{printed}");
    }
    let inspected = run_json(&["inspect", &model, "--top", "41", "--names", &names]);
    let heaviest = inspected["tables"]["weights"]["heaviest"].as_array().unwrap();
    assert_eq!(heaviest.len(), 41);
    for heavy in heaviest {
        let (key, weight) = (heavy["key"].as_u64().unwrap(), heavy["weight"].as_f64().unwrap());
        assert!(key > 40 || (key <= 20) == (weight > 0.0), "{heavy}");
        assert!(key > 40 || heavy["feature"] == format!("word-{key}"), "{heavy}");
    }
}

#[test]
fn every_program_learns_and_predicts() {
    let folder = Folder::new("programs");
    // The label is the better part of what stands in the columns.
    let mut csv = "town,size,price,class,good\n".to_owned();
    for row in 0..3000u32 {
        let (town, size) = (row % 3, f64::from(row * 7 % 11) / 10.0);
        let town_name = ["Delft", "Gouda", "Leiden"][town as usize];
        let price = f64::from(town) + 2.0 * size;
        writeln!(csv, "{town_name},{size},{price},{},{}", town + 1, u8::from(price > 2.0)).unwrap();
    }
    let data = folder.write("houses.csv", &csv);
    let model = folder.path("model");
    let common = ["--data", &data, "--test", &data, "--epochs=20", "--minibatch=100", "--out", &model];
    for (program, label, others, figure, at_least) in [
        ("linear", "price", &["--ignore", "class", "good"][..], "r2", 0.95),
        ("softmax", "class", &["--classes=3", "--first-class=1", "--ignore", "price", "good"], "accuracy", 0.99),
        ("fm", "good", &["--ignore", "price", "class", "--factors=2"], "accuracy", 0.9),
    ] {
        let trained = run_json(&[&["train", program, "--label", label], &common[..], others].concat());
        let found = trained["test"][figure].as_f64().unwrap();
        assert!(found >= at_least, "{program}: {figure} {found}");
        let predicted = run_json(&["predict", "--model", &model, "--data", &data]);
        assert_eq!(predicted["figures"], trained["test"], "{program}");
        let printed = run(&["predict", "--model", &model, "--data", &data]);
        let second = printed.lines().nth(1).unwrap();
        let words = second.split(' ').count();
        assert_eq!(words, if program == "softmax" { 2 } else { 1 }, "{second}");
        assert!(program != "softmax" || second.starts_with("2 "), "the second row is of class 2: {second}");
    }
    let names = folder.write("names", "size\ntown=Delft\ntown=Gouda\n");
    let inspected = run(&["inspect", &model, "--names", &names]);
    assert!(inspected.contains("town=Delft") && inspected.contains("factors:"), "{inspected}");
    // What a column is was settled by the data that was learnt from, whatever it looks like elsewhere.
    let printed = run(&["predict", "--model", &model, "--data", &data]);
    let mut other = "new,size,town\n".to_owned();
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        writeln!(other, "x,{},{}", cells[1], cells[0]).unwrap();
    }
    let other = folder.write("other.csv", &other);
    assert!(
        run(&["predict", "--model", &model, "--data", &other]) == printed,
        "the same rows, their columns changed about"
    );
    let strange = folder.write("strange.csv", "size,town\nlarge,Delft\n");
    fails(&["predict", "--model", &model, "--data", &strange], "strange.csv:2:1: ");
}

/// IDX images of 6 × 6 pixels and their labels: the class is the line that is bright.
fn images(folder: &Folder, name: &str, count: u32) -> String {
    let mut images = [&[0, 0, 8, 3][..], &count.to_be_bytes(), &[0, 0, 0, 6], &[0, 0, 0, 6]].concat();
    let mut labels = [&[0, 0, 8, 1][..], &count.to_be_bytes()].concat();
    for image in 0..count {
        let class = image * 7 % 6;
        labels.push(class as u8);
        let bright =
            |pixel: u32| if pixel / 6 == class { 120 + (image * pixel % 100) as u8 } else { (pixel % 50) as u8 };
        images.extend((0..36).map(bright));
    }
    std::fs::write(folder.path(&format!("{name}-labels-idx1-ubyte")), labels).unwrap();
    std::fs::write(folder.path(&format!("{name}-images-idx3-ubyte")), images).unwrap();
    folder.path(&format!("{name}-images-idx3-ubyte"))
}

#[test]
fn a_perceptron_learns_images_alone_and_together() {
    let folder = Folder::new("mlp");
    let (data, test, model) = (images(&folder, "train", 1200), images(&folder, "test", 300), folder.path("model"));
    let arguments = ["train", "mlp", "--data", &data, "--test", &test, "--hidden", "16,8", "--epochs=20"];
    let arguments = [&arguments[..], &["--minibatch=50", "--rate=0.01", "--out", &model]].concat();
    for shape in [&["--workers=1"][..], &["--workers=3", "--servers=2", "--slack=2"]] {
        let trained = run_json(&[&arguments[..], shape].concat());
        assert!(trained["test"]["accuracy"].as_f64().unwrap() > 0.98, "{trained}");
        assert_eq!((&trained["settings"]["inputs"], &trained["settings"]["classes"]), (&36.into(), &6.into()));
        let predicted = run_json(&["predict", "--model", &model, "--data", &test]);
        assert_eq!(predicted["figures"], trained["test"]);
        let tables = &run_json(&["inspect", &model])["tables"];
        let widths = ["layer 1", "layer 2", "layer 3"].map(|name| tables[name]["width"].as_u64().unwrap());
        assert_eq!(widths, [37, 17, 9], "each layer takes in the one before and a bias");
    }
    let printed = run(&["predict", "--model", &model, "--data", &test]);
    assert!(printed.lines().nth(1).unwrap().starts_with("1 "), "the second image is of class 1: {printed}");
    let once = run_json(&[&["train", "softmax"], &arguments[2..6], &["--epochs=5"][..]].concat());
    assert_eq!(once["settings"]["classes"], 6, "what labels say is enough for softmax, too");

    let rows = folder.write("a.libsvm", "0 3:1\n1 36:1\n");
    let sparse = ["train", "mlp", "--data", &rows, "--classes=2", "--hidden=none"];
    fails(&[&sparse[..], &["--inputs=36"]].concat(), "a row has a feature with key 36, and there are 36 inputs");
    fails(&sparse, "say how many --inputs there are");
    fails(&[&arguments[..6], &["--hidden", "16,x"]].concat(), "`x` in --hidden is no number of neurons");
    std::fs::remove_file(folder.path("train-labels-idx1-ubyte")).unwrap();
    fails(&arguments, "has its labels in `train-labels-idx1-ubyte`, and that is not beside it");
}

#[test]
fn flags_win_over_the_file_and_everything_shown_says_where_it_is_from() {
    let folder = Folder::new("toml");
    let data = folder.write("a.libsvm", &made_up(0..600));
    let job =
        format!("program = \"logistic\"\ndata = \"{data}\"\nepochs = 2\nl2 = 1e-4\nslack = \"async\"\nworkers = 2\n");
    let job = folder.write("job.toml", &job);
    let shown = run(&["train", &job, "--epochs", "3", "--rate=0.2", "--show-settings"]);
    for (setting, origin) in [
        ("program = \"logistic\"", "from the job file"),
        ("epochs = 3", "from the command line"),
        ("rate = 0.2", "from the command line"),
        ("l2 = 0.0001", "from the job file"),
        ("slack = \"async\"", "from the job file"),
        ("minibatch = 500", "by default"),
        ("# out =", "not set"),
    ] {
        let line = shown.lines().find(|line| line.starts_with(setting)).unwrap_or_else(|| panic!("{setting}\n{shown}"));
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    assert!(!shown.contains("factors"), "another program's settings are not shown:\n{shown}");
    // What is shown is a job file itself, and comes to the same.
    let again = folder.write("again.toml", &shown);
    let values = |shown: &str| -> Vec<String> {
        shown.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&run(&["train", &again, "--show-settings"])), values(&shown));

    let trained = run_json(&["train", &job, "--epochs", "3"]);
    assert_eq!((&trained["rows"], &trained["settings"]["workers"]), (&1800.into(), &2.into()));
    // In a run of processes, the run says how many there are.
    let launched = run_json(&["launch", "--servers=1", "--workers=1", "--", "train", &job]);
    assert_eq!((&launched["rows"], &launched["settings"]["workers"]), (&1200.into(), &1.into()));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let folder = Folder::new("refused");
    let data = folder.write("a.libsvm", &made_up(0..300));
    let nameless = folder.write("a.dat", "1 3:1\n");
    let tabs = folder.write("a.tsv", "1\t2\n");
    let bad = folder.write("bad.libsvm", "1 3:1\n-1 4:1\n1 3:1 abc\n0 1:1\n");
    let not_a_model = folder.write("m.safetensors", "nonsense");
    let job = |name: &str, text: &str| folder.write(name, text);
    let misspelt = job("misspelt.toml", "program = \"fm\"\n\nminibatches = 5\n");
    let wrong = job("wrong.toml", "program = \"fm\"\nepochs = \"many\"\n");
    let broken = job("broken.toml", "program = \n");
    let empty = job("empty.toml", "");
    for (arguments, words) in [
        (&["train", "dance", "--data", &data][..], "there is no program `dance`: there are logistic, linear"),
        (&["train", "logistic"], "name files with --data"),
        (&["train", "logistic", "--data", "nowhere.libsvm"], "there is no file `nowhere.libsvm`"),
        (&["train", "logistic", "--data", &nameless], "say --format, one of libsvm"),
        (&["train", "logistic", "--data", &tabs], "name the labels' column with --label"),
        (&["train", "logistic", "--data", &data, &tabs, "--label=y"], "files that are read together are of one format"),
        (&["train", "logistic", "--data", &data, "--format=xml"], "`xml` is none of auto, libsvm"),
        (&["train", "logistic", "--data", &bad], "bad.libsvm:3:7: expected `index:value`, found `abc`"),
        (&["train", "logistic", "--data", &data, "--test", &bad], "bad.libsvm:3:7: expected `index:value`"),
        (&["train", "logistic", "--data", &data, "--classes=3"], "`classes` is a setting of the program softmax"),
        (&["train", "softmax", "--data", &data], "how many --classes"),
        (&["train", "logistic", "--data", &data, "--minibatch=0"], "0 is not in 1..="),
        (&["train", "logistic", "--data", &data, "--slack=1", "--async"], "cannot be used with"),
        (
            &["train", "logistic", "--data", &data, "--updater=sgd", "--l1=1"],
            "`l1` is a setting of the updater ftrl, proximal, and this is sgd",
        ),
        (
            &["train", "logistic", "--data", &data, "--label=y"],
            "`label` is a setting of the format csv, parquet, and this is libsvm: leave it out (from the command line)",
        ),
        (&["train", "logistic", "--data", &data, "--separator=;"], "`separator` is a setting of the format csv"),
        (&["train", "logistic", "--data", &data, "--hash-bits=20"], "`hash-bits` is a setting of the format vw"),
        (&["train", "logistic", "--data", &data, "--blocks=8"], "`blocks` is a setting of the updater proximal"),
        (
            &["train", "logistic", "--data", &data, "--updater=adam", "--beta=2"],
            "`beta` is a setting of the updater ftrl",
        ),
        (&["train", "logistic", "--data", &data, "--out", "/nowhere/model"], "there is no such folder"),
        (&["train", &misspelt], "misspelt.toml: line 3: there is no setting `minibatches`; did you mean `minibatch`?"),
        (&["train", &wrong], "wrong.toml: line 2: `epochs`: expected a whole number, found the text \"many\""),
        (&["train", &broken], "broken.toml"),
        (&["train", &empty], "names no `program`"),
        (&["train", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["launch", "--", "train", "logistic", "--data", &data, "--workers=3"], "'--workers'"),
        (&["predict", "--model", &not_a_model, "--data", &data], "is not a model that `slackwater train` wrote"),
        (&["predict", "--model", "nowhere", "--data", &data], "error: there is no model nowhere: no such file"),
        (&["train", "logistic", "--data", &data, "--slack", "-1"], "`-1` is no whole number from 0, nor `async`"),
        (&["train", "logistic", "--data", &data, "--epochs", "-1"], "`-1` is no whole number from 0"),
        (&["train", "logistic", "--data", &data, "--updater=proximal"], "give --l1, or take ftrl"),
        (&["replay", &not_a_model], "1 of 1 recordings could not be fed back"),
        (&["bench", "wire", "--only=nothing"], "possible values: dense, sparse"),
        (&["bench", "scale", "--only=rows,nothing"], "possible values: rows, connections"),
        (&["bench", "bytes", "--only=nothing"], "possible values: l1, mlp"),
        (&["bench", "codec", "--only=nothing"], "there is no codec 'nothing'"),
        (&["inspect", &not_a_model], "is not a model"),
    ] {
        fails(arguments, words);
    }
    assert!(!folder.0.join("nowhere").exists());
}

#[test]
fn nothing_that_is_needed_is_overwritten_and_nothing_is_learnt_from_nothing() {
    let folder = Folder::new("outputs");
    let data = folder.write("a.libsvm", &made_up(0..300));
    let (model, empty) = (folder.path("model"), folder.write("empty.libsvm", ""));
    fails(&["train", "logistic", "--data", &data, "--out", &data], "would overwrite");
    fails(&["train", "logistic", "--data", &data, "--out", &model, "--plot", &model], "would overwrite");
    fails(&["train", "logistic", "--data", &data, "--out", &folder.path("")], "which is a folder");
    fails(&["train", "logistic", "--data", &empty, "--out", &model], "there are no rows in");
    assert!(!std::path::Path::new(&model).exists());
    run(&["train", "logistic", "--data", &data, "--out", &model]);
    for needed in [&data, &model] {
        fails(&["predict", "--model", &model, "--data", &data, "--out", needed], "would overwrite");
    }
    let bad = folder.write("bad.libsvm", "2 1:1\n1 1:1\n");
    fails(&["predict", "--model", &model, "--data", &bad], ":1:1: expected a label of -1, 0 or 1, found `2`");
    let others = folder.write("others.libsvm", "1 900:1\n");
    let output = Command::new(env!("CARGO_BIN_EXE_slackwater"))
        .args(["predict", "--model", &model, "--data", &others])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("no feature of these rows is in the model"), "{said}");
    let shown = run(&["launch", "--", "train", "logistic", "--data", &data, "--show-settings"]);
    assert!(shown.starts_with("program = \"logistic\""), "{shown}");
    let wild = ["train", "linear", "--data", &data, "--updater", "sgd", "--rate", "1e6", "--epochs", "50"];
    fails(&wild, "take a smaller --rate");
}

#[test]
fn malformed_lines_are_skipped_and_counted_up_to_a_number() {
    let folder = Folder::new("bad");
    let mut text = made_up(0..300);
    text.insert_str(0, "nonsense\n");
    text.push_str("1 2:3 x\n");
    let data = folder.write("a.libsvm", &text);
    let trained = run_json(&["train", "logistic", "--data", &data, "--skip-bad=2", "--epochs=2"]);
    assert_eq!((&trained["rows"], &trained["bad_rows"]), (&600.into(), &4.into()));
    fails(
        &["train", "logistic", "--data", &data, "--skip-bad=1"],
        "a.libsvm:302:7: expected `index:value`, found `x` (after 1 bad lines",
    );
    // No worker takes what it has for the whole, and the one that knows says why.
    let out = folder.path("model");
    fails(
        &["train", "logistic", "--data", &data, "--skip-bad=1", "--workers=3", "--slack=1", "--out", &out],
        "a.libsvm:302:7",
    );
    let launched = [
        "launch",
        "--servers=1",
        "--workers=2",
        "--",
        "train",
        "logistic",
        "--skip-bad=1",
        "--out",
        &out,
        "--data",
        &data,
    ];
    let mut launch = start("launch", &launched);
    launch.fails_saying("a.libsvm:302:7: expected `index:value`");
    assert!(!PathBuf::from(&out).exists(), "{}", launch.stderr());
}

#[test]
fn malformed_lines_of_all_workers_count_together() {
    let folder = Folder::new("bad-parts");
    // Enough text for each of two workers to have several blocks of it, and a bad line in each of those.
    let block = made_up(0..1000) + "1 2:3 x\n";
    let data = folder.write("a.libsvm", &block.repeat(8));
    let out = folder.path("model");
    let train = ["train", "logistic", "--data", &data, "--workers=2", "--out", &out];
    fails(
        &[&train[..], &["--skip-bad=7"]].concat(),
        "malformed lines were skipped in 1 epochs, and --skip-bad allows 7",
    );
    assert!(!std::path::Path::new(&out).exists());
    let trained = run_json(&[&train[..], &["--skip-bad=8", "--epochs=2"]].concat());
    assert_eq!(trained["bad_rows"], 16);
    let solved = run_json(&[&train[..], &["--skip-bad=8", "--updater=proximal", "--l1=0.01", "--epochs=20"]].concat());
    assert_eq!(solved["bad_rows"], 8);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!((&predicted["rows"], &predicted["bad_rows"]), (&8000.into(), &8.into()));
}

#[test]
fn importances_count_in_the_loss_and_proximal_steps_refuse_them() {
    let folder = Folder::new("importances");
    let rows: String = (0..400).map(|row| format!("{} 3 | a{}\n", row % 2 * 2 - 1, row % 7)).collect();
    let data = folder.write("a.vw", &rows);
    let trained = run_json(&["train", "logistic", "--data", &data, "--minibatch=100"]);
    let first = trained["seconds_and_loss"][0][1].as_f64().unwrap();
    assert!((first - 2f64.ln()).abs() < 1e-6, "nothing is known at first, whatever rows count for: {first}");
    fails(&["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.01"], "take every row for one example");
}

#[test]
fn one_worker_and_the_same_seed_give_the_same_file() {
    let folder = Folder::new("same");
    let data = folder.write("a.libsvm", &made_up(0..3000));
    let train = |program: &[&str], name: &str, seed: &str| {
        let out = folder.path(name);
        run(&[&["train"], program, &["--data", &data, "--epochs=2", "--seed", seed, "--out", &out]].concat());
        std::fs::read(&out).unwrap()
    };
    for program in [&["logistic", "--l1=1e-4"][..], &["fm", "--factors=3"], &["logistic", "--updater=adam"]] {
        let first = train(program, "a", "7");
        assert!(first == train(program, "b", "7"), "{program:?}");
        assert!(first != train(program, "c", "8"), "{program:?}");
    }
}

#[test]
fn processes_learn_as_well_as_threads() {
    let folder = Folder::new("launch");
    let (data, test) = (folder.write("a.libsvm", &made_up(0..8000)), folder.write("b.libsvm", &made_up(8000..10_000)));
    let program = ["train", "logistic", "--data", &data, "--test", &test, "--epochs=3", "--slack=1"];
    let alone = run_json(&program);
    let out = folder.path("model");
    let launched =
        run_json(&[&["launch", "--servers=2", "--workers=2", "--"], &program[..], &["--out", &out]].concat());
    let accuracy = |figures: &Value| figures["test"]["accuracy"].as_f64().unwrap();
    assert!((accuracy(&alone) - accuracy(&launched)).abs() < 0.01, "{alone} {launched}");
    assert_eq!(launched["rows"], alone["rows"], "every row is one worker's");
    assert_eq!((&launched["settings"]["workers"], &launched["settings"]["servers"]), (&2.into(), &2.into()));
    let predicted = run_json(&["predict", "--model", &out, "--data", &test]);
    assert_eq!(predicted["figures"], launched["test"]);
}

/// The first figures of metrics that are served, once some rows have been learnt from.
fn scrape(address: &str) -> String {
    let has = |body: &str, name: &str| figure(body, &format!("slackwater_{name}{{worker=\"0\"}}")) > 0.0;
    scrape_until(address, |body| has(body, "rows_total") && has(body, "sent_bytes_total"))
}

/// The first metrics served that are as they should be.
fn scrape_until(address: &str, are_wanted: impl Fn(&str) -> bool) -> String {
    let mut last = String::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(process::LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        if are_wanted(body) {
            return body.to_owned();
        }
        last = body.to_owned();
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("these metrics never become what they should be:\n{last}");
}

fn figure(body: &str, name: &str) -> f64 {
    let line = body.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(f64::NAN, |line| line.trim().parse().unwrap())
}

/// Every line is what the format has: a comment about a metric, or a sample of the metric last described.
fn check_metrics(body: &str) {
    assert!(body.ends_with("# EOF\n"));
    let mut described = (String::new(), String::new());
    for line in body.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            let [kind, name, text] = words[..] else { panic!("{line}") };
            match kind {
                "HELP" => {
                    assert!(text.ends_with('.'), "{line}");
                    described = (name.to_owned(), String::new());
                }
                "TYPE" => {
                    assert_eq!(name, described.0, "{line}");
                    described.1 = text.to_owned();
                }
                "UNIT" => assert!(name == described.0 && name.ends_with(&format!("_{text}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
        let (labels, value) = rest.split_once("} ").unwrap_or_else(|| panic!("{line}"));
        let suffix = name.strip_prefix(&described.0).unwrap_or_else(|| panic!("{line} is not of {described:?}"));
        let fits = match described.1.as_str() {
            "counter" => suffix == "_total",
            "gauge" => suffix.is_empty(),
            "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
            _ => false,
        };
        assert!(fits && name.starts_with("slackwater_"), "{line}");
        assert!(
            labels.split(',').all(|label| label
                .split_once('=')
                .is_some_and(|(_, text)| text.starts_with('"') && text.ends_with('"'))),
            "{line}"
        );
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
}

fn served_at(process: &mut Process) -> String {
    process
        .hear("where its metrics are", |said| Some(said.split_once("http://")?.1.split_once("/metrics")?.0.to_owned()))
}

/// Arguments of a training that lasts until it is interrupted.
fn endless<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    vec!["train", "logistic", "--data", data, "--epochs=4000000", "--minibatch=100", "--slack=1", "--out", out]
}

#[test]
fn an_interrupt_finishes_the_clock_and_writes_a_model_that_can_be_used() {
    let folder = Folder::new("interrupt");
    let (data, out) = (folder.write("a.libsvm", &made_up(0..20_000)), folder.path("model"));
    let mut train =
        start("train", &[&endless(&data, &out)[..], &["--workers=2", "--json", "--metrics=127.0.0.1:0"]].concat());
    let address = served_at(&mut train);
    let body = scrape(&address);
    check_metrics(&body);
    for name in ["received_bytes_total", "minibatches_total", "loss", "clock", "staleness_clocks_count"] {
        for worker in [0, 1] {
            assert!(figure(&body, &format!("slackwater_{name}{{worker=\"{worker}\"}}")) > 0.0, "{name}\n{body}");
        }
    }
    for name in [
        "bad_rows_total",
        "refused_parts_total",
        "parked_reads_total",
        "rows_waiting",
        "unacknowledged_bytes",
        "rows_per_second",
    ] {
        assert!(figure(&body, &format!("slackwater_{name}{{worker=\"1\"}}")) >= 0.0, "{name}\n{body}");
    }
    assert!(
        figure(&body, "slackwater_staleness_clocks_bucket{le=\"1.0\",worker=\"0\"}")
            == figure(&body, "slackwater_staleness_clocks_count{worker=\"0\"}")
    );
    // The port is taken, and somebody else is told so before anything else happens.
    fails(&["train", "logistic", "--data", &data, "--metrics", &address], "cannot serve metrics at");
    interrupt(&train);
    assert!(train.end(), "{}", train.stderr());
    assert!(train.stderr().contains("interrupted: this clock is the last"), "{}", train.stderr());
    assert!(train.stderr().contains("what was learnt so far is written to"), "{}", train.stderr());
    let figures: Value = serde_json::from_str(&train.stdout()).unwrap();
    assert_eq!(figures["stopped"], true);
    assert!(figures["rows"].as_u64().unwrap() > 0);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!(predicted["figures"], figures["train"], "the model is there and whole");
    assert!(run(&["inspect", &out]).contains("stopped              true"));
}

#[test]
fn an_interrupt_ends_proximal_steps_after_the_clock_and_not_the_pass() {
    let folder = Folder::new("interrupt-proximal");
    let (data, out) = (folder.write("a.libsvm", &made_up(0..2_000)), folder.path("model"));
    // A pass of a million clocks, which nobody waits for.
    let program = ["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.001", "--blocks=1000000"];
    for consistency in ["--slack=0", "--slack=3", "--async"] {
        let more = ["--epochs=1000", "--workers=2", "--json", "--metrics=127.0.0.1:0", "--out", &out, consistency];
        let mut train = start("train", &[&program[..], &more].concat());
        scrape_until(&served_at(&mut train), |body| figure(body, "slackwater_clock{worker=\"1\"}") > 100.0);
        interrupt(&train);
        assert!(train.end(), "{}", train.stderr());
        assert!(train.stderr().contains("interrupted: this clock is the last"), "{}", train.stderr());
        assert!(train.stderr().contains("what was learnt so far is written to"), "{}", train.stderr());
        let figures: Value = serde_json::from_str(&train.stdout()).unwrap();
        assert_eq!(figures["stopped"], true);
        assert!(figures["rows"].as_u64().unwrap() < 2_000, "less than a pass: {figures}");
        let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
        assert_eq!(predicted["figures"], figures["train"], "the model is there and whole");
        std::fs::remove_file(&out).unwrap();
    }
}

#[test]
fn a_second_interrupt_ends_a_process_at_once() {
    let folder = Folder::new("twice");
    let data = folder.write("a.libsvm", &made_up(0..100));
    // Whoever meets here is never answered, so that only an interrupt can end it.
    let meeting = TcpListener::bind("127.0.0.1:0").unwrap();
    let meet = meeting.local_addr().unwrap().to_string();
    let mut worker = start("worker", &["worker", "--meet", &meet, "--", "train", "logistic", "--data", &data]);
    let _called = meeting.accept().unwrap();
    interrupt(&worker);
    std::thread::sleep(Duration::from_millis(300));
    assert!(worker.child.try_wait().unwrap().is_none(), "the first is only noted: {}", worker.stderr());
    let begin = Instant::now();
    let status = loop {
        // Again and again, because two that come too fast count as one.
        interrupt(&worker);
        std::thread::sleep(Duration::from_millis(50));
        if let Some(status) = worker.child.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < process::LIMIT, "{}", worker.stderr());
    };
    assert_eq!(status.code(), Some(130));
}

#[test]
fn launch_passes_an_interrupt_on_and_the_run_ends_with_its_model() {
    let folder = Folder::new("launched");
    let (data, out) = (folder.write("a.libsvm", &made_up(0..20_000)), folder.path("model"));
    let program = [
        &["launch", "--servers=2", "--workers=2", "--"],
        &endless(&data, &out)[..],
        &["--json", "--metrics=127.0.0.1:0"],
    ]
    .concat();
    let mut launch = start("launch", &program);
    let address = launch.hear("where worker 0 serves metrics", |said| {
        let line = said.lines().find(|line| line.starts_with("worker 0 | metrics are at"))?;
        Some(line.split_once("http://")?.1.split_once("/metrics")?.0.to_owned())
    });
    check_metrics(&scrape(&address));
    interrupt(&launch);
    assert!(launch.end(), "{}", launch.stderr());
    assert!(launch.stderr().contains("worker 0 | interrupted: this clock is the last"), "{}", launch.stderr());
    let figures: Value = serde_json::from_str(&launch.stdout()).unwrap();
    assert_eq!(figures["stopped"], true);
    let predicted = run_json(&["predict", "--model", &out, "--data", &data]);
    assert_eq!(predicted["figures"], figures["train"]);
}

#[test]
fn servers_of_a_launched_run_serve_metrics_of_their_own() {
    let folder = Folder::new("servers");
    let (data, out) = (folder.write("a.libsvm", &made_up(0..20_000)), folder.path("model"));
    let program = [
        &["launch", "--servers=2", "--workers=2", "--metrics=127.0.0.1:0", "--"],
        &endless(&data, &out)[..],
        &["--codec=bf16"],
    ]
    .concat();
    let mut launch = start("launch", &program);
    let address = launch.hear("where server 1 serves metrics", |said| {
        let line = said.lines().find(|line| line.starts_with("server 1 | metrics are at"))?;
        Some(line.split_once("http://")?.1.split_once("/metrics")?.0.to_owned())
    });
    let levels = ["rows_held", "sent_bytes_total", "received_bytes_total", "parked_reads_total"];
    let body = scrape_until(&address, |body| {
        levels.iter().all(|name| figure(body, &format!("slackwater_{name}{{server=\"1\"}}")) > 0.0)
    });
    check_metrics(&body);
    for name in ["unsent_bytes", "refused_parts_total", "refused_connections_total"] {
        assert!(figure(&body, &format!("slackwater_{name}{{server=\"1\"}}")) >= 0.0, "{name}\n{body}");
    }
    assert!(figure(&body, "slackwater_codec_seconds_per_megabyte{server=\"1\",direction=\"up\"}") > 0.0, "{body}");
    interrupt(&launch);
    assert!(launch.end(), "{}", launch.stderr());
}

#[test]
fn a9a_is_learnt_as_well_as_by_others() {
    let root = std::env::var_os("SLACKWATER_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let folder = root.join("a9a");
    if !folder.is_dir() {
        println!("skipped: there is no {}; SLACKWATER_DATA names the folder of data sets", folder.display());
        return;
    }
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let program = [
        "train",
        "logistic",
        "--format=libsvm",
        "--data",
        &file("a9a.gz"),
        "--test",
        &file("a9a.t.gz"),
        "--epochs=10",
        "--l2=3.07e-5",
        "--slack=1",
    ];
    for before in [&[][..], &["launch", "--servers=2", "--workers=2", "--"]] {
        let figures = run_json(&[before, &program[..]].concat());
        let test = |name: &str| figures["test"][name].as_f64().unwrap();
        assert!(test("accuracy") >= 0.849 && (test("log_loss") / 0.3241 - 1.0).abs() < 0.01, "{}", figures["test"]);
    }
}

#[test]
fn proximal_steps_come_as_near_to_the_optimum_as_they_are_asked_to() {
    let folder = Folder::new("proximal");
    let data = folder.write("a.libsvm", &made_up(0..2_000));
    let train = |more: &[&str]| {
        let all = ["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.01", "--epochs=300"];
        run_json(&[&all[..], more].concat())
    };
    let (near, far) = (train(&["--tolerance=0.00001", "--blocks=4"]), train(&["--tolerance=0.9", "--blocks=4"]));
    let gap = |figures: &Value| figures["optimality_gap"].as_f64().unwrap();
    let rows = |figures: &Value| figures["rows"].as_u64().unwrap();
    assert!((0.0..=0.00001).contains(&gap(&near)), "{near}");
    assert!(rows(&far) < rows(&near) && gap(&far) <= 0.9, "{far}");
    // A block is a clock, and a clock is a message to every shard.
    let many = train(&["--tolerance=0.9", "--blocks=40"]);
    let bytes_a_row = |figures: &Value| figures["bytes_sent_by_workers"].as_f64().unwrap() / rows(figures) as f64;
    assert!(bytes_a_row(&many) > 2.0 * bytes_a_row(&far), "{many}\n{far}");
    let refused = |program: &str, more: &str, words: &str| {
        fails(&["train", program, "--data", &data, "--updater=proximal", more], words);
    };
    refused("linear", "--l1=0.01", "proximal steps are for logistic");
    refused("logistic", "--l2=0.01", "proximal steps are for `l1` alone");
}

#[test]
fn standardised_features_of_any_scale_are_learnt() {
    let folder = Folder::new("standardise");
    let row = |row: u64| {
        let (a, b) = ((row * 37 % 101) as f64, (row * 53 % 97) as f64);
        format!("{},{},{}\n", 1e6 + 1e4 * a, 1e-4 * b, 3e5 * a - 2e5 * b)
    };
    let data = folder.write("a.csv", &("a,b,y\n".to_owned() + &(0..3_000).map(row).collect::<String>()));
    let all = ["train", "linear", "--data", &data, "--label=y", "--updater=adagrad", "--epochs=30"];
    let r2 = |more: &[&str]| run_json(&[&all[..], more].concat())["train"]["r2"].as_f64();
    assert!(r2(&["--standardise"]).unwrap() > 0.99);
    assert!(r2(&[]).is_none_or(|r2| r2 < 0.9), "the scales matter");
    fails(&[&all[..], &["--standardise", "--no-bias"]].concat(), "`standardise` is for");
}

#[test]
fn a_rate_that_falls_closes_in_on_the_best_weights() {
    let folder = Folder::new("decay");
    // A line with noise that no minibatch of ten rows sees alike.
    let row = |row: u64| format!("{} 1:{}\n", (row % 7) as f64 + (row * 37 % 11) as f64, (row % 7) as f64);
    let data = folder.write("a.libsvm", &(0..1_001).map(row).collect::<String>());
    let all = ["train", "linear", "--data", &data, "--epochs=20", "--minibatch=10", "--rate=0.05"];
    // What the best line leaves is the noise, of √10.
    let beyond_best =
        |more: &[&str]| run_json(&[&all[..], more].concat())["train"]["rmse"].as_f64().unwrap() - 10f64.sqrt();
    let (level, falling) = (beyond_best(&["--updater=sgd"]), beyond_best(&["--updater=sgd", "--decay=linear"]));
    assert!((0.0..level / 4.0).contains(&falling), "{level} and {falling}");
    fails(
        &[&all[..], &["--decay=linear"]].concat(),
        "`decay` is a setting of the updater adagrad, adam, sgd, and this is ftrl",
    );
    fails(&["train", "linear", "--data", &data, "--updater=sgd", "--decay=linear"], "`decay` goes epoch by epoch");
}

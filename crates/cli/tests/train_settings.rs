//! Settings of `train` and other commands: where they come from, and which are refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;
mod training;

use process::{Folder, fails, run, run_json, start};
use training::made_up;

#[test]
fn flags_override_the_job_file_and_show_settings_names_each_origin() {
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
    // The output is a job file itself, and gives the same settings.
    let again = folder.write("again.toml", &shown);
    let values = |shown: &str| -> Vec<String> {
        shown.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&run(&["train", &again, "--show-settings"])), values(&shown));

    let trained = run_json(&["train", &job, "--epochs", "3"]);
    assert_eq!((&trained["rows"], &trained["settings"]["workers"]), (&1800.into(), &2.into()));
    // In a run of processes, the run sets the numbers of servers and workers.
    let launched = run_json(&["launch", "--servers=1", "--workers=1", "--", "train", &job]);
    assert_eq!((&launched["rows"], &launched["settings"]["workers"]), (&1200.into(), &1.into()));
}

#[test]
fn wrong_settings_are_refused_with_a_reason() {
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
        (&["train", "logistic", "--data", &nameless], "give --format, one of libsvm"),
        (&["train", "logistic", "--data", &tabs], "name the labels' column with --label"),
        (&["train", "logistic", "--data", &data, &tabs, "--label=y"], "all files must have one format"),
        (&["train", "logistic", "--data", &data, "--format=xml"], "`xml` is not one of auto, libsvm"),
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
        (&["train", "logistic", "--data", &data, "--slack", "-1"], "`-1` is not a whole number from 0 or `async`"),
        (&["train", "logistic", "--data", &data, "--epochs", "-1"], "`-1` is not a whole number from 0"),
        (&["train", "logistic", "--data", &data, "--updater=proximal"], "give --l1, or use ftrl"),
        (&["replay", &not_a_model], "1 of 1 recordings could not be replayed"),
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
fn needed_files_are_not_overwritten_and_empty_input_is_refused() {
    let folder = Folder::new("outputs");
    let data = folder.write("a.libsvm", &made_up(0..300));
    let model = folder.path("model");
    let empty = folder.write("empty.libsvm", "");
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
    let mut strange = start("predict", &["predict", "--model", &model, "--data", &others]);
    assert!(
        strange.end() && strange.stderr().contains("no feature of these rows is in the model"),
        "{}",
        strange.stderr()
    );
    let shown = run(&["launch", "--", "train", "logistic", "--data", &data, "--show-settings"]);
    assert!(shown.starts_with("program = \"logistic\""), "{shown}");
    let wild = ["train", "linear", "--data", &data, "--updater", "sgd", "--rate", "1e6", "--epochs", "50"];
    fails(&wild, "use a smaller --rate");
}

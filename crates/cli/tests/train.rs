//! `train`, `predict` and `inspect` as users run them: every program learns, in one process and in
//! several.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;
mod training;

use std::fmt::Write as _;

use process::{Folder, fails, run, run_json};
use serde_json::Value;
use training::made_up;

#[test]
fn predict_and_inspect_read_the_model_of_train() {
    let folder = Folder::new("round");
    let data = folder.write("a.libsvm", &made_up(0..4000));
    let test = folder.write("b.libsvm", &made_up(4000..5000));
    let model = folder.path("m.safetensors");
    let plot = folder.path("p.svg");
    let out = folder.path("predictions");
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
    // Without a staleness bound, workers wait for each other only at the end of each epoch.
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
    // Rows without labels get the same predictions.
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
        let key = heavy["key"].as_u64().unwrap();
        let weight = heavy["weight"].as_f64().unwrap();
        assert!(key > 40 || (key <= 20) == (weight > 0.0), "{heavy}");
        assert!(key > 40 || heavy["feature"] == format!("word-{key}"), "{heavy}");
    }
}

#[test]
fn every_program_learns_and_predicts() {
    let folder = Folder::new("programs");
    // Each label column follows from the other columns.
    let mut csv = "town,size,price,class,good\n".to_owned();
    for row in 0..3000u32 {
        let town = row % 3;
        let size = f64::from(row * 7 % 11) / 10.0;
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
    // The training data decides the type of each column, even where other data looks different.
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

/// IDX images of 6 × 6 pixels and their labels: the class is the number of the bright line.
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
    let data = images(&folder, "train", 1200);
    let test = images(&folder, "test", 300);
    let model = folder.path("model");
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
    fails(&[&sparse[..], &["--inputs=36"]].concat(), "a row has a feature with key 36, but the model has 36 inputs");
    fails(&sparse, "say how many --inputs there are");
    fails(&[&arguments[..6], &["--hidden", "16,x"]].concat(), "`x` in --hidden is not a number of neurons");
    std::fs::remove_file(folder.path("train-labels-idx1-ubyte")).unwrap();
    fails(&arguments, "needs its labels in `train-labels-idx1-ubyte`, which is not in the same folder");
}

#[test]
fn importances_count_in_the_loss_and_proximal_steps_refuse_them() {
    let folder = Folder::new("importances");
    let rows: String = (0..400).map(|row| format!("{} 3 | a{}\n", row % 2 * 2 - 1, row % 7)).collect();
    let data = folder.write("a.vw", &rows);
    let trained = run_json(&["train", "logistic", "--data", &data, "--minibatch=100"]);
    let first = trained["seconds_and_loss"][0][1].as_f64().unwrap();
    assert!((first - 2f64.ln()).abs() < 1e-6, "before training, the loss is ln 2 for any importance: {first}");
    fails(
        &["train", "logistic", "--data", &data, "--updater=proximal", "--l1=0.01"],
        "the proximal method counts each row as one example",
    );
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
    let data = folder.write("a.libsvm", &made_up(0..8000));
    let test = folder.write("b.libsvm", &made_up(8000..10_000));
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

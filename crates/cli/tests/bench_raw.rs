//! `bench raw` with its two real processes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

#[test]
fn bench_raw_ends_by_itself_and_every_figure_is_a_positive_number() {
    let (figures, _) = process::bench(&["raw", "--rounds", "1", "--round-trips", "10"]);
    let figures = figures.as_object().unwrap();
    assert_eq!(figures.len(), 9);
    for (name, figure) in figures {
        assert!(figure.as_f64().is_some_and(|number| number > 0.0), "{name}: {figure}");
    }
}

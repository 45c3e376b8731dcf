//! A small run of `bench codec`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod process;

#[test]
fn bench_codec_prints_its_figures_and_whether_the_targets_were_met() {
    let (figures, _) = process::bench(&["codec", "--rounds=1", "--mib=1", "--only=bf16,fixed12+lz4,keys"]);
    let figures = figures.as_object().unwrap();
    for (name, figure) in figures {
        let is_verdict = name.ends_with("_target") && ["ok", "missed"].iter().any(|verdict| figure == verdict);
        assert!(is_verdict || figure.as_f64().is_some_and(|number| number > 0.0), "{name}: {figure}");
    }
    for name in ["memcpy_gbs", "bf16_target", "fixed12_lz4_relative_error", "keys_decode_mkeys"] {
        assert!(figures.contains_key(name), "{name} is not among {figures:?}");
    }
}

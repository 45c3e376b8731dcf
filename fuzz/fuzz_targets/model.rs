//! Decodes any bytes as a model file. The result is a model that survives writing and reading, or
//! an error, and memory stays within a few times the bytes.
#![no_main]

use apps::model::Model;
use apps::predict::Predictor;
use libfuzzer_sys::fuzz_target;

/// Memory that reading takes besides a few times the input's bytes.
const MOST_BYTES: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = inputs::within(MOST_BYTES + 16 * bytes.len(), || Model::from_bytes(bytes)) else { return };
    for table in model.tables.values() {
        assert_eq!(table.values.len(), table.keys.len() * table.width);
        assert!(table.keys.is_sorted_by(|a, b| a < b) && table.index().len() == table.keys.len());
    }
    Predictor::new(&apps::logistic::Logistic { l2: 0.0 }, &model, true).ok();
    let path = inputs::folder().join("model");
    model.write(&path).expect("what was read can be written");
    let again = Model::read(&path).expect("what was written can be read");
    assert_eq!(again.settings, model.settings);
    // NaN does not equal itself, so bits are compared.
    let bits = |model: &Model| -> Vec<(Vec<u64>, Vec<u32>)> {
        model.tables.values().map(|t| (t.keys.clone(), t.values.iter().map(|v| v.to_bits()).collect())).collect()
    };
    assert_eq!(bits(&again), bits(&model));
});

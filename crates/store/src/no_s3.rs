//! Stands in for `s3.rs` in a build without the feature `s3`: refuses every bucket.

use crate::StoreError;
use crate::location::{Located, StoreSettings};
use object_store::path::Path;
use std::time::Duration;

pub(crate) fn bucket_at(_: &str, _: Path, _: &StoreSettings) -> Result<Located, String> {
    Err("this program was built without S3 (the feature `s3` of slackwater-store)".to_owned())
}

/// Never called for a bucket: without S3 there is none.
pub(crate) fn explain(_: &str, _: &str, doing: String, error: &object_store::Error, _: Duration) -> StoreError {
    StoreError::Failed { doing, problem: error.to_string() }
}

pub(crate) fn passes(_: &object_store::Error) -> bool {
    false
}

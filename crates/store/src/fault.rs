//! Turns errors of file systems and object stores into [`StoreError`]s, which say what to do.

use crate::location::Place;
use crate::{StoreError, s3};
use std::{error::Error, io, time::Duration};

/// The error for a failed operation (`doing`, in words). It says where it failed and what to do.
pub(crate) fn explain(place: &Place, doing: String, error: &object_store::Error, tried: Duration) -> StoreError {
    match place {
        Place::Memory => StoreError::Failed { doing, problem: error.to_string() },
        Place::Folder(_) => explain_disk(doing, error),
        Place::Bucket { bucket, endpoint, .. } => s3::explain(bucket, endpoint, doing, error, tried),
    }
}

/// The same for an error of the file system.
pub(crate) fn explain_io(doing: String, error: &io::Error) -> StoreError {
    let problem = error.to_string();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { doing, problem },
        io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly { doing },
        io::ErrorKind::PermissionDenied => StoreError::Denied { doing, problem },
        _ => StoreError::Failed { doing, problem },
    }
}

fn explain_disk(doing: String, error: &object_store::Error) -> StoreError {
    match cause::<io::Error>(error) {
        Some(cause) => explain_io(doing, cause),
        None => StoreError::Failed { doing, problem: error.to_string() },
    }
}

/// Whether the error says that the object is missing, rather than its bucket.
pub(crate) fn is_missing(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { .. }) && !error.to_string().contains("NoSuchBucket")
}

/// The first error of type `E` in the chain of causes.
pub(crate) fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_become_errors_with_advice() {
        let explained = |kind: io::ErrorKind| {
            let source = Box::new(io::Error::from(kind));
            let error = object_store::Error::Generic { store: "LocalFileSystem", source };
            explain(&Place::Folder("/x".into()), "write y".into(), &error, Duration::ZERO)
        };
        assert!(matches!(explained(io::ErrorKind::StorageFull), StoreError::Full { .. }));
        assert!(matches!(explained(io::ErrorKind::QuotaExceeded), StoreError::Full { .. }));
        assert!(matches!(explained(io::ErrorKind::ReadOnlyFilesystem), StoreError::ReadOnly { .. }));
        assert!(matches!(explained(io::ErrorKind::PermissionDenied), StoreError::Denied { .. }));
        assert!(matches!(explained(io::ErrorKind::Other), StoreError::Failed { .. }));
    }
}

//! What a file system or an object store said, as something a person can act on.

use crate::StoreError;
use crate::location::Place;
use object_store::client::{HttpError, HttpErrorKind};
use std::{error::Error, io, time::Duration};

/// Turns what went wrong while `doing` into an error that says where and what to do.
pub(crate) fn explain(place: &Place, doing: String, error: &object_store::Error, tried: Duration) -> StoreError {
    match place {
        Place::Memory => StoreError::Failed { doing, problem: error.to_string() },
        Place::Folder(_) => explain_disk(doing, error),
        Place::Bucket { bucket, endpoint, .. } => explain_bucket(bucket, endpoint, doing, error, tried),
    }
}

/// The same for what the system said of a file.
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

fn explain_bucket(
    bucket: &str,
    endpoint: &str,
    doing: String,
    error: &object_store::Error,
    tried: Duration,
) -> StoreError {
    let (bucket, endpoint) = (bucket.to_owned(), endpoint.to_owned());
    let text = error.to_string();
    // Whoever has no keys asks the machine's own metadata service for them, which only clouds have.
    if text.contains("/latest/api/token") || text.contains("/latest/meta-data") {
        return StoreError::NoCredentials { doing, endpoint, problem: deepest(error) };
    }
    if text.contains("NoSuchBucket") {
        return StoreError::NoBucket { doing, endpoint, bucket };
    }
    match status(&text) {
        Some(401 | 403) => StoreError::Denied { doing, problem: answer(&text) },
        Some(500..) => StoreError::Unavailable { doing, endpoint, problem: answer(&text), tried },
        Some(_) => StoreError::Failed { doing, problem: answer(&text) },
        None if cause::<HttpError>(error).is_some() => {
            StoreError::Unavailable { doing, endpoint, problem: deepest(error), tried }
        }
        None => StoreError::Failed { doing, problem: text },
    }
}

/// Whether the same request may go better the next time: nothing was refused, an answer did not come or did not come whole.
pub(crate) fn passes(error: &object_store::Error) -> bool {
    cause::<HttpError>(error).is_some_and(|error| error.kind() != HttpErrorKind::Connect)
}

/// Whether the object is not there.
pub(crate) fn is_missing(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotFound { .. }) && !error.to_string().contains("NoSuchBucket")
}

/// The first error of a kind among those that led to this one.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref())
}

/// What it all began with.
fn deepest(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source()).last().unwrap_or(error).to_string()
}

/// The HTTP status in a message of object_store's, whose type for it has no public name.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

/// What a server answered, without the request: `403 Forbidden: AccessDenied: Access Denied`.
fn answer(text: &str) -> String {
    let Some((_, answer)) = text.split_once("status code: ") else { return text.to_owned() };
    let element = |name: &str| {
        let (_, rest) = answer.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(inside, _)| inside)
    };
    match (answer.split_once(": "), element("Code")) {
        (Some((status, _)), Some(code)) => format!("{status}: {code}: {}", element("Message").unwrap_or_default()),
        _ => answer.trim_end_matches(": ").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_without_its_request() {
        let text = "Error performing list request: Error performing GET http://h/b in 3ms - Server returned non-2xx status \
                    code: 403 Forbidden: <?xml version=\"1.0\"?><Error><Code>InvalidAccessKeyId</Code><Message>No such key.\
                    </Message></Error>";
        assert_eq!(status(text), Some(403));
        assert_eq!(answer(text), "403 Forbidden: InvalidAccessKeyId: No such key.");
        assert_eq!(answer("x status code: 503 Service Unavailable: "), "503 Service Unavailable");
        assert_eq!(status("no route to host"), None);
    }

    #[test]
    fn what_the_system_says_becomes_what_to_do() {
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

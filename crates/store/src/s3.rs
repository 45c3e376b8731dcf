//! Buckets of object stores that speak S3: how they are reached, and what they say when something
//! goes wrong.

use crate::StoreError;
use crate::fault::cause;
use crate::location::{Located, Place, StoreSettings};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::{BackoffConfig, ClientOptions, RetryConfig, path::Path};
use std::{error::Error, sync::Arc, time::Duration};

/// The most times that one request is sent again.
const MOST_RETRIES: usize = 20;

/// The bucket and the path in it, as the settings say that it is reached. Nobody is asked yet.
pub(crate) fn bucket_at(bucket: &str, root: Path, settings: &StoreSettings) -> Result<Located, String> {
    // The TLS library is used by others in the process, too, who may have chosen for it already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let retries = RetryConfig {
        backoff: BackoffConfig { max_backoff: Duration::from_secs(3), ..BackoffConfig::default() },
        max_retries: MOST_RETRIES,
        retry_timeout: settings.retry_for,
    };
    let options = ClientOptions::new()
        .with_timeout(settings.request_timeout)
        .with_connect_timeout(settings.request_timeout.min(Duration::from_secs(5)));
    let mut builder = AmazonS3Builder::new().with_retry(retries).with_client_options(options);
    for (name, value) in settings.variables.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    let endpoint = [AmazonS3ConfigKey::S3Endpoint, AmazonS3ConfigKey::Endpoint];
    let endpoint = endpoint.iter().find_map(|key| builder.get_config_value(key));
    let endpoint = endpoint.unwrap_or_else(|| "Amazon S3".to_owned());
    if endpoint.starts_with("http://") {
        builder = builder.with_allow_http(true);
    }
    let objects = Arc::new(builder.with_bucket_name(bucket).build().map_err(|error| error.to_string())?);
    let place = Place::Bucket { bucket: bucket.to_owned(), prefix: root.to_string(), endpoint };
    Ok(Located { place, objects, root })
}

/// What went wrong while `doing`, with what to do about it.
pub(crate) fn explain(
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
        // Said with status 200, as S3 does when it is too busy in the middle of its work.
        None if text.contains("returned error response") => {
            StoreError::Unavailable { doing, endpoint, problem: answer(&text), tried }
        }
        None => StoreError::Failed { doing, problem: text },
    }
}

/// Whether the same request may go better the next time: nothing was refused, an answer did not
/// come or did not come whole.
pub(crate) fn passes(error: &object_store::Error) -> bool {
    cause::<HttpError>(error).is_some_and(|error| error.kind() != HttpErrorKind::Connect)
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
    let answer = text.split_once("status code: ").or_else(|| text.split_once("returned error response: "));
    let Some((_, answer)) = answer else { return text.to_owned() };
    let element = |name: &str| {
        let (_, rest) = answer.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(inside, _)| inside)
    };
    let said = element("Code").map(|code| format!("{code}: {}", element("Message").unwrap_or_default()));
    match (answer.split_once(": <"), said) {
        (Some((status, _)), Some(said)) => format!("{status}: {said}"),
        (None, Some(said)) => said,
        (_, None) => answer.trim_end_matches(": ").to_owned(),
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
        let busy = "x Server returned error response: <Error><Code>SlowDown</Code><Message>Wait.</Message></Error>";
        assert_eq!(answer(busy), "SlowDown: Wait.");
        assert_eq!(status("no route to host"), None);
    }
}

//! Buckets of object stores that speak S3: connects to them, and turns their errors into
//! [`StoreError`]s.

use crate::StoreError;
use crate::fault::cause;
use crate::location::{Located, Place, StoreSettings};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::{BackoffConfig, ClientOptions, RetryConfig, path::Path};
use std::{error::Error, sync::Arc, time::Duration};

/// The most times that one request is sent again.
const MOST_RETRIES: usize = 20;

/// The bucket and the path in it, by the settings. It makes no request yet.
pub(crate) fn bucket_at(bucket: &str, root: Path, settings: &StoreSettings) -> Result<Located, String> {
    // Fails if other code of this process has installed a provider, which then serves as well.
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

/// The error for a failed operation (`doing`, in words).
pub(crate) fn explain(
    bucket: &str,
    endpoint: &str,
    doing: String,
    error: &object_store::Error,
    tried: Duration,
) -> StoreError {
    let bucket = bucket.to_owned();
    let endpoint = endpoint.to_owned();
    let text = error.to_string();
    // Without keys, object_store asks the host's metadata service for them. Only clouds have one.
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
        // An error with status 200: S3 sends one when it fails after it has begun to answer.
        None if text.contains("returned error response") => {
            StoreError::Unavailable { doing, endpoint, problem: answer(&text), tried }
        }
        None => StoreError::Failed { doing, problem: text },
    }
}

/// Whether a retry may succeed: the answer did not arrive, or did not arrive whole.
pub(crate) fn passes(error: &object_store::Error) -> bool {
    cause::<HttpError>(error).is_some_and(|error| error.kind() != HttpErrorKind::Connect)
}

/// The message of the root cause.
fn deepest(error: &(dyn Error + 'static)) -> String {
    std::iter::successors(Some(error), |&error| error.source()).last().unwrap_or(error).to_string()
}

/// The HTTP status in a message of object_store. Its error type has no public name.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

/// The server's answer without the request: `403 Forbidden: AccessDenied: Access Denied`.
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
    fn an_answer_is_reported_without_its_request() {
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

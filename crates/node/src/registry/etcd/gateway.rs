//! Calls etcd through its JSON gateway, at the first endpoint that answers, with a deadline.
//!
//! A call is one HTTP request on a connection of its own. There are only a few calls a second, and
//! a failed one cannot affect the next. etcd may still execute a call that failed here: the caller
//! must make sure that this does no harm.

use super::access::{EtcdUser, LoadedAccess};
use super::request;
use super::response::{EtcdFault, EtcdRefusal, EtcdResponse};
use crate::registry::RegistryError;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Bytes of a response, at most. The largest one holds a chunk of a memory in base64.
const RESPONSE_BYTES: u64 = 4 << 20;
/// Time limit of a request, at least: zero would mean no limit.
const LEAST: Duration = Duration::from_millis(1);

pub(crate) struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// `http` or `https`.
    scheme: &'static str,
    user: Option<EtcdUser>,
    login: Login,
    /// The endpoint that answered last.
    first: usize,
    /// The id of the etcd cluster that answered first. Answers of other clusters are refused: they
    /// would have a leader of their own.
    cluster: Option<u64>,
    /// When an endpoint last answered or, if none has, when the first request was sent.
    heard: Option<Instant>,
}

/// Whether the user is logged in.
enum Login {
    /// Not yet, or not any more.
    Needed,
    /// With this token.
    Done(String),
    /// There is no user, or etcd asks nobody to log in.
    NotNeeded,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayError {
    /// Which refusal, if etcd refused.
    pub refusal: Option<EtcdRefusal>,
    /// What the caller reports.
    pub error: RegistryError,
}

impl Gateway {
    pub fn new(endpoints: Vec<String>, access: LoadedAccess) -> Self {
        let LoadedAccess { tls, user } = access;
        let scheme = if tls.is_some() { "https" } else { "http" };
        if user.is_some() && tls.is_none() {
            tracing::warn!("the password for etcd travels unencrypted: let etcd speak TLS, and write etcds://");
        }
        let login = if user.is_some() { Login::Needed } else { Login::NotNeeded };
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections(0)
            // Ignores proxies that environment variables name.
            .proxy(None)
            .user_agent("slackwater")
            .tls_config(tls.unwrap_or_default())
            .build();
        let agent = config.new_agent();
        Self { agent, endpoints, scheme, user, login, first: 0, cluster: None, heard: None }
    }

    /// Makes a call as the user, if there is one: logs in first where that is needed, and once more
    /// if etcd does not know the token any more. Tokens expire, and a restarted member forgets
    /// them.
    pub fn call<T>(
        &mut self,
        path: &str,
        request: &Value,
        by: Instant,
        read: impl Fn(&EtcdResponse) -> Result<T, EtcdFault>,
    ) -> Result<T, GatewayError> {
        self.log_in(by)?;
        match self.ask_in_turn(path, request, by, &read) {
            Err(failure) if failure.refusal == Some(EtcdRefusal::Token) && self.user.is_some() => {
                self.login = Login::Needed;
            }
            done => return done,
        }
        self.log_in(by)?;
        match self.ask_in_turn(path, request, by, &read) {
            // A member that lags behind may know a new token a little later.
            Err(GatewayError { refusal: Some(EtcdRefusal::Token), error }) => {
                self.login = Login::Needed;
                let silent = self.heard.map_or(Duration::ZERO, |heard| heard.elapsed());
                Err(RegistryError::Unreachable { reasons: error.to_string(), silent }.into())
            }
            done => done,
        }
    }

    fn log_in(&mut self, by: Instant) -> Result<(), GatewayError> {
        let (Login::Needed, Some(user)) = (&self.login, &self.user) else { return Ok(()) };
        let request = request::authenticate(&user.name, &user.password);
        match self.ask_in_turn(request::AUTHENTICATE, &request, by, EtcdResponse::token) {
            Ok(token) => self.login = Login::Done(token),
            Err(failure) if failure.refusal == Some(EtcdRefusal::NoLogin) => {
                tracing::warn!("etcd asks nobody to log in, so the user that was given protects nothing");
                self.login = Login::NotNeeded;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Asks one endpoint after the other until one answers, and reads that answer with `read`. Each
    /// endpoint has an equal share of the time that is left until `by`.
    fn ask_in_turn<T>(
        &mut self,
        path: &str,
        request: &Value,
        by: Instant,
        read: impl Fn(&EtcdResponse) -> Result<T, EtcdFault>,
    ) -> Result<T, GatewayError> {
        let token = match &self.login {
            Login::Done(token) => Some(token.as_str()),
            Login::Needed | Login::NotNeeded => None,
        };
        let body = request.to_string();
        let heard = *self.heard.get_or_insert_with(Instant::now);
        let count = self.endpoints.len();
        let mut faults: Vec<(&str, EtcdFault)> = Vec::new();
        for turn in 0..count {
            let index = (self.first + turn) % count;
            let endpoint = self.endpoints[index].as_str();
            let share = by.saturating_duration_since(Instant::now()) / (count - turn) as u32;
            let url = format!("{}://{endpoint}{path}", self.scheme);
            let answer = ask(&self.agent, &url, token, &body, share.max(LEAST));
            match answer.and_then(|answer| same_cluster(&mut self.cluster, &answer).and(read(&answer))) {
                Ok(read) => {
                    (self.first, self.heard) = (index, Some(Instant::now()));
                    return Ok(read);
                }
                Err(EtcdFault::Refused(refusal, reason)) => {
                    (self.first, self.heard) = (index, Some(Instant::now()));
                    let error = RegistryError::Refused { endpoint: endpoint.to_owned(), reason };
                    return Err(GatewayError { refusal: Some(refusal), error });
                }
                Err(fault) => faults.push((endpoint, fault)),
            }
        }
        Err(GatewayError { refusal: None, error: all_failed(&faults, heard.elapsed()) })
    }
}

/// One request to one endpoint.
fn ask(
    agent: &ureq::Agent,
    url: &str,
    token: Option<&str>,
    body: &str,
    limit: Duration,
) -> Result<EtcdResponse, EtcdFault> {
    let fault = |error| fault_of(error, limit);
    let mut request = agent.post(url).config().timeout_global(Some(limit)).build();
    if let Some(token) = token {
        request = request.header("Authorization", token);
    }
    let mut response = request.content_type("application/json").send(body).map_err(fault)?;
    let status = response.status().as_u16();
    let bytes = response.body_mut().with_config().limit(RESPONSE_BYTES).read_to_vec().map_err(fault)?;
    EtcdResponse::read(status, &bytes)
}

fn same_cluster(known: &mut Option<u64>, answer: &EtcdResponse) -> Result<(), EtcdFault> {
    match *known.get_or_insert(answer.cluster) {
        known if known == answer.cluster => Ok(()),
        known => {
            let found = answer.cluster;
            Err(EtcdFault::NotEtcd(format!(
                "it belongs to etcd cluster {found:x}, but the endpoint that answered first to {known:x}"
            )))
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the errors of a library, which may add more")]
fn fault_of(error: ureq::Error, limit: Duration) -> EtcdFault {
    use ureq::Error;
    match error {
        Error::Timeout(_) => EtcdFault::NotNow(format!("no answer within {:.2} s", limit.as_secs_f64())),
        Error::Rustls(error) => EtcdFault::Tls(error.to_string()),
        Error::Tls(reason) => EtcdFault::Tls(reason.to_owned()),
        // The library wraps what fails in a handshake, or is refused after it.
        Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            EtcdFault::Tls(error.to_string())
        }
        Error::Io(error) => EtcdFault::NotNow(error.to_string().to_lowercase()),
        Error::HostNotFound => EtcdFault::NotNow("no host of that name".to_owned()),
        Error::ConnectionFailed => EtcdFault::NotNow("no connection".to_owned()),
        error => EtcdFault::NotEtcd(format!("it does not speak HTTP as etcd does ({error})")),
    }
}

/// The error of a call that all endpoints failed.
fn all_failed(faults: &[(&str, EtcdFault)], silent: Duration) -> RegistryError {
    let words = |fault: &EtcdFault| match fault {
        EtcdFault::NotNow(reason) | EtcdFault::Refused(_, reason) => reason.clone(),
        EtcdFault::NotEtcd(reason) => format!("not etcd: {reason}"),
        EtcdFault::Tls(reason) => format!("TLS: {reason}"),
    };
    let is_lasting = |fault: &EtcdFault| matches!(fault, EtcdFault::NotEtcd(_) | EtcdFault::Tls(_));
    match faults {
        // If no endpoint is the expected etcd, the addresses are wrong, and waiting does not help.
        [(endpoint, EtcdFault::NotEtcd(reason)), rest @ ..] if rest.iter().all(|(_, fault)| is_lasting(fault)) => {
            RegistryError::NotEtcd { endpoint: (*endpoint).to_owned(), reason: reason.clone() }
        }
        [(endpoint, EtcdFault::Tls(reason)), rest @ ..] if rest.iter().all(|(_, fault)| is_lasting(fault)) => {
            RegistryError::Tls { endpoint: (*endpoint).to_owned(), reason: reason.clone() }
        }
        _ => {
            let reasons: Vec<_> =
                faults.iter().map(|(endpoint, fault)| format!("{endpoint}: {}", words(fault))).collect();
            RegistryError::Unreachable { reasons: reasons.join("; "), silent }
        }
    }
}

impl From<GatewayError> for RegistryError {
    fn from(failure: GatewayError) -> Self {
        failure.error
    }
}

impl From<RegistryError> for GatewayError {
    fn from(error: RegistryError) -> Self {
        Self { refusal: None, error }
    }
}

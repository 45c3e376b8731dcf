//! Reads the responses of etcd's gateway: JSON in which 64-bit numbers are text, bytes are base64,
//! and zero or empty fields are left out.
//!
//! For any bytes the outcome is a response, or a reason why they are not etcd's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

/// gRPC status codes of temporary failures: `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`.
const NOT_NOW: [u64; 3] = [1, 4, 14];
/// gRPC status code `UNKNOWN`. etcd returns it when its own time for a request is over.
const UNKNOWN: u64 = 2;
/// gRPC status code `NOT_FOUND`.
const NOT_FOUND: u64 = 5;
/// gRPC status code `OUT_OF_RANGE`. etcd returns it for a revision that was compacted.
const OUT_OF_RANGE: u64 = 11;

/// Why etcd did not execute a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EtcdFault {
    /// etcd cannot execute it for now: it has no leader of its own, or took too long.
    NotNow(String),
    /// etcd refuses it.
    Refused(EtcdRefusal, String),
    /// The server that answers is not etcd.
    NotEtcd(String),
    /// The connection cannot be secured.
    Tls(String),
}

/// The refusals that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EtcdRefusal {
    /// The etcd lease does not exist.
    NoLease,
    /// The revision that was asked for has been compacted.
    Compacted,
    /// The token of the login has expired, or etcd does not know it: log in again.
    Token,
    /// etcd asks nobody to log in.
    NoLogin,
    /// Any other.
    Other,
}

/// The response to a request that etcd has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdResponse {
    /// The id of the etcd cluster.
    pub cluster: u64,
    /// The revision of the whole store.
    pub revision: u64,
    body: Value,
}

/// A key's value and revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyValue {
    pub value: Vec<u8>,
    /// The revision at which the key was created.
    pub created: u64,
    /// The revision at which it last changed.
    pub modified: u64,
    /// The etcd lease with which it ends.
    pub lease: u64,
}

/// An etcd lease as granted or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedLease {
    pub lease: u64,
    pub seconds: u64,
}

impl EtcdResponse {
    /// Reads a whole response.
    pub fn read(status: u16, bytes: &[u8]) -> Result<Self, EtcdFault> {
        // The response of a stream has a line for each message. These requests ask for one.
        let line = bytes.split(|&byte| byte == b'\n').find(|line| !line.is_empty()).unwrap_or_default();
        let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else {
            let start: String = String::from_utf8_lossy(bytes).chars().take(60).filter(|c| !c.is_control()).collect();
            if start.starts_with("CommonName of client") {
                return Err(EtcdFault::Tls("its gateway refuses a client certificate with a CommonName".to_owned()));
            }
            return Err(EtcdFault::NotEtcd(format!("it says `{start}` with HTTP status {status}")));
        };
        if let Some(fault) = object.get("error").or(object.get("code").filter(|_| status != 200)) {
            // In a stream the error is an object. In a call it is the message, next to the code.
            let detail = fault.as_object().unwrap_or(&object);
            return Err(fault_of(detail, status));
        }
        let body = match object.remove("result") {
            Some(Value::Object(result)) => result,
            Some(_) => return Err(not_etcd("its result")),
            None => object,
        };
        if status != 200 {
            return Err(EtcdFault::NotEtcd(format!("it answers with HTTP status {status}")));
        }
        let header = body.get("header").ok_or_else(|| not_etcd("its header"))?;
        let cluster = number(header, "cluster_id")?;
        let revision = number(header, "revision")?;
        if cluster == 0 || revision == 0 {
            return Err(not_etcd("its header"));
        }
        Ok(Self { cluster, revision, body: Value::Object(body) })
    }

    /// The token of a login.
    pub fn token(&self) -> Result<String, EtcdFault> {
        match self.body.get("token") {
            Some(Value::String(token)) if !token.is_empty() => Ok(token.clone()),
            _ => Err(not_etcd("a token")),
        }
    }

    /// The key that a range request asked for, if it exists.
    pub fn pair(&self) -> Result<Option<KeyValue>, EtcdFault> {
        pair(&self.body)
    }

    /// Whether a transaction's comparisons held.
    pub fn succeeded(&self) -> Result<bool, EtcdFault> {
        match self.body.get("succeeded") {
            None => Ok(false),
            Some(Value::Bool(succeeded)) => Ok(*succeeded),
            Some(_) => Err(not_etcd("whether it succeeded")),
        }
    }

    /// The key that the range request with this index in a transaction returned, if it exists.
    pub fn pair_at(&self, index: usize) -> Result<Option<KeyValue>, EtcdFault> {
        let range = self.body.get("responses").and_then(|responses| responses.get(index)?.get("response_range"));
        pair(range.ok_or_else(|| not_etcd("a range"))?)
    }

    /// The etcd lease that was granted or renewed. None if the lease to renew does not exist.
    pub fn granted(&self) -> Result<Option<GrantedLease>, EtcdFault> {
        let lease = number(&self.body, "ID")?;
        let seconds = number(&self.body, "TTL")?;
        match (lease, seconds) {
            (0, _) => Err(not_etcd("a lease")),
            (_, 0) => Ok(None),
            _ => Ok(Some(GrantedLease { lease, seconds })),
        }
    }
}

fn fault_of(detail: &serde_json::Map<String, Value>, status: u16) -> EtcdFault {
    let words = ["message", "error"].into_iter().find_map(|name| detail.get(name)?.as_str()).unwrap_or_default();
    let code = ["code", "grpc_code"].into_iter().find_map(|name| detail.get(name)?.as_u64());
    match code {
        _ if words.is_empty() => EtcdFault::NotEtcd(format!("it fails without a message, with HTTP status {status}")),
        None => EtcdFault::NotEtcd(format!("it says `{words}` with HTTP status {status}")),
        Some(NOT_FOUND) if words.contains("lease") => EtcdFault::Refused(EtcdRefusal::NoLease, words.to_owned()),
        Some(OUT_OF_RANGE) if words.contains("compacted") => {
            EtcdFault::Refused(EtcdRefusal::Compacted, words.to_owned())
        }
        Some(_) if ["invalid auth token", "revision of auth store is old"].iter().any(|old| words.contains(old)) => {
            EtcdFault::Refused(EtcdRefusal::Token, words.to_owned())
        }
        Some(_) if words.contains("authentication is not enabled") => {
            EtcdFault::Refused(EtcdRefusal::NoLogin, words.to_owned())
        }
        Some(UNKNOWN) if words.starts_with("context ") => EtcdFault::NotNow(words.to_owned()),
        Some(code) if NOT_NOW.contains(&code) => EtcdFault::NotNow(words.to_owned()),
        Some(_) => EtcdFault::Refused(EtcdRefusal::Other, words.to_owned()),
    }
}

fn pair(range: &Value) -> Result<Option<KeyValue>, EtcdFault> {
    let Some(pairs) = range.get("kvs") else { return Ok(None) };
    let Some(pair) = pairs.as_array().ok_or_else(|| not_etcd("its keys"))?.first() else { return Ok(None) };
    let value = match pair.get("value") {
        None => Vec::new(),
        Some(Value::String(text)) => BASE64.decode(text).map_err(|_| not_etcd("a value"))?,
        Some(_) => return Err(not_etcd("a value")),
    };
    let created = number(pair, "create_revision")?;
    let modified = number(pair, "mod_revision")?;
    if created == 0 || modified == 0 {
        return Err(not_etcd("a key's revisions"));
    }
    Ok(Some(KeyValue { value, created, modified, lease: number(pair, "lease")? }))
}

/// Reads a 64-bit number, which may be text. A missing field is zero.
fn number(object: &Value, name: &'static str) -> Result<u64, EtcdFault> {
    match object.get(name) {
        None => Ok(0),
        Some(Value::String(text)) => text.parse().map_err(|_| not_etcd(name)),
        Some(value) => value.as_u64().ok_or_else(|| not_etcd(name)),
    }
}

fn not_etcd(what: &str) -> EtcdFault {
    EtcdFault::NotEtcd(format!("{what} cannot be read from its answer"))
}

/// Bytes in base64, as requests carry them.
pub(crate) fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Copied from answers of etcd 3.4.23, with some numbers shortened.
    const HEADER: &str =
        r#""header":{"cluster_id":"324952591200643719","member_id":"33198","revision":"7","raft_term":"2"}"#;
    const PAIR: &str = r#"{"key":"YS9s","create_revision":"2","mod_revision":"5","version":"1","value":"YWRkcg==","lease":"2324035411153683207"}"#;

    fn read(body: &str) -> Result<EtcdResponse, EtcdFault> {
        EtcdResponse::read(200, format!("{{{HEADER}{body}}}").as_bytes())
    }

    fn is_not_etcd<T>(read: Result<T, EtcdFault>) -> bool {
        matches!(read, Err(EtcdFault::NotEtcd(_)))
    }

    #[test]
    fn responses_are_parsed() {
        let pair = KeyValue { value: b"addr".to_vec(), created: 2, modified: 5, lease: 2_324_035_411_153_683_207 };
        let empty = read("").expect("a header");
        assert_eq!((empty.cluster, empty.revision), (324_952_591_200_643_719, 7));
        assert_eq!((empty.pair(), empty.succeeded()), (Ok(None), Ok(false)));
        let range = read(&format!(r#","kvs":[{PAIR}],"count":"1""#)).expect("a range");
        assert_eq!(range.pair(), Ok(Some(pair.clone())));
        let failed = read(&format!(
            r#","responses":[{{"response_range":{{"header":{{"revision":"2"}},"kvs":[{PAIR}],"count":"1"}}}},{{"response_range":{{}}}}]"#
        ))
        .expect("a transaction");
        assert_eq!((failed.succeeded(), failed.pair_at(0), failed.pair_at(1)), (Ok(false), Ok(Some(pair)), Ok(None)));
        assert!(is_not_etcd(failed.pair_at(2)));
        assert_eq!(read(r#","succeeded":true"#).and_then(|response| response.succeeded()), Ok(true));
        let granted = |body: &str| EtcdResponse::read(200, body.as_bytes()).and_then(|response| response.granted());
        let lease = GrantedLease { lease: 12, seconds: 3 };
        assert_eq!(granted(&format!(r#"{{{HEADER},"ID":"12","TTL":"3"}}"#)), Ok(Some(lease)));
        assert_eq!(granted(&format!("{{\"result\":{{{HEADER},\"ID\":\"12\",\"TTL\":\"3\"}}}}\n")), Ok(Some(lease)));
        assert_eq!(granted(&format!(r#"{{"result":{{{HEADER},"ID":"12"}}}}"#)), Ok(None));
        assert!(is_not_etcd(granted(&format!("{{{HEADER}}}"))));
    }

    #[test]
    fn faults_are_classified() {
        let fault = |status, body: &str| EtcdResponse::read(status, body.as_bytes()).expect_err(body);
        let refused = |refusal, words: &str| EtcdFault::Refused(refusal, words.to_owned());
        let lease = "etcdserver: requested lease not found";
        let line = |words: &str, code: u8| format!(r#"{{"error":"{words}","message":"{words}","code":{code}}}"#);
        assert_eq!(fault(404, &line(lease, 5)), refused(EtcdRefusal::NoLease, lease));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(fault(400, &line(compacted, 11)), refused(EtcdRefusal::Compacted, compacted));
        assert_eq!(fault(400, &line("too large", 3)), refused(EtcdRefusal::Other, "too large"));
        assert_eq!(fault(503, &line("no leader", 14)), EtcdFault::NotNow("no leader".into()));
        let stream =
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}"#;
        assert_eq!(fault(200, stream), EtcdFault::NotNow("no leader".into()));
        let stale = "etcdserver: invalid auth token";
        assert_eq!(fault(401, &line(stale, 16)), refused(EtcdRefusal::Token, stale));
        let off = "etcdserver: authentication is not enabled";
        assert_eq!(fault(400, &line(off, 9)), refused(EtcdRefusal::NoLogin, off));
        let newer = r#"{"code":5,"message":"etcdserver: requested lease not found","details":[]}"#;
        assert_eq!(fault(404, newer), refused(EtcdRefusal::NoLease, lease));
    }

    #[test]
    fn answers_that_are_not_etcds_are_quoted() {
        let rows = [
            (200, "<html><body>It works!</body></html>", "it says `<html><body>It works!"),
            (404, "Not Found", "`Not Found` with HTTP status 404"),
            (200, "", "it says ``"),
            (200, "[]", "it says `[]`"),
            (200, "{}", "its header"),
            (200, r#"{"result":3}"#, "its result"),
            (200, r#"{"header":{"cluster_id":"0","revision":"1"}}"#, "its header"),
            (200, r#"{"header":{"cluster_id":"x","revision":"1"}}"#, "cluster_id"),
            (500, r#"{"header":{"cluster_id":"1","revision":"1"}}"#, "HTTP status 500"),
            (404, r#"{"error":"no such page"}"#, "it says `no such page`"),
            (500, r#"{"error":7,"code":1}"#, "without a message"),
        ];
        for (status, body, words) in rows {
            match EtcdResponse::read(status, body.as_bytes()) {
                Err(EtcdFault::NotEtcd(reason)) => assert!(reason.contains(words), "{reason}"),
                other => panic!("{body}: {other:?}"),
            }
        }
        let wrong = [r#"{"value":3}"#, r#"{"value":"?"}"#, r#"{"value":"YQ=="}"#, r#"{"create_revision":-1}"#, "3"];
        for pair in wrong {
            assert!(is_not_etcd(read(&format!(r#","kvs":[{pair}]"#)).and_then(|response| response.pair())), "{pair}");
        }
    }

    /// Calls every reader of a response.
    fn read_all(status: u16, bytes: &[u8]) {
        if let Ok(response) = EtcdResponse::read(status, bytes) {
            let _ = (
                response.token(),
                response.pair(),
                response.succeeded(),
                response.pair_at(0),
                response.pair_at(1),
                response.granted(),
            );
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[0-9A-Za-z+/=-]{0,20}".prop_map(Value::from),
        ];
        let name = proptest::sample::select(vec![
            "header",
            "cluster_id",
            "revision",
            "kvs",
            "value",
            "create_revision",
            "mod_revision",
            "lease",
            "ID",
            "TTL",
            "error",
            "message",
            "code",
            "grpc_code",
            "result",
            "responses",
            "response_range",
            "succeeded",
        ]);
        leaf.prop_recursive(5, 64, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((name.clone(), inner), 0..6)
                    .prop_map(|pairs| pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(status: u16, bytes: Vec<u8>) {
            read_all(status, &bytes);
        }

        #[test]
        fn any_json_with_etcds_field_names_is_read_or_refused(body in json(), status in proptest::sample::select(vec![200, 404, 503])) {
            read_all(status, body.to_string().as_bytes());
            read_all(status, format!(r#"{{{HEADER},"kvs":[{body}],"responses":[{body}],"succeeded":{body}}}"#).as_bytes());
        }

        #[test]
        fn a_valid_answer_with_changed_bytes_is_read_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6), cut: proptest::sample::Index
        ) {
            let mut bytes = format!(r#"{{{HEADER},"kvs":[{PAIR}],"ID":"12","TTL":"3","succeeded":true}}"#).into_bytes();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            read_all(200, &bytes);
            read_all(200, &bytes[..cut.index(bytes.len())]);
        }
    }
}

//! The JSON requests to etcd's gateway.

use super::chunks::EtcdKeys;
use super::response::base64;
use serde_json::{Value, json};

pub(crate) const AUTHENTICATE: &str = "/v3/auth/authenticate";
pub(crate) const RANGE: &str = "/v3/kv/range";
pub(crate) const TXN: &str = "/v3/kv/txn";
pub(crate) const GRANT: &str = "/v3/lease/grant";
pub(crate) const RENEW: &str = "/v3/lease/keepalive";
pub(crate) const REVOKE: &str = "/v3/lease/revoke";

/// Logs in. The answer is a token for the header `Authorization` of other requests.
pub(crate) fn authenticate(name: &str, password: &str) -> Value {
    json!({ "name": name, "password": password })
}

/// Reads one key, as it is now or as it was at a revision.
pub(crate) fn range(key: &str, revision: Option<u64>) -> Value {
    // Revision 0 stands for now.
    json!({ "key": base64(key.as_bytes()), "revision": revision.unwrap_or(0).to_string() })
}

/// Grants a new etcd lease.
pub(crate) fn grant(seconds: u64) -> Value {
    json!({ "TTL": seconds.to_string() })
}

/// Names an etcd lease, to renew or to revoke it.
pub(crate) fn lease(lease: u64) -> Value {
    json!({ "ID": lease.to_string() })
}

/// Creates `leader` if it does not exist, otherwise returns it.
pub(crate) fn take(leader: &str, address: &[u8], lease: u64) -> Value {
    let put = json!({ "key": base64(leader.as_bytes()), "value": base64(address), "lease": lease.to_string() });
    json!({
        "compare": [made_at(leader, 0)],
        "success": [{ "request_put": put }],
        "failure": [{ "request_range": range(leader, None) }],
    })
}

/// Writes one key if `leader` was created at revision `term`, otherwise returns `leader`.
pub(crate) fn put_if_leading(leader: &str, term: u64, key: &str, value: &[u8]) -> Value {
    json!({
        "compare": [made_at(leader, term)],
        "success": [put(key, value)],
        "failure": [{ "request_range": range(leader, None) }],
    })
}

/// Replaces the memory, or removes it if `value` is none, and removes all chunks except those of
/// `name`. Does so if `leader` was created at revision `term` and the memory last changed at
/// `revision`; otherwise returns `leader` and the memory.
pub(crate) fn replace(
    keys: &EtcdKeys,
    (term, revision): (u64, u64),
    value: Option<&[u8]>,
    name: Option<(u64, u64)>,
) -> Value {
    let change = match value {
        Some(value) => put(&keys.memory, value),
        None => json!({ "request_delete_range": { "key": base64(keys.memory.as_bytes()) } }),
    };
    let others = keys.other_chunks(name).into_iter().map(|range| {
        let key = base64(range.start.as_bytes());
        let end = base64(range.end.as_bytes());
        json!({ "request_delete_range": { "key": key, "range_end": end } })
    });
    json!({
        "compare": [made_at(&keys.leader, term), changed_at(&keys.memory, revision)],
        "success": std::iter::once(change).chain(others).collect::<Vec<_>>(),
        "failure": [{ "request_range": range(&keys.leader, None) }, { "request_range": range(&keys.memory, None) }],
    })
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "request_put": { "key": base64(key.as_bytes()), "value": base64(value) } })
}

/// Compares the revision at which a key was created. Revision 0: it does not exist.
fn made_at(key: &str, revision: u64) -> Value {
    let key = base64(key.as_bytes());
    json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string() })
}

/// Compares the revision at which a key last changed. Revision 0: it does not exist.
fn changed_at(key: &str, revision: u64) -> Value {
    let key = base64(key.as_bytes());
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

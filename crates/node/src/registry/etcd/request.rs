//! What is asked of etcd's gateway.

use super::chunks::EtcdKeys;
use super::response::base64;
use serde_json::{Value, json};

pub(crate) const RANGE: &str = "/v3/kv/range";
pub(crate) const TXN: &str = "/v3/kv/txn";
pub(crate) const GRANT: &str = "/v3/lease/grant";
pub(crate) const RENEW: &str = "/v3/lease/keepalive";
pub(crate) const REVOKE: &str = "/v3/lease/revoke";

/// One key, now or as it was at a revision.
pub(crate) fn range(key: &str, revision: Option<u64>) -> Value {
    // Nought stands for now.
    json!({ "key": base64(key.as_bytes()), "revision": revision.unwrap_or(0).to_string() })
}

/// A lease of its own.
pub(crate) fn grant(seconds: u64) -> Value {
    json!({ "TTL": seconds.to_string() })
}

/// To renew it, or to end it.
pub(crate) fn lease(lease: u64) -> Value {
    json!({ "ID": lease.to_string() })
}

/// Makes `leader` if it is not there; otherwise says what it is.
pub(crate) fn take(leader: &str, address: &[u8], lease: u64) -> Value {
    let put = json!({ "key": base64(leader.as_bytes()), "value": base64(address), "lease": lease.to_string() });
    json!({
        "compare": [made_at(leader, 0)],
        "success": [{ "request_put": put }],
        "failure": [{ "request_range": range(leader, None) }],
    })
}

/// Writes one key while `leader` is the one made at `term`; otherwise says what it is.
pub(crate) fn put_if_leading(leader: &str, term: u64, key: &str, value: &[u8]) -> Value {
    json!({
        "compare": [made_at(leader, term)],
        "success": [put(key, value)],
        "failure": [{ "request_range": range(leader, None) }],
    })
}

/// Replaces or removes the memory of `revision` while `leader` is the one made at `term`, together
/// with all chunks but those of `name`; otherwise says what the leader is, and the memory.
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
        let (key, end) = (base64(range.start.as_bytes()), base64(range.end.as_bytes()));
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

/// That a key was made at a revision; at nought, that it is not there.
fn made_at(key: &str, revision: u64) -> Value {
    let key = base64(key.as_bytes());
    json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": revision.to_string() })
}

/// That a key last changed at a revision; at nought, that it is not there.
fn changed_at(key: &str, revision: u64) -> Value {
    let key = base64(key.as_bytes());
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() })
}

//! `status --json`: everything that the coordinator knows of the run, for programs.

use super::{bytes_of, shards_of};
use serde_json::{Value, json};
use slackwater::cluster::{NodeId, WorkerId};
use slackwater::monitor::{Measured, MemberState, MemberStatus, Status, Timeout, Trouble};

/// The clock of the slowest worker that takes part.
fn slowest(status: &Status) -> Option<u64> {
    let takes_part = status.members.iter().filter(|member| member.state == MemberState::Present);
    takes_part.filter(|member| matches!(member.node, NodeId::Worker(_))).map(|member| member.clock.0).min()
}

fn measured_json(measured: &Measured) -> Value {
    let Measured { mean, deviation, count } = measured;
    json!({ "mean_s": mean.as_secs_f64(), "deviation_s": deviation.as_secs_f64(), "count": count })
}

fn timeout_json(timeout: &Timeout) -> Value {
    let Timeout { what, value, why, measured } = timeout;
    json!({ "what": what, "seconds": value.as_secs_f64(), "why": why, "measured": measured.as_ref().map(measured_json) })
}

fn trouble_json(trouble: &Trouble) -> Value {
    let Trouble { node, what, lasted, limit } = trouble;
    let limit = limit.map(|limit| limit.as_secs_f64());
    json!({ "node": node.to_string(), "what": what, "seconds": lasted.as_secs_f64(), "limit_s": limit })
}

pub(super) fn as_json(status: &Status, is_insecure: bool) -> Value {
    let member = |member: &MemberStatus| {
        let (state, reason) = match &member.state {
            MemberState::Joining => ("joining", None),
            MemberState::Present => ("present", None),
            MemberState::Leaving => ("leaving", None),
            MemberState::Left => ("left", None),
            MemberState::Lost { reason } => ("lost", Some(reason.clone())),
        };
        let shards = shards_of(status, member.node);
        json!({
            "node": member.node.to_string(), "address": member.address, "state": state, "reason": reason,
            "silent_s": member.silent.as_secs_f64(), "clock": member.clock.0,
            "in_clock_s": member.in_clock.map(|span| span.as_secs_f64()),
            "blocked_s": member.report.blocked.map(|span| span.as_secs_f64()),
            "shards_answered": shards.map(|(heads, _)| heads), "shards_held": shards.map(|(_, held)| held),
            "bytes_held": bytes_of(status, member.node),
            "step": member.report.step.as_ref().map(measured_json),
            "round_trip": member.report.round_trip.as_ref().map(measured_json),
            "timeouts": member.report.timeouts.iter().map(timeout_json).collect::<Vec<_>>(),
        })
    };
    let names = |nodes: &[WorkerId]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "plan": status.plan.number.0,
        "insecure": is_insecure,
        "shards": status.plan.chains.len(),
        "replicas": status.replicas,
        "chains": status.plan.chains.iter().map(|chain| json!({"replicas": chain.replicas, "backfilling": chain.backfilling})).collect::<Vec<_>>(),
        "adopting": status.adopting.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "members": status.members.iter().map(member).collect::<Vec<_>>(),
        "awaited_at_the_barrier": names(&status.awaited),
        "waited_for": names(&status.waited_for),
        "slow": names(&status.slow),
        "tables": status.tables.iter().map(|table| json!({"name": table.spec.name, "frontier": table.frontier.map(|clock| clock.0)})).collect::<Vec<_>>(),
        "slowest_clock": slowest(status),
        "failure_timeout_s": status.failure_timeout.as_secs_f64(),
        "serving_lease_s": status.lease.map(|lease| lease.as_secs_f64()),
        "troubles": status.troubles.iter().map(trouble_json).collect::<Vec<_>>(),
        "timeouts": status.timeouts.iter().map(timeout_json).collect::<Vec<_>>(),
    })
}

//! Tests of [`Peers`]: resends, and which replicas a new plan backfills anew.

use super::*;

const RECEIVER: NodeId = NodeId::Server(1);

fn batch(number: u64) -> BatchMark {
    BatchMark { number, finished: Vec::new(), frontier: Clock(number) }
}

#[test]
fn replication_resends_everything_after_the_last_held_batch() {
    let role = ChainRole { from: None, next: Some(RECEIVER), backfilling: Vec::new() };
    let mut peers = Peers::new(role.clone(), Clock(0));
    peers.take_part(role, 0, 1, Time(0));
    let mut outgoing = Outgoing::new();
    // The first batch is lost on its way, so the receiver drops the batches after it.
    (1..=4).for_each(|number| peers.send(batch(number), Time(0), &mut outgoing));
    outgoing.clear();
    peers.send_again(Time(0) + RESEND_MIN, &mut outgoing);
    let begins = |outgoing: &Outgoing| {
        let begin = |(_, sending): &(NodeId, Sending)| match sending {
            Sending::After(batch) => Some(*batch),
            Sending::Chunk(_) => None,
        };
        outgoing.iter().map(begin).collect::<Vec<_>>()
    };
    assert_eq!(begins(&outgoing), [Some(0)]);
    outgoing.clear();
    peers.answered(RECEIVER, 2, None, Time(0) + RESEND_MIN, &mut outgoing);
    assert_eq!((begins(&outgoing), peers.needs_after()), (vec![], Some(2)));
    peers.send(batch(5), Time(0) + RESEND_MIN, &mut outgoing);
    assert_eq!(begins(&outgoing), [Some(4)], "batches 3 and 4 are under way");
    outgoing.clear();
    peers.send_again(Time(0) + RESEND_MAX, &mut outgoing);
    assert_eq!(begins(&outgoing), [Some(2)]);
    outgoing.clear();
    peers.answered(RECEIVER, 4, None, Time(0) + RESEND_MAX, &mut outgoing);
    peers.settle(4);
    assert_eq!((peers.announced, outgoing.len()), (Clock(4), 0));
}

/// Whether a receiver is being backfilled from the beginning after these plans. In each plan it
/// is the successor, or is backfilled, or neither.
fn is_backfilled_anew(plans: &[(u64, Option<NodeId>, &[NodeId])]) -> bool {
    let role = |next, backfilling: &[NodeId]| ChainRole { from: None, next, backfilling: backfilling.to_vec() };
    let mut peers = Peers::new(role(None, &[]), Clock(0));
    for (plan, next, backfill) in plans {
        peers.take_part(role(*next, backfill), 3, *plan, Time(0));
    }
    let last = plans.last().map_or(0, |(plan, ..)| *plan);
    peers.receivers.iter().any(|receiver| receiver.backfill.as_ref().is_some_and(|backfill| backfill.id() == last))
}

#[test]
fn backfill_restarts_for_a_replica_that_was_removed_in_between() {
    let next = Some(RECEIVER);
    let fills: &[NodeId] = &[RECEIVER];
    assert!(is_backfilled_anew(&[(1, next, &[]), (3, None, fills)]), "plan 2, which was missed, removed it");
    assert!(is_backfilled_anew(&[(1, None, fills), (3, None, fills)]), "plan 2 may have removed it");
    assert!(is_backfilled_anew(&[(1, None, fills), (2, None, &[]), (3, None, fills)]));
    assert!(!is_backfilled_anew(&[(1, None, fills), (2, None, fills)]), "it is backfilled already");
    assert!(!is_backfilled_anew(&[(1, None, &[]), (2, None, fills), (3, next, &[])]));
}

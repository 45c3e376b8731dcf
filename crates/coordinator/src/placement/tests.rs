use super::*;

fn holders(staying: &[u32], replicas: usize) -> Holders {
    Holders { staying: staying.to_vec(), replicas }
}

fn begun(servers: u32, shards: u32, replicas: usize) -> Placement {
    let mut placement = Placement::default();
    placement.begin(servers, shards, replicas);
    placement
}

fn replicas(placement: &Placement) -> Vec<Vec<u32>> {
    placement.chains().iter().map(|chain| chain.replicas.clone()).collect()
}

#[test]
fn a_run_begins_with_neighbouring_shards_on_each_server() {
    // (servers, shards, replicas; the servers of each shard)
    let cases: [(u32, u32, usize, &[&[u32]]); 4] = [
        (1, 1, 1, &[&[0]]),
        (2, 4, 1, &[&[0], &[0], &[1], &[1]]),
        (3, 3, 2, &[&[0, 1], &[1, 2], &[2, 0]]),
        (2, 3, 5, &[&[0, 1], &[0, 1], &[1, 0]]),
    ];
    for (servers, shards, count, expected) in cases {
        assert_eq!(replicas(&begun(servers, shards, count)), expected, "{servers} servers, {shards} shards");
    }
}

#[test]
fn repair_replaces_a_lost_server_and_reports_whole_again_once() {
    let mut placement = begun(3, 3, 2);
    assert!(placement.has_replicas(0));
    placement.remove_server(0);
    assert!(!placement.is_whole_again(2));
    assert!(!placement.has_replicas(1), "shard 0 is on server 1 alone");
    let rest = holders(&[1, 2], 2);
    assert!(placement.repair(&rest));
    assert!(!placement.repair(&rest), "replicas are being backfilled");
    let tables = [(TableId(0), 3)];
    for (shard, server) in [(0, 2), (2, 1)] {
        assert!(!placement.is_whole_again(2));
        assert!(placement.backfilled((TableId(0), ShardId(shard), server), &tables, &rest));
    }
    assert_eq!(replicas(&placement), [[1, 2], [1, 2], [2, 1]]);
    assert!(placement.is_whole_again(2));
    assert!(!placement.is_whole_again(2), "it is said once");
}

#[test]
fn a_replica_joins_the_chain_when_every_table_that_has_the_shard_is_backfilled() {
    let tables = [(TableId(0), 2), (TableId(1), 1), (TableId(2), 2)];
    let both = holders(&[0, 1], 2);
    let mut placement = begun(1, 2, 1);
    assert!(placement.repair(&both));
    // (table, shard, server, whether the chain changes)
    let cases = [
        (0, 1, 1, false),
        (0, 1, 1, false),
        (2, 1, 7, false), // it is not backfilled there
        (2, 9, 1, false), // there is no such shard
        (2, 1, 1, true),  // the second table is too small to have this shard
        (0, 0, 1, false),
        (1, 0, 1, false),
        (2, 0, 1, true),
    ];
    for (step, (table, shard, server, changes)) in cases.into_iter().enumerate() {
        let changed = placement.backfilled((TableId(table), ShardId(shard), server), &tables, &both);
        assert_eq!(changed, changes, "step {step}");
    }
    assert_eq!(replicas(&placement), [[0, 1], [0, 1]]);
}

#[test]
fn backfills_of_an_earlier_plan_do_not_count() {
    let tables = [(TableId(0), 1), (TableId(1), 1)];
    let both = holders(&[0, 1], 2);
    let mut placement = begun(1, 1, 1);
    placement.repair(&both);
    assert!(!placement.backfilled((TableId(0), ShardId(0), 1), &tables, &both));
    placement.forget_backfills();
    assert!(!placement.backfilled((TableId(1), ShardId(0), 1), &tables, &both));
    assert!(placement.backfilled((TableId(0), ShardId(0), 1), &tables, &both));
}

#[test]
fn shards_that_no_table_has_need_no_backfill() {
    let both = holders(&[0, 1], 2);
    let mut placement = begun(1, 3, 1);
    placement.repair(&both);
    placement.complete_empty(1, &both);
    assert_eq!(replicas(&placement), [vec![0], vec![0, 1], vec![0, 1]]);
}

#[test]
fn shards_are_leveled_when_it_is_worth_it_and_not_too_often() {
    let both = holders(&[0, 1], 1);
    let after = Span(100);
    // (bytes of each shard of the first server, of the second, the time; whether any shard moves)
    let cases = [
        (2_000_000, 0, 99, false),
        (2_000_000, 0, 100, true),
        (2_000_000, 2_000_000, 100, false),
        (200_000, 0, 100, false),
    ];
    for (first, second, now, moves) in cases {
        let mut placement = begun(2, 4, 1);
        let bytes = [first, first, second, second];
        placement.hear_bytes(&(0..).map(ShardId).zip(bytes).collect::<Vec<_>>());
        assert_eq!(placement.level(Time(now), after, &both), moves, "{first} and {second} bytes at {now}");
        assert!(!placement.level(Time(now), after, &both), "no shard moves while another is backfilled, or soon after");
    }
}

use super::*;
use proptest::prelude::*;

/// Places shards of these sizes on servers, from nothing, with `repair`.
fn spread(bytes: &[u64], servers: &[u32], replicas: usize) -> Vec<Chain> {
    let mut chains = vec![Chain::default(); bytes.len()];
    settle(&mut chains, bytes, servers, replicas, |layout| layout.repair());
    chains
}

/// Applies a change, completes every backfill, and returns the bytes moved. Asserts that no shard
/// ever has fewer replicas than before.
fn settle(
    chains: &mut [Chain],
    bytes: &[u64],
    servers: &[u32],
    replicas: usize,
    change: impl FnOnce(&mut ShardLayout<'_>) -> bool,
) -> u64 {
    let mut moved = 0;
    let before: Vec<usize> = chains.iter().map(|chain| chain.replicas.len().min(replicas).min(servers.len())).collect();
    change(&mut ShardLayout { chains: &mut *chains, bytes, servers, replicas });
    for shard in 0..chains.len() {
        assert!(chains[shard].replicas.len() >= before[shard], "shard {shard} has fewer replicas than it had");
        for server in chains[shard].backfilling.clone() {
            moved += bytes[shard];
            ShardLayout { chains: &mut *chains, bytes, servers, replicas }.complete(shard, server);
            assert!(chains[shard].replicas.len() >= before[shard], "shard {shard} has fewer replicas than it had");
        }
    }
    moved
}

fn loads(chains: &mut [Chain], bytes: &[u64], servers: &[u32], replicas: usize) -> Vec<u64> {
    ShardLayout { chains, bytes, servers, replicas }.loads().into_values().collect()
}

fn indices(servers: u32) -> Vec<u32> {
    (0..servers).collect()
}

/// Shard sizes that differ by a factor of up to 30. None is more than a fifth of a server's share.
fn uneven(servers: u32, per_server: usize) -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(1_000u64..30_000, servers as usize * per_server)
}

fn cases() -> impl Strategy<Value = (u32, usize, Vec<u64>)> {
    (2u32..=16, 1usize..=3)
        .prop_flat_map(|(servers, replicas)| (Just(servers), Just(replicas.min(servers as usize)), uneven(servers, 24)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn servers_hold_nearly_the_same_bytes_and_no_shard_twice((servers, replicas, bytes) in cases()) {
        let all = indices(servers);
        let mut chains = spread(&bytes, &all, replicas);
        for chain in &chains {
            let mut distinct = chain.replicas.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), replicas.min(servers as usize));
            prop_assert_eq!(chain.replicas.len(), distinct.len());
        }
        let loads = loads(&mut chains, &bytes, &all, replicas);
        let share = loads.iter().sum::<u64>() / u64::from(servers);
        prop_assert!(loads.iter().all(|load| *load * 10 <= share * 12 && *load * 10 >= share * 8), "{:?}", loads);
    }

    #[test]
    fn a_server_that_joins_takes_its_share_and_no_more((servers, replicas, bytes) in cases()) {
        let mut chains = spread(&bytes, &indices(servers), replicas);
        let all = indices(servers + 1);
        let before = chains.clone();
        let moved = settle(&mut chains, &bytes, &all, replicas, |layout| layout.share_out());
        let total = bytes.iter().sum::<u64>() * replicas.min(servers as usize) as u64;
        let share = total / u64::from(servers + 1);
        prop_assert!(moved * 10 <= share * 12, "{} of {}", moved, share);
        prop_assert!(moved * 10 >= share * 7, "{} of {}", moved, share);
        let only_to_the_new = before.iter().zip(&chains).all(|(before, after)| {
            after.replicas.iter().all(|server| *server == servers || before.replicas.contains(server))
        });
        prop_assert!(only_to_the_new);
        let loads = loads(&mut chains, &bytes, &all, replicas);
        prop_assert!(loads.iter().all(|load| *load * 10 <= share * 13), "{:?} of {}", loads, share);
    }

    #[test]
    fn a_server_that_leaves_moves_its_own_shards_only((servers, replicas, bytes) in cases()) {
        let mut chains = spread(&bytes, &indices(servers), replicas);
        let held = loads(&mut chains.clone(), &bytes, &indices(servers), replicas)[0];
        let rest: Vec<u32> = (1..servers).collect();
        let moved = settle(&mut chains, &bytes, &rest, replicas, |layout| layout.repair());
        prop_assert!(chains.iter().all(|chain| !chain.holds(0)));
        prop_assert!(moved <= held, "{} of {}", moved, held);
        let fair = bytes.iter().sum::<u64>() * replicas.min(servers as usize) as u64 / u64::from(servers);
        prop_assert!(moved * 10 <= fair * 12, "{} of {}", moved, fair);
        let loads = loads(&mut chains, &bytes, &rest, replicas);
        let share = loads.iter().sum::<u64>() / u64::from(servers - 1);
        prop_assert!(loads.iter().all(|load| *load * 10 <= share * 13), "{:?} of {}", loads, share);
    }

    #[test]
    fn sharing_out_evens_loads_that_grew_apart((servers, _, bytes) in cases(), hot in 2u64..20) {
        let all = indices(servers);
        let mut chains = spread(&vec![1; bytes.len()], &all, 1);
        // Every shard of the first server has grown.
        let grown: Vec<u64> =
            bytes.iter().zip(&chains).map(|(bytes, chain)| if chain.replicas == [0] { bytes * hot } else { *bytes }).collect();
        let largest = loads(&mut chains, &grown, &all, 1)[0];
        let uneven = ShardLayout { chains: &mut chains, bytes: &grown, servers: &all, replicas: 1 }.is_uneven();
        settle(&mut chains, &grown, &all, 1, |layout| layout.share_out());
        let loads = loads(&mut chains, &grown, &all, 1);
        prop_assert!(loads.iter().all(|load| *load <= largest.max(loads.iter().sum::<u64>() / u64::from(servers) * 5 / 4)));
        if uneven && servers > 2 {
            prop_assert!(loads[0] < largest, "{:?}", loads);
        }
    }
}

#[test]
fn a_shard_larger_than_all_others_together_stays_where_it_is() {
    let bytes = [1_000_000, 10, 10, 10];
    let mut chains = vec![Chain { replicas: vec![0], backfilling: vec![] }; 4];
    let moved = settle(&mut chains, &bytes, &[0, 1], 1, |layout| layout.share_out());
    assert_eq!((moved, chains[0].replicas.as_slice()), (30, &[0][..]));
}

#[test]
fn every_server_holds_every_shard_if_servers_are_fewer_than_replicas() {
    let mut chains = vec![Chain { replicas: vec![0, 1], backfilling: vec![] }; 3];
    settle(&mut chains, &[5; 3], &[1], 2, |layout| layout.repair());
    assert!(chains.iter().all(|chain| chain.replicas == [1]));
    let mut chains = vec![Chain { replicas: vec![0], backfilling: vec![] }; 3];
    settle(&mut chains, &[5; 3], &[], 2, |layout| layout.repair());
    assert!(chains.iter().all(|chain| chain.replicas == [0]), "there is no other server");
}

/// Measures how long placing all shards takes, and giving one more server its share: `cargo test
/// --release -p slackwater-coordinator -- --ignored --nocapture placement_time_by_shards`.
#[test]
#[ignore = "a measurement, for the release profile"]
fn placement_time_by_shards() {
    for servers in [2u32, 4, 8, 16] {
        for per_server in [8usize, 64, 1024] {
            let bytes: Vec<u64> =
                (0..servers as u64 * per_server as u64).map(|shard| 1_000 + shard * 7919 % 30_000).collect();
            let all = indices(servers + 1);
            let begin = std::time::Instant::now();
            let mut chains = vec![Chain::default(); bytes.len()];
            ShardLayout { chains: &mut chains, bytes: &bytes, servers: &all[1..], replicas: 2 }.repair();
            let placed = begin.elapsed();
            chains.iter_mut().for_each(|chain| std::mem::swap(&mut chain.replicas, &mut chain.backfilling));
            let begin = std::time::Instant::now();
            ShardLayout { chains: &mut chains, bytes: &bytes, servers: &all, replicas: 2 }.share_out();
            println!(
                "{servers} servers, {} shards: placed in {placed:?}, shared out in {:?}",
                bytes.len(),
                begin.elapsed()
            );
        }
    }
}

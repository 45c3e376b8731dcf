use super::super::tests::{join, said, source};
use super::*;
use proptest::prelude::*;
use types::{Clock, NodeId, PlanNumber, Source, TableId, TableSpec};
use wire::{Control, Frame, Head, Message, NodeRole, Outbox};

const SIZE: RunSize = RunSize { servers: 2, workers: 2 };
const OPEN: Membership = Membership::Elastic { replicas: 2, shards_per_server: 2 };
const FAILURE_TIMEOUT: Span = Span::from_secs(2);

fn recall(now: Time, memory: &[u8]) -> Result<Coordinator, RecallError> {
    Coordinator::recall(now, memory, SIZE, OPEN, FAILURE_TIMEOUT)
}

/// A run that has begun.
fn begun() -> Coordinator {
    let mut coordinator = Coordinator::new(SIZE, OPEN, FAILURE_TIMEOUT);
    let roles = [NodeRole::Server, NodeRole::Server, NodeRole::Worker, NodeRole::Worker];
    let members = (0..).zip(roles).map(|(token, role)| join(&mut coordinator, Time(0), role, token).expect("a place"));
    for (node, source) in members.collect::<Vec<_>>() {
        said(&mut coordinator, Time(0), node, source, Control::Heartbeat { heard: 0 });
    }
    assert!(coordinator.has_begun());
    coordinator
}

/// One random step: a node sends something, or time passes.
fn step(coordinator: &mut Coordinator, now: &mut Time, (what, who, number): (u8, u8, u64)) {
    *now = *now + Span::from_millis(number % 700);
    let node = if who % 2 == 0 { NodeId::Server(who as u32 / 2 % 4) } else { NodeId::Worker(who as u32 / 2 % 4) };
    let plan = PlanNumber(coordinator.plan().number.0 - number % 2);
    let frontier = Clock(number);
    let role = if who % 2 == 0 { NodeRole::Server } else { NodeRole::Worker };
    let control = match what % 11 {
        0 => return coordinator.tick(*now, &mut Outbox::new()),
        1 => Control::Join {
            role,
            address: format!("host:{who}"),
            token: u64::from(who),
            place: None,
            job: String::new(),
        },
        2 => Control::MakeTable { spec: TableSpec::sparse(["t", "u"][number as usize % 2], 1) },
        3 => Control::TableAdded { table: TableId(number as u32 % 3), problem: None },
        4 => Control::Barrier { number: coordinator.barriers.passed() + number % 3 },
        5 | 6 => Control::Adopted { plan, enacted: number % 3 == 0, frontier },
        7 if number % 8 == 0 => Control::Bye,
        8 if number % 8 == 0 => Control::Fail { reason: "it is tired".to_owned() },
        _ => Control::Heartbeat { heard: 0 },
    };
    let source = source(coordinator, node);
    said(coordinator, *now, node, source, control);
}

proptest! {
    #[test]
    fn recalling_a_memory_restores_it(steps in prop::collection::vec(any::<(u8, u8, u64)>(), 0..80)) {
        let mut coordinator = begun();
        let mut now = Time(0);
        let mut before = Vec::new();
        for taken in steps {
            step(&mut coordinator, &mut now, taken);
            let memory = coordinator.memory();
            prop_assert!(coordinator.take_touched() || memory == before, "a change that would not be saved");
            before.clone_from(&memory);
            let recalled = recall(now, &memory).expect("its own");
            prop_assert_eq!(&recalled.memory(), &memory);
            prop_assert_eq!(recalled.members.present(), coordinator.members.present());
            prop_assert_eq!(recalled.is_finished(), coordinator.is_finished());
        }
    }

    #[test]
    fn a_damaged_memory_is_refused_or_does_no_harm(
        before in prop::collection::vec(any::<(u8, u8, u64)>(), 0..40),
        after in prop::collection::vec(any::<(u8, u8, u64)>(), 0..40),
        changes in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut coordinator = begun();
        let mut now = Time(0);
        before.into_iter().for_each(|taken| step(&mut coordinator, &mut now, taken));
        let mut memory = coordinator.memory();
        for (index, byte) in changes {
            let at = index.index(memory.len());
            memory[at] = byte;
        }
        memory.truncate(cut.map_or(memory.len(), |cut| cut.index(memory.len())));
        if let Ok(mut coordinator) = recall(now, &memory) {
            after.into_iter().for_each(|taken| step(&mut coordinator, &mut now, taken));
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(recall(Time(0), &bytes).is_err());
    }
}

/// What the coordinator sends when this time has come, and to which nodes.
fn ticked(coordinator: &mut Coordinator, now: Time) -> Vec<(NodeId, Control)> {
    let mut out = Outbox::new();
    coordinator.tick(now, &mut out);
    let control = |frame: Frame| match frame.message {
        Message::Control(control) => Some((frame.head.to, control)),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

#[test]
fn a_successor_sends_the_plan_again_and_enacts_it_when_servers_confirm() {
    let later = Time(0) + Span::from_secs(60);
    let mut coordinator = recall(later, &begun().memory()).expect("its own");
    assert_eq!(*coordinator.plan(), *begun().plan());
    let told = ticked(&mut coordinator, later);
    let servers = [NodeId::Server(0), NodeId::Server(1)];
    let number = coordinator.plan().number;
    let is_plan = |(_, control): &(NodeId, Control)| matches!(control, Control::Adopt { enacted: false, .. });
    assert!(told.iter().all(is_plan), "{told:?}");
    assert_eq!(told.iter().map(|(node, _)| *node).collect::<Vec<_>>(), servers);
    let mut enacted = Vec::new();
    for node in servers {
        let adopted = Control::Adopted { plan: number, enacted: true, frontier: Clock(7) };
        let source = source(&coordinator, node);
        enacted = said(&mut coordinator, later, node, source, adopted);
    }
    let is_enacted = |control: &Control| matches!(control, Control::Adopt { enacted: true, .. });
    assert_eq!(enacted.iter().filter(|control| is_enacted(control)).count(), 4, "{enacted:?}");
    assert_eq!(coordinator.plan().number, number, "no node joined or left");
}

#[test]
fn a_successor_counts_no_node_as_lost_before_its_predecessors_leases_have_ended() {
    let later = Time(0) + Span::from_secs(60);
    let mut coordinator = recall(later, &begun().memory()).expect("its own");
    let found = later + coordinator.finding();
    for node in [NodeId::Server(1), NodeId::Worker(0), NodeId::Worker(1)] {
        let source = source(&coordinator, node);
        said(&mut coordinator, found + FAILURE_TIMEOUT, node, source, Control::Heartbeat { heard: 0 });
    }
    ticked(&mut coordinator, found + Span(FAILURE_TIMEOUT.0 / 4 * 5));
    assert_eq!(coordinator.take_events(), []);
    ticked(&mut coordinator, found + Span(FAILURE_TIMEOUT.0 / 4 * 5 + 1));
    assert!(coordinator.take_events().iter().any(|news| news.node == NodeId::Server(0)));
    assert_eq!(coordinator.plan().servers(), [1]);
}

#[test]
fn a_successor_gives_a_repeated_join_the_same_place() {
    let mut coordinator = begun();
    let (node, source) = join(&mut coordinator, Time(0), NodeRole::Worker, 77).expect("a place");
    let mut next = recall(Time(9), &coordinator.memory()).expect("its own");
    assert_eq!(join(&mut next, Time(9), NodeRole::Worker, 77), Some((node, source)));
    let (_, other) = join(&mut next, Time(9), NodeRole::Worker, 78).expect("a place");
    assert_ne!(other, source);
}

#[test]
fn a_memory_of_other_settings_or_version_is_refused() {
    let memory = begun().memory();
    let size = RunSize { servers: 3, workers: 2 };
    let error = Coordinator::recall(Time(0), &memory, size, OPEN, FAILURE_TIMEOUT).err().expect("another size");
    let words = "it had 2 servers and 2 workers, with 2 replicas and 2 shards a server, and this one is for 3 servers and 2 workers";
    assert!(error.to_string().contains(words), "{error}");
    let fixed = Coordinator::recall(Time(0), &memory, SIZE, Membership::Static, FAILURE_TIMEOUT).err();
    assert!(matches!(fixed, Some(RecallError::OtherRun { .. })), "{fixed:?}");
    let mut newer = memory;
    newer[0] = 9;
    assert_eq!(recall(Time(0), &newer).err(), Some(RecallError::Version { found: 9 }));
}

#[test]
fn servers_ignore_messages_of_an_earlier_leader() {
    let mut server =
        shard::Server::new(NodeId::Server(0), begun().plan().clone(), update::Updaters::builtin(), wire::Pool::new());
    let mut finish = |term: u64| {
        let head = Head { source: Source(term), ..Head::plain(NodeId::Coordinator, NodeId::Server(0)) };
        let control = if term == 2 { Control::Finish } else { Control::Heartbeat { heard: 0 } };
        server.handle(Time(0), Frame { head, message: Message::Control(control) }, &mut Outbox::new());
        server.is_finished()
    };
    assert!(!finish(3));
    assert!(!finish(2), "the leader of term 3 leads by now");
}

#[test]
fn heartbeats_do_not_touch_the_memory() {
    let mut coordinator = begun();
    assert!(coordinator.take_touched());
    for node in coordinator.everybody() {
        let source = source(&coordinator, node);
        said(&mut coordinator, Time(1), node, source, Control::Heartbeat { heard: 0 });
    }
    coordinator.tick(Time(2), &mut Outbox::new());
    assert!(!coordinator.take_touched());
    let worker = NodeId::Worker(0);
    let source = source(&coordinator, worker);
    said(&mut coordinator, Time(3), worker, source, Control::Barrier { number: 1 });
    assert!(coordinator.take_touched());
}

/// Names are never given twice, so the memory keeps every node that has left.
#[test]
fn the_memory_keeps_each_node_that_left_in_few_bytes() {
    let mut coordinator = begun();
    let begin = coordinator.memory().len();
    let mut came = 0;
    for count in [100, 300, 900] {
        for token in came..count {
            let (node, source) =
                join(&mut coordinator, Time(0), NodeRole::Worker, 1000 + token).expect("there is room for many");
            said(&mut coordinator, Time(0), node, source, Control::Heartbeat { heard: 0 });
            said(&mut coordinator, Time(0), node, source, Control::Bye);
        }
        came = count;
        let each = (coordinator.memory().len() - begin) as f64 / count as f64;
        println!("{count} workers that joined and left: {each:.0} bytes each");
        assert!(each < 60.0, "{each} bytes for each of {count}");
    }
    assert!(coordinator.lost().is_none());
}

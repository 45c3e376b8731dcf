use super::*;
use crate::members::tests::begun;

const WORKER: NodeId = NodeId::Worker(0);
const SERVERS: [NodeId; 2] = [NodeId::Server(0), NodeId::Server(1)];
const FIRST: TableId = TableId(0);

fn said(out: &mut Outbox) -> Vec<(NodeId, Control)> {
    let control = |frame: wire::Frame| match frame.message {
        wire::Message::Control(control) => Some((frame.head.to, control)),
        _ => None,
    };
    out.drain().filter_map(control).collect()
}

fn spec() -> TableSpec {
    TableSpec::sparse("t", 1)
}

fn ask(tables: &mut Tables, spec: TableSpec, may_make: bool) -> Vec<(NodeId, Control)> {
    let mut out = Outbox::new();
    tables.ask(Time(0), (WORKER, spec), may_make, &begun(2, 1), &Checkpoints::default(), &mut out);
    said(&mut out)
}

fn add_table() -> Control {
    Control::AddTable { table: FIRST, spec: spec() }
}

#[test]
fn workers_hear_of_a_table_when_every_server_has_made_it() {
    let mut tables = Tables::default();
    assert_eq!(ask(&mut tables, spec(), true), SERVERS.map(|server| (server, add_table())));
    assert_eq!(tables.checkpointed(), None, "it is being made");
    let mut out = Outbox::new();
    assert_eq!(tables.added(Time(5), SERVERS[0], FIRST, None, &mut out), Some(Span(5)));
    assert_eq!(said(&mut out), []);
    assert_eq!(tables.added(Time(7), SERVERS[1], FIRST, None, &mut out), Some(Span(7)));
    let made = Control::TableMade { table: FIRST, name: "t".into() };
    assert_eq!(said(&mut out), [(WORKER, add_table()), (WORKER, made.clone())]);
    assert_eq!(tables.checkpointed(), Some(vec![(FIRST, spec())]));
    assert_eq!(ask(&mut tables, spec(), false), [(WORKER, made)], "a table that is made waits for no plan");
}

#[test]
fn a_table_is_refused_with_the_problem_of_the_server_that_cannot_hold_it() {
    let mut tables = Tables::default();
    ask(&mut tables, spec(), true);
    let mut out = Outbox::new();
    tables.added(Time(5), SERVERS[0], FIRST, Some("full".into()), &mut out);
    tables.added(Time(5), SERVERS[1], FIRST, None, &mut out);
    let problem = "server 0: full".to_owned();
    assert_eq!(said(&mut out), [(WORKER, Control::TableRefused { name: "t".into(), problem })]);
    assert_eq!(tables.checkpointed(), Some(Vec::new()));
    let other = ask(&mut tables, TableSpec::sparse("t", 2), true);
    assert!(matches!(&other[..], [(WORKER, Control::TableRefused { problem, .. })] if problem.contains("two specs")));
}

#[test]
fn a_request_for_a_new_table_waits_for_a_plan_once_for_each_worker() {
    let mut tables = Tables::default();
    assert_eq!(ask(&mut tables, spec(), false), []);
    assert_eq!(ask(&mut tables, spec(), false), []);
    assert_eq!(tables.take_deferred(), [(WORKER, spec())]);
    assert_eq!(tables.take_deferred(), []);
}

#[test]
fn servers_that_have_not_answered_are_asked_again_and_no_longer_measured() {
    let mut tables = Tables::default();
    ask(&mut tables, spec(), true);
    let mut out = Outbox::new();
    tables.added(Time(1), SERVERS[0], FIRST, None, &mut out);
    tables.ask_again(Time(9), Span(10), &mut out);
    assert_eq!(said(&mut out), []);
    tables.ask_again(Time(10), Span(10), &mut out);
    assert_eq!(said(&mut out), [(SERVERS[1], add_table())]);
    assert_eq!(tables.added(Time(11), SERVERS[1], FIRST, None, &mut out), None);
}

#[test]
fn a_table_waits_for_no_lost_server() {
    let mut tables = Tables::default();
    ask(&mut tables, spec(), true);
    let mut out = Outbox::new();
    tables.added(Time(1), SERVERS[0], FIRST, None, &mut out);
    tables.forget(SERVERS[1], &mut out);
    let made = Control::TableMade { table: FIRST, name: "t".into() };
    assert_eq!(said(&mut out), [(WORKER, add_table()), (WORKER, made)]);
}

#[test]
fn a_table_beyond_the_limit_is_refused_and_others_stay() {
    let named = |number: usize| TableSpec::sparse(&format!("t{number}"), 1);
    let mut tables = Tables::default();
    for number in 0..TABLES {
        assert_eq!(ask(&mut tables, named(number), true).len(), SERVERS.len(), "table {number}");
    }
    let refused = ask(&mut tables, named(TABLES), true);
    assert!(
        matches!(&refused[..], [(WORKER, Control::TableRefused { problem, .. })] if problem.contains("4096 tables")),
        "{refused:?}"
    );
    assert_eq!(ask(&mut tables, named(0), true), [], "an old table is found: its servers have yet to answer");
}

#[test]
fn requests_that_wait_for_a_plan_are_bounded() {
    let mut tables = Tables::default();
    for number in 0..2 * TABLES {
        ask(&mut tables, TableSpec::sparse(&format!("t{number}"), 1), false);
    }
    assert_eq!(tables.take_deferred().len(), TABLES);
}

//! A shard's place in its chain: whom its changes come from, whom they go to, and what of them is held there.
//!
//! Whoever stands in a chain has whatever those after it have. So the next one can take the head's place at any time, and a new copy
//! is filled from the tail, and stands behind it.

use crate::follow::backfill::Filling;
use crate::follow::replica::batch::Gathered;
use std::collections::{BTreeMap, VecDeque};
use types::{Chain, Clock, Measured, NodeId, Span, Time, WorkerId};
use wire::Replica;

/// What was not answered for as long as answers take, by what was measured, is sent again, and each time after twice as long. But never before
/// this: a thread that was not run for a moment has lost nothing.
const AGAIN: Span = Span::from_millis(100);
/// But never after longer than this.
const LONGEST: Span = Span::from_secs(5);

/// A server's part in the chain of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Whom changes come from; nobody, at the head.
    pub from: Option<NodeId>,
    /// Whom they go to next, if this is not the tail.
    pub next: Option<NodeId>,
    /// Whom the tail fills.
    pub filling: Vec<NodeId>,
}

impl Role {
    /// What a server is to a slice, if it is anything.
    pub fn of(chain: &Chain, server: NodeId) -> Option<Self> {
        let NodeId::Server(index) = server else { return None };
        let node = |index: &u32| NodeId::Server(*index);
        if let Some(place) = chain.whole.iter().position(|member| *member == index) {
            let from = place.checked_sub(1).and_then(|before| chain.whole.get(before)).map(node);
            let next = chain.whole.get(place + 1).map(node);
            let filling = if next.is_none() { chain.filling.iter().map(node).collect() } else { Vec::new() };
            return Some(Self { from, next, filling });
        }
        let from = chain.whole.last().map(node).filter(|_| chain.filling.contains(&index));
        from.map(|from| Self { from: Some(from), next: None, filling: Vec::new() })
    }

    /// Whether nobody else has anything to do with the slice.
    pub fn is_alone(&self) -> bool {
        self.from.is_none() && self.next.is_none() && self.filling.is_empty()
    }
}

/// Somebody whom changes are sent to.
pub struct Child {
    pub node: NodeId,
    /// Until it has everything that it was too late for.
    pub filling: Option<Filling>,
    /// Which filling it has had of this copy: what it held before that it holds no more.
    filled: Option<u64>,
    /// The last window that it, and whoever comes after it, holds.
    pub through: u64,
    moved: Time,
    again: Span,
    /// How long windows take to be answered, and the one that is being timed: none that was sent twice.
    trip: Measured,
    timed: Option<(u64, Time)>,
}

impl Child {
    fn new(node: NodeId, filling: Option<Filling>, through: u64, now: Time) -> Self {
        let filled = filling.as_ref().map(Filling::id);
        let (again, trip, timed) = (AGAIN, Measured::default(), None);
        Self { node, filling, filled, through, moved: now, again, trip, timed }
    }

    /// After how long something that it was sent is late.
    fn late_after(&self) -> Span {
        if self.trip.count == 0 { AGAIN } else { self.trip.limit(AGAIN, LONGEST) }
    }

    /// Whether windows are sent to it: all but those that its filling will hold.
    fn takes_windows(&self) -> bool {
        self.filling.as_ref().is_none_or(|filling| filling.ends_at().is_some())
    }
}

/// A window that has been closed.
pub struct Window {
    pub number: u64,
    pub pieces: Vec<Replica>,
    /// How much of each worker's stream it holds.
    pub finished: Vec<(WorkerId, u64)>,
    /// The frontier that it reaches.
    pub frontier: Clock,
}

/// Pieces to be sent, and whom to.
pub type Post = Vec<(NodeId, Replica)>;

/// Everything about a shard's place in its chain.
pub struct Links {
    pub role: Role,
    /// The plan that says so.
    plan: u64,
    pub children: Vec<Child>,
    /// Closed, and not held by everybody yet.
    kept: VecDeque<Window>,
    /// How much of each worker's stream the tail holds.
    pub durable: BTreeMap<WorkerId, u64>,
    /// The frontier that the tail holds.
    pub announced: Clock,
    /// Who moved the frontier last.
    pub moved_by: WorkerId,
    /// What the next window will hold, at the head.
    pub gathered: Gathered,
    /// Pieces of the next window that have arrived, at all but the head.
    pub arriving: Vec<Replica>,
    /// While this copy is being filled: by which filling, and how many pieces have come.
    pub filled_by: Option<(u64, u32)>,
    /// And whether that is all of it.
    pub complete: bool,
}

impl Links {
    pub fn new(role: Role, announced: Clock) -> Self {
        Self {
            role,
            plan: 0,
            children: Vec::new(),
            kept: VecDeque::new(),
            durable: BTreeMap::new(),
            announced,
            moved_by: WorkerId(0),
            gathered: Gathered::default(),
            arriving: Vec::new(),
            filled_by: None,
            complete: false,
        }
    }

    pub fn is_head(&self) -> bool {
        self.role.from.is_none()
    }

    /// Whether it is the head and nobody takes windows, so that whatever is done is done.
    pub fn is_solitary(&self) -> bool {
        self.is_head() && !self.children.iter().any(Child::takes_windows)
    }

    /// Takes another part, as the holder of every window up to `window`, in the plan of this number.
    pub fn take_part(&mut self, role: Role, window: u64, plan: u64, now: Time) {
        // Whoever is new here and is said to be whole has whatever everybody has.
        let held = self.kept.front().map_or(window, |first| first.number.saturating_sub(1));
        let mut known: BTreeMap<NodeId, Child> =
            std::mem::take(&mut self.children).into_iter().map(|child| (child.node, child)).collect();
        if let Some(node) = role.next {
            let child = known.remove(&node).filter(|child| child.filling.is_none());
            // What it may lack is due at once.
            let new = || Child { again: Span(0), ..Child::new(node, None, held, now) };
            self.children.push(child.unwrap_or_else(new));
        }
        // Whoever stood in the chain and is to be filled now was sent away in between, and has nothing left. So may whoever was being filled, if
        // a plan never came here.
        let has_missed_one = plan > self.plan.saturating_add(1);
        for node in &role.filling {
            let begin = || Child::new(*node, Some(Filling::new(plan)), 0, now);
            let stays = !has_missed_one && self.role.filling.contains(node);
            self.children.push(known.remove(node).filter(|_| stays).unwrap_or_else(begin));
        }
        (self.role, self.plan) = (role, plan);
        self.arriving.clear();
    }

    /// The last window that everybody from here to the tail holds, of those that this copy holds.
    pub fn through(&self, window: u64) -> u64 {
        let receivers = self.children.iter().filter(|child| child.takes_windows());
        receivers.map(|child| child.through).min().map_or(window, |least| least.min(window))
    }

    /// What the windows held by the tail amount to. They are let go.
    pub fn settle(&mut self, window: u64) {
        let through = self.through(window);
        let done = self.kept.partition_point(|window| window.number <= through);
        for window in self.kept.drain(..done) {
            self.announced = self.announced.max(window.frontier);
            for (worker, finished) in window.finished {
                let durable = self.durable.entry(worker).or_default();
                *durable = (*durable).max(finished);
            }
        }
    }

    /// A window is closed, or has been taken over: it goes to everybody who is to have it.
    pub fn send(&mut self, window: Window, now: Time, post: &mut Post) {
        for child in self.children.iter_mut().filter(|child| child.takes_windows()) {
            if self.kept.back().is_none_or(|last| last.number <= child.through) {
                (child.moved, child.again) = (now, child.late_after());
            }
            child.timed.get_or_insert((window.number, now));
            post.extend(window.pieces.iter().map(|piece| (child.node, piece.clone())));
        }
        self.kept.push_back(window);
    }

    /// What children have not answered for long, once more: all of it, for whoever lacks one window has let those after it go. One at a time
    /// would bring one each time that is waited for, while as many new ones come too early again.
    pub fn send_again(&mut self, now: Time, post: &mut Post) {
        for child in self.children.iter_mut().filter(|child| now.since(child.moved) >= child.again) {
            let before = post.len();
            match &child.filling {
                Some(filling) => post.extend(filling.unanswered().map(|piece| (child.node, piece.clone()))),
                None => {
                    let lacking = self.kept.iter().filter(|window| window.number > child.through);
                    post.extend(lacking.flat_map(|window| &window.pieces).map(|piece| (child.node, piece.clone())));
                }
            }
            if post.len() > before {
                (child.moved, child.timed) = (now, None);
                child.again = Span((child.again.0 * 2).min(LONGEST.0));
            }
        }
    }

    /// A child holds every window up to `through`, and so much of its filling. Whatever it lacks of later windows is sent again, for they
    /// came out of order.
    pub fn answered(&mut self, node: NodeId, through: u64, pieces: Option<(u64, u32)>, now: Time, post: &mut Post) {
        let Some(child) = self.children.iter_mut().find(|child| child.node == node) else { return };
        if let (Some(filled), Some((number, _))) = (child.filled, pieces)
            && filled != number
        {
            // It was said before this filling began, and is heard late.
            return;
        }
        let late_after = child.late_after();
        if let Some(filling) = &mut child.filling {
            if !filling.answered(pieces) {
                return;
            }
            (child.moved, child.again) = (now, late_after);
            let Some(end) = filling.is_over() else { return };
            child.filling = None;
            child.through = end;
            let later = self.kept.iter().filter(|window| window.number > end);
            post.extend(later.flat_map(|window| &window.pieces).map(|piece| (node, piece.clone())));
        }
        if through > child.through {
            if let Some((_, sent)) = child.timed.take_if(|(number, _)| *number <= through) {
                child.trip.observe(now.since(sent));
            }
            (child.through, child.moved, child.again) = (through, now, child.late_after());
        } else if through == child.through && now.since(child.moved) >= child.late_after() {
            (child.moved, child.timed) = (now, None);
            let lacking = self.kept.iter().filter(|window| window.number > through);
            post.extend(lacking.flat_map(|window| &window.pieces).map(|piece| (node, piece.clone())));
        }
    }

    /// Windows that are closed, and not held by everybody yet.
    pub fn under_way(&self) -> usize {
        self.kept.len()
    }

    /// After how long a window is sent again to whoever takes longest, and how long windows take there.
    pub fn resends(&self) -> Option<(Span, Measured)> {
        let measured = self.children.iter().filter(|child| child.trip.count > 0);
        measured.map(|child| (child.late_after(), child.trip)).max_by_key(|(late, trip)| (*late, trip.mean))
    }

    /// Whether time alone will bring something about.
    pub fn hurries(&self) -> bool {
        let fills = self.children.iter().any(|child| child.filling.is_some());
        fills || self.is_head() && self.gathered.is_open()
    }

    /// Those whom the plan has filled, and who hold everything that anybody was told of.
    pub fn filled(&self) -> impl Iterator<Item = NodeId> + '_ {
        let filled = |child: &&Child| child.filling.is_none() && self.role.next != Some(child.node);
        self.children.iter().filter(filled).map(|child| child.node)
    }

    /// Whether there is anybody to send windows to.
    pub fn has_receivers(&self) -> bool {
        self.children.iter().any(Child::takes_windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ShardId, TableId};
    use wire::{Payload, Piece};

    const CHILD: NodeId = NodeId::Server(1);

    fn window(number: u64) -> Window {
        let (positions, values) = (Payload::EMPTY, Payload::EMPTY);
        let what = Piece::Ledger { bytes: Vec::new() };
        let (table, shard, piece, filling) = (TableId(0), ShardId(0), 0, None);
        let piece = Replica { table, shard, window: number, piece, filling, what, positions, values };
        Window { number, pieces: vec![piece], finished: Vec::new(), frontier: Clock(number) }
    }

    #[test]
    fn a_child_that_lacks_a_window_gets_all_of_the_later_ones_again_at_once() {
        let role = Role { from: None, next: Some(CHILD), filling: Vec::new() };
        let mut links = Links::new(role.clone(), Clock(0));
        links.take_part(role, 0, 1, Time(0));
        let mut post = Post::new();
        // The first is lost on its way, so the child lets go of those that follow.
        (1..=4).for_each(|number| links.send(window(number), Time(0), &mut post));
        post.clear();
        links.send_again(Time(0) + AGAIN, &mut post);
        let numbers = |post: &Post| post.iter().map(|(_, piece)| piece.window).collect::<Vec<_>>();
        assert_eq!(numbers(&post), [1, 2, 3, 4]);
        post.clear();
        links.answered(CHILD, 4, None, Time(0) + AGAIN, &mut post);
        links.settle(4);
        assert_eq!((links.announced, post.len()), (Clock(4), 0));
    }

    /// Whether a child is being filled from the beginning, after these plans: in each of them it stands next, or is filled, or neither.
    fn is_filled_anew(plans: &[(u64, Option<NodeId>, &[NodeId])]) -> bool {
        let role = |next, filling: &[NodeId]| Role { from: None, next, filling: filling.to_vec() };
        let mut links = Links::new(role(None, &[]), Clock(0));
        for (plan, next, filling) in plans {
            links.take_part(role(*next, filling), 3, *plan, Time(0));
        }
        let last = plans.last().map_or(0, |(plan, ..)| *plan);
        links.children.iter().any(|child| child.filling.as_ref().is_some_and(|filling| filling.id() == last))
    }

    #[test]
    fn who_was_sent_away_in_between_is_filled_from_the_beginning() {
        let (next, fills): (_, &[NodeId]) = (Some(CHILD), &[CHILD]);
        assert!(
            is_filled_anew(&[(1, next, &[]), (3, None, fills)]),
            "the plan between, which did not come here, sent it away"
        );
        assert!(is_filled_anew(&[(1, None, fills), (3, None, fills)]), "or may have");
        assert!(is_filled_anew(&[(1, None, fills), (2, None, &[]), (3, None, fills)]));
        assert!(!is_filled_anew(&[(1, None, fills), (2, None, fills)]), "it is filled already");
        assert!(!is_filled_anew(&[(1, None, &[]), (2, None, fills), (3, next, &[])]));
    }
}

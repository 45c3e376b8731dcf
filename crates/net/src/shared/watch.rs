//! How one thread waits for many rings: it looks into those that were busy lately, briefly, and
//! then asks for bells.
//!
//! A ring is either looked into or has a bell asked for; a wait that is about to block asks for the
//! bells of all rings it looked into, and looks once more. So a ring on which nothing happens costs
//! a wait nothing.

use super::page::Page;
use super::ring::{Consumer, Producer, TELL_EVERY};
use crate::lock;
use mio::Token;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Looks before a thread sleeps: together some 15 µs, about what it costs to sleep and be woken, so
/// that looking in vain costs no more than twice what sleeping at once would have. Between the last
/// ones others may run on this core: where there are more threads than cores, whoever is waited for
/// may be one of those.
const LOOKS: u32 = LOOKS_ALONE + 8;
const LOOKS_ALONE: u32 = 256;

/// Both rings of a connection, as the thread that moves bytes and the thread that waits share them.
pub struct Line {
    pub(super) page: Page,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    token: AtomicUsize,
    /// It is on the list of rings to look into.
    listed: AtomicBool,
    /// New bytes are of no use now: the peer has to read first.
    paused: AtomicBool,
    /// Bytes wait for room.
    wants_room: AtomicBool,
    closed: AtomicBool,
}

impl Line {
    pub(super) fn new(page: Page, producer: Producer, consumer: Consumer) -> Self {
        let off = || AtomicBool::new(false);
        Self {
            page,
            producer,
            consumer,
            token: AtomicUsize::new(0),
            listed: off(),
            paused: off(),
            wants_room: off(),
            closed: off(),
        }
    }

    pub(super) fn set_token(&self, token: Token) {
        self.token.store(token.0, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Asks for a bell.
    pub(super) fn sleep(&self) {
        self.consumer.ask_for_bytes(&self.page);
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Whether there is something to do, as far as the other side can be believed.
    fn is_ready(&self) -> bool {
        let has_bytes = !self.is_paused() && self.consumer.may_have_more(&self.page);
        let has_room = || self.producer.may_have_room(&self.page, TELL_EVERY);
        has_bytes || (self.wants_room.load(Ordering::Relaxed) && has_room())
    }
}

/// A connection's line, if it has one.
pub struct Watched<'a>(pub(super) Option<&'a Arc<Line>>);

impl Watched<'_> {
    /// A connection that goes through no memory.
    pub const NOTHING: Self = Self(None);

    /// Nothing is left to read: from now on whoever waits looks into it.
    pub fn look(&self, watch: &WatchList, token: Token) {
        if let Some(line) = self.0
            && !line.listed.swap(true, Ordering::Relaxed)
        {
            line.set_token(token);
            lock(&watch.0).push(line.clone());
        }
    }

    /// Whether bytes wait for room in it.
    pub fn wants_room(&self, wants: bool) {
        if let Some(line) = self.0 {
            line.wants_room.store(wants, Ordering::Relaxed);
        }
    }

    /// Whether new bytes are of no use.
    pub fn pause(&self, paused: bool) {
        if let Some(line) = self.0 {
            line.paused.store(paused, Ordering::Relaxed);
        }
    }
}

/// The rings to look into, handed from the thread that moves bytes to the one that waits.
#[derive(Clone, Default)]
pub struct WatchList(Arc<Mutex<Vec<Arc<Line>>>>);

/// The rings that a waiter looks into.
pub struct WatchedRings {
    watch: WatchList,
    lines: Vec<Arc<Line>>,
}

impl WatchedRings {
    /// The waiter's side.
    pub fn of(watch: &WatchList) -> Self {
        Self { watch: watch.clone(), lines: Vec::new() }
    }

    /// Looks once. Calls `ready` for each ring with something to do and returns whether any had.
    pub fn look(&mut self, mut ready: impl FnMut(Token)) -> bool {
        self.lines.append(&mut lock(&self.watch.0));
        self.lines.retain(|line| !line.closed.load(Ordering::Relaxed));
        let mut any = false;
        for line in self.lines.iter().filter(|line| line.is_ready()) {
            any = true;
            ready(Token(line.token.load(Ordering::Relaxed)));
        }
        any
    }

    /// Looks for a while, and if nothing comes asks for bells. Returns whether there is something
    /// to do, in which case the thread must not sleep.
    pub fn look_before_sleep(&mut self, mut ready: impl FnMut(Token)) -> bool {
        if self.look(&mut ready) {
            return true;
        }
        if self.lines.is_empty() {
            return false;
        }
        for look in 0..LOOKS {
            if look < LOOKS_ALONE {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            if self.lines.iter().any(|line| line.is_ready()) {
                return self.look(ready);
            }
        }
        let mut any = false;
        self.lines.retain(|line| {
            // Whoever reads it dry from now on lists it again.
            line.listed.store(false, Ordering::Relaxed);
            line.sleep();
            let is_ready = line.is_ready();
            if is_ready {
                any = true;
                line.consumer.ask_no_more(&line.page);
                ready(Token(line.token.load(Ordering::Relaxed)));
            }
            false
        });
        any
    }
}

//! How one thread waits for many rings: it polls the rings that were busy lately for a few
//! microseconds, then requests doorbells and sleeps (spin, then sleep).
//!
//! A ring is either polled or has a doorbell requested. A wait that is about to block requests the
//! doorbells of all rings that it polled, and looks into them once more. So an idle ring costs a
//! wait nothing.

use super::page::Page;
use super::ring::{Consumer, Producer, TELL_EVERY};
use crate::lock;
use mio::Token;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Polls before a thread sleeps. Together they take about 15 µs, as long as sleeping and waking up
/// take, so polling in vain at most doubles the cost. The last polls yield the core: with more
/// threads than cores, the peer may wait for this core.
const LOOKS: u32 = LOOKS_ALONE + 8;
/// Polls that do not yield the core.
const LOOKS_ALONE: u32 = 256;

/// Both rings of a connection. The thread that moves bytes and the thread that waits share it.
pub struct Line {
    pub(super) page: Page,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    token: AtomicUsize,
    /// Whether a waiter polls it.
    listed: AtomicBool,
    /// Whether new bytes wait unread until the peer has read its answers.
    paused: AtomicBool,
    /// Whether bytes wait for room.
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

    /// Requests a doorbell for new bytes.
    pub(super) fn sleep(&self) {
        self.consumer.ask_for_bytes(&self.page);
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Whether there is something to read, or room for bytes that wait, by the peer's unchecked
    /// positions.
    fn is_ready(&self) -> bool {
        let has_bytes = !self.is_paused() && self.consumer.may_have_more(&self.page);
        let has_room = || self.producer.may_have_room(&self.page, TELL_EVERY);
        has_bytes || (self.wants_room.load(Ordering::Relaxed) && has_room())
    }
}

/// The rings of a connection, if it has shared memory. Without, every method does nothing.
pub struct Watched<'a>(pub(super) Option<&'a Arc<Line>>);

impl Watched<'_> {
    /// A connection without shared memory.
    pub const NOTHING: Self = Self(None);

    /// All bytes have been read: hands the rings to the waiter, which polls them from now on.
    pub fn look(&self, watch: &WatchList, token: Token) {
        if let Some(line) = self.0
            && !line.listed.swap(true, Ordering::Relaxed)
        {
            line.set_token(token);
            lock(&watch.0).push(line.clone());
        }
    }

    /// Sets whether bytes wait for room.
    pub fn wants_room(&self, wants: bool) {
        if let Some(line) = self.0 {
            line.wants_room.store(wants, Ordering::Relaxed);
        }
    }

    /// Sets whether new bytes stay unread until the peer has read its answers.
    pub fn pause(&self, paused: bool) {
        if let Some(line) = self.0 {
            line.paused.store(paused, Ordering::Relaxed);
        }
    }
}

/// Rings to poll, passed from the thread that moves bytes to the thread that waits.
#[derive(Clone, Default)]
pub struct WatchList(Arc<Mutex<Vec<Arc<Line>>>>);

/// The rings that a waiter polls.
pub struct WatchedRings {
    watch: WatchList,
    lines: Vec<Arc<Line>>,
}

impl WatchedRings {
    /// The waiter's side of `watch`.
    pub fn of(watch: &WatchList) -> Self {
        Self { watch: watch.clone(), lines: Vec::new() }
    }

    /// Polls once. Calls `ready` for each ring that is ready, and returns whether any was.
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

    /// Polls for about 15 µs. If no ring becomes ready, requests doorbells from all of them.
    /// Returns whether a ring is ready: then the thread must not sleep.
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
            // The thread that next reads all its bytes lists it again.
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

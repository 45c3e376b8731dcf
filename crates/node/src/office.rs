//! The thread that talks to the registry for a coordinator, so that one that answers late, or never, holds up nobody.

use crate::NodeError;
use crate::contact::{beat_every, span};
use crate::registry::{Registry, RegistryError, Standing};
use net::Waker;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::Measured;

/// How often people are told that the registry does not answer.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// What the coordinator wants.
enum Wish {
    /// That this memory be kept. A later one includes what an earlier one says.
    Keep(u64, Vec<u8>),
    /// To stand anew: its lease has ended.
    Stand,
    /// That nothing be kept: the run is over.
    Forget,
    /// To lead no more.
    Resign,
}

/// What came of it.
pub(crate) enum Word {
    /// This coordinator leads, until then, and goes on from this memory.
    Leads { term: u64, until: Instant, memory: Option<Vec<u8>> },
    /// There was a memory, and there is none: the run is over.
    Over,
    /// It leads on, until then.
    Until(Instant),
    /// The memory of this number is kept, and so are those before.
    Kept(u64),
    /// Another leads.
    Follows(String),
    /// It leads no more, and nobody is known to.
    Ended,
    /// The registry does not answer, in its own words.
    Unreachable(String),
    /// It never will.
    Hopeless(RegistryError),
}

/// A coordinator's way to the thread.
pub(crate) struct Office {
    wishes: Sender<Wish>,
    words: Receiver<Word>,
    thread: Option<JoinHandle<()>>,
}

impl Office {
    /// Stands for election from now on. `waker` is used when there is a word.
    pub fn open(registry: Box<dyn Registry>, waker: Waker, patience: Duration) -> Result<Self, NodeError> {
        let (wishes, taken) = channel();
        let (said, words) = channel();
        let (every, trip) = (beat_every(patience), Measured::default());
        let clerk =
            Clerk { registry, said, waker, every, trip, leads: false, has_seen: false, pending: None, told: None };
        let thread = std::thread::Builder::new().name("registry".to_owned()).spawn(move || clerk.work(&taken));
        let no_thread =
            |error: std::io::Error| NodeError::NoThread { name: "the registry".to_owned(), reason: error.to_string() };
        Ok(Self { wishes, words, thread: Some(thread.map_err(no_thread)?) })
    }

    /// Has a memory kept. Numbers grow.
    pub fn keep(&self, number: u64, memory: Vec<u8>) {
        self.wishes.send(Wish::Keep(number, memory)).ok();
    }

    /// Has it stand anew.
    pub fn stand(&self) {
        self.wishes.send(Wish::Stand).ok();
    }

    /// Has the memory removed: the run is over, and nobody goes on from it.
    pub fn forget(&self) {
        self.wishes.send(Wish::Forget).ok();
    }

    /// What came of it since this was last asked.
    pub fn words(&self) -> impl Iterator<Item = Word> + '_ {
        self.words.try_iter()
    }
}

impl Drop for Office {
    /// Another is let in at once, if the registry can be told.
    fn drop(&mut self) {
        self.wishes.send(Wish::Resign).ok();
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

struct Clerk {
    registry: Box<dyn Registry>,
    said: Sender<Word>,
    waker: Waker,
    /// How often a lease is renewed, or asked for.
    every: Duration,
    /// How long the registry takes to answer.
    trip: Measured,
    leads: bool,
    /// Whether another coordinator's memory was there.
    has_seen: bool,
    pending: Option<(u64, Vec<u8>)>,
    told: Option<Instant>,
}

impl Clerk {
    fn work(mut self, wishes: &Receiver<Wish>) {
        let mut next = Instant::now();
        loop {
            let pause = next.saturating_duration_since(Instant::now());
            match wishes.recv_timeout(pause) {
                Ok(Wish::Keep(number, memory)) => {
                    self.pending = Some((number, memory));
                    // Of those that wait already, only the last need be kept.
                    while let Ok(wish) = wishes.try_recv() {
                        match wish {
                            Wish::Keep(number, memory) => self.pending = Some((number, memory)),
                            Wish::Stand => (self.leads, self.pending) = (false, None),
                            Wish::Forget => self.forget(),
                            Wish::Resign => return drop(self.registry.resign()),
                        }
                    }
                }
                Ok(Wish::Stand) => (self.leads, self.pending, next) = (false, None, Instant::now()),
                Ok(Wish::Forget) => self.forget(),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Wish::Resign) | Err(RecvTimeoutError::Disconnected) => return drop(self.registry.resign()),
            }
            let now = Instant::now();
            let done = if now >= next { self.ask(now) } else { Ok(()) };
            let done = done.and_then(|()| self.keep());
            next = match done {
                Ok(()) if now >= next => {
                    self.trip.observe(span(now.elapsed()));
                    now + self.every
                }
                Ok(()) => next,
                Err(error) => {
                    self.failed(error);
                    // What could not be done is tried again when an answer would be late.
                    let again = self.trip.limit(span(self.every / 5), span(self.every));
                    Instant::now() + Duration::from_nanos(again.0)
                }
            };
        }
    }

    /// Renews the lease, or asks for one.
    fn ask(&mut self, now: Instant) -> Result<(), RegistryError> {
        if self.leads {
            let until = self.registry.keep(now)?;
            self.say(Word::Until(until));
            return Ok(());
        }
        let word = match self.registry.campaign(now)? {
            Standing::Leading { term, until } => {
                let memory = self.registry.load()?;
                (self.leads, self.pending) = (true, None);
                if memory.is_none() && self.has_seen { Word::Over } else { Word::Leads { term, until, memory } }
            }
            Standing::Following { leader } => {
                // Whoever has seen a memory knows what it means when there is none any more.
                self.has_seen = self.has_seen || self.registry.load()?.is_some();
                Word::Follows(leader)
            }
        };
        self.say(word);
        Ok(())
    }

    fn forget(&mut self) {
        self.pending = None;
        if let Err(error) = self.registry.forget(Instant::now()) {
            tracing::warn!("the memory of this run, which is over, stays in the registry: {error}");
        }
    }

    fn keep(&mut self) -> Result<(), RegistryError> {
        if let Some((number, memory)) = self.pending.as_ref().filter(|_| self.leads) {
            let number = *number;
            self.registry.save(Instant::now(), memory)?;
            (self.pending, self.has_seen) = (None, true);
            self.say(Word::Kept(number));
        }
        Ok(())
    }

    fn failed(&mut self, error: RegistryError) {
        match error {
            RegistryError::NotLeading { leader } => {
                (self.leads, self.pending) = (false, None);
                match leader {
                    Some(leader) => self.say(Word::Follows(leader)),
                    // The registry need not have said so: a clock shows it, too.
                    None => self.unheard(Word::Ended),
                }
            }
            // Whoever runs etcd may mend what it refuses for.
            error @ (RegistryError::Unreachable { .. } | RegistryError::Refused { .. }) => {
                if self.told.is_none_or(|told| told.elapsed() > TELL_AFTER) {
                    self.told = Some(Instant::now());
                    self.unheard(Word::Unreachable(error.to_string()));
                }
            }
            error => self.unheard(Word::Hopeless(error)),
        }
    }

    /// Says what the registry answered.
    fn say(&mut self, word: Word) {
        if self.told.take().is_some() {
            tracing::warn!("the registry answers again");
        }
        self.unheard(word);
    }

    fn unheard(&self, word: Word) {
        // Whoever does not listen any more has told this thread to end.
        self.said.send(word).ok();
        self.waker.wake();
    }
}

//! Who talks to the registry for a coordinator: a thread, so that one that answers late, or never, holds up nobody; and where the registry
//! is this process's own and answers at once, nobody else.

use crate::NodeError;
use crate::contact::{beat_every, span};
use crate::registry::{Candidate, InProcess, Registry, RegistryError, Standing};
use net::Waker;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use types::Measured;

/// How often people are told that the registry does not answer.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// The lease of a coordinator that no other stands beside: as long as it lives.
const FOR_LIFE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

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

/// A coordinator's way to the registry.
pub(crate) struct Office {
    clerk: Desk,
    words: Receiver<Word>,
}

/// Where the clerk is.
enum Desk {
    /// Here: it is done with a wish when the wish was said.
    Here(Box<Clerk>),
    Thread {
        wishes: Sender<Wish>,
        thread: Option<JoinHandle<()>>,
    },
}

impl Office {
    /// Stands for election from now on. `waker` is used when there is a word.
    pub fn open(registry: Box<dyn Registry>, waker: Waker, patience: Duration) -> Result<Self, NodeError> {
        let (wishes, taken) = channel();
        let (clerk, words) = Clerk::new(registry, Some(waker), patience);
        let thread = std::thread::Builder::new().name("registry".to_owned()).spawn(move || clerk.work(&taken));
        let no_thread =
            |error: std::io::Error| NodeError::NoThread { name: "the registry".to_owned(), reason: error.to_string() };
        Ok(Self { clerk: Desk::Thread { wishes, thread: Some(thread.map_err(no_thread)?) }, words })
    }

    /// For the only coordinator of a job, whose memory is this process's.
    pub fn alone(job: &str, patience: Duration) -> Self {
        let candidate = Candidate { lease: FOR_LIFE, ..Candidate::new(job, "") };
        let (clerk, words) = Clerk::new(Box::new(InProcess::new().stand(candidate)), None, patience);
        Self { clerk: Desk::Here(Box::new(clerk)), words }
    }

    /// Whether no other coordinator stands.
    pub fn is_alone(&self) -> bool {
        matches!(self.clerk, Desk::Here(_))
    }

    /// Has a memory kept. Numbers grow.
    pub fn keep(&mut self, number: u64, memory: &[u8]) {
        self.wish(Wish::Keep(number, memory.to_vec()));
    }

    /// Has it stand anew.
    pub fn stand(&mut self) {
        self.wish(Wish::Stand);
    }

    /// Has the memory removed: the run is over, and nobody goes on from it.
    pub fn forget(&mut self) {
        self.wish(Wish::Forget);
    }

    /// Lets another lead, at once if the registry can be told.
    pub fn resign(&mut self) {
        self.wish(Wish::Resign);
        if let Desk::Thread { thread, .. } = &mut self.clerk {
            thread.take().into_iter().for_each(|thread| drop(thread.join()));
        }
    }

    fn wish(&mut self, wish: Wish) {
        match &mut self.clerk {
            Desk::Here(clerk) => {
                if clerk.take(wish).is_continue() {
                    clerk.turn();
                }
            }
            // A thread that is no more has said why.
            Desk::Thread { wishes, .. } => drop(wishes.send(wish)),
        }
    }

    /// What came of it since this was last asked.
    pub fn words(&mut self) -> Vec<Word> {
        if let Desk::Here(clerk) = &mut self.clerk {
            clerk.turn();
        }
        self.words.try_iter().collect()
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.resign();
    }
}

struct Clerk {
    registry: Box<dyn Registry>,
    said: Sender<Word>,
    waker: Option<Waker>,
    /// How often a lease is renewed, or asked for.
    every: Duration,
    /// How long the registry takes to answer.
    trip: Measured,
    leads: bool,
    /// Whether another coordinator's memory was there.
    has_seen: bool,
    pending: Option<(u64, Vec<u8>)>,
    told: Option<Instant>,
    /// When the registry is asked next.
    next: Instant,
}

impl Clerk {
    fn new(registry: Box<dyn Registry>, waker: Option<Waker>, patience: Duration) -> (Self, Receiver<Word>) {
        let (said, words) = channel();
        let (every, trip, next) = (beat_every(patience), Measured::default(), Instant::now());
        let (leads, has_seen, pending, told) = (false, false, None, None);
        (Self { registry, said, waker, every, trip, leads, has_seen, pending, told, next }, words)
    }

    fn work(mut self, wishes: &Receiver<Wish>) {
        loop {
            match wishes.recv_timeout(self.next.saturating_duration_since(Instant::now())) {
                // Of the memories that wait already, only the last need be kept.
                Ok(first) => {
                    for wish in std::iter::once(first).chain(wishes.try_iter()) {
                        if self.take(wish).is_break() {
                            return;
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return drop(self.registry.resign()),
            }
            self.turn();
        }
    }

    /// Takes a wish, of which resigning is the last.
    fn take(&mut self, wish: Wish) -> ControlFlow<()> {
        match wish {
            Wish::Keep(number, memory) => self.pending = Some((number, memory)),
            Wish::Stand => (self.leads, self.pending, self.next) = (false, None, Instant::now()),
            Wish::Forget => self.forget(),
            Wish::Resign => {
                // It leads no more, whether or not that could be told.
                self.registry.resign().ok();
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    /// Does what is due.
    fn turn(&mut self) {
        let now = Instant::now();
        let is_due = now >= self.next;
        let done = if is_due { self.ask(now) } else { Ok(()) };
        match done.and_then(|()| self.keep()) {
            Ok(()) if is_due => {
                self.trip.observe(span(now.elapsed()));
                self.next = now + self.every;
            }
            Ok(()) => {}
            Err(error) => {
                self.failed(error);
                // What could not be done is tried again when an answer would be late.
                let again = self.trip.limit(span(self.every / 5), span(self.every));
                self.next = Instant::now() + Duration::from_nanos(again.0);
            }
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
        self.waker.iter().for_each(Waker::wake);
    }
}

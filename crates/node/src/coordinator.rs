//! The thread that runs the coordinator.

use crate::checkpoints::Keeper;
use crate::probe::Probes;
use crate::record::{Recorder, Subject};
use crate::server::forward;
use crate::{CheckpointSettings, Leave, NodeError};
use machine::{Coordinator, CoordinatorInput, Membership, Outbox, Resume, Size};
use net::{Event, Transport, Waiter};
use std::time::{Duration, Instant};
use types::{Span, Time};

/// Why the run ends with a coordinator that is told to leave.
const ALONE: &str =
    "it was told to leave, and no other could lead; several coordinators with a registry take over from each other";

/// How a coordinator is run.
#[derive(Clone, Debug)]
pub struct CoordinatorSettings {
    /// How many nodes the run has.
    pub size: Size,
    /// Whether others may come later, and some may be lost.
    pub membership: Membership,
    /// It gives up if the run has not begun after this long.
    pub join_limit: Duration,
    /// A node that is silent for this long is lost.
    pub patience: Duration,
    /// When everybody has said goodbye it stays this long to repeat its own, which a broken connection may have lost.
    pub farewell: Duration,
    /// After a loss it stays this long to tell everybody who asks.
    pub linger: Duration,
    /// Where checkpoints are kept, if any are made.
    pub checkpoints: Option<CheckpointSettings>,
    /// The checkpoint that the run goes on from.
    pub resume: Option<Resume>,
    /// The job that it is for: who says that it is of another is turned away. Empty if that does not matter.
    pub job: String,
    /// Tells it to leave: one of several lets another lead, and the only one ends the run.
    pub leave: Leave,
}

impl CoordinatorSettings {
    /// For a run of this size, with the usual times.
    #[must_use]
    pub fn new(size: Size) -> Self {
        let usual = Duration::from_secs(30);
        let (farewell, linger) = (Duration::from_millis(200), Duration::from_secs(3));
        let membership = Membership::Fixed;
        let (checkpoints, resume, job, leave) = (None, None, String::new(), Leave::default());
        let (join_limit, patience) = (usual, usual);
        Self { size, membership, join_limit, patience, farewell, linger, checkpoints, resume, job, leave }
    }
}

/// Runs a coordinator until everybody has left, or until a node is lost.
pub fn run_coordinator(
    mut transport: impl Transport,
    mut waiter: impl Waiter,
    settings: CoordinatorSettings,
    mut recorder: Option<Recorder>,
) -> Result<(), NodeError> {
    let CoordinatorSettings {
        size,
        membership,
        join_limit,
        patience,
        farewell,
        linger,
        checkpoints,
        resume,
        job,
        leave,
    } = settings;
    let probes = Probes::within(patience);
    let patience = Span(patience.as_nanos() as u64);
    let start = Instant::now();
    let mut machine = Coordinator::new(size, membership, patience).of_job(&job);
    if let Some(recorder) = &mut recorder {
        recorder.begin(Subject::Coordinator { size, membership, patience })?;
    }
    if let Some(resume) = &resume {
        tracing::info!(clock = resume.clock.0, slices = resume.slices, "resuming from {}", resume.name);
        if let Some(recorder) = &recorder {
            recorder.input(CoordinatorInput::Resume(Box::new(resume.clone())));
        }
        machine.resume(resume.clone());
    }
    let no_thread =
        |error: std::io::Error| NodeError::NoThread { name: "checkpoints".into(), reason: error.to_string() };
    let mut keeper =
        checkpoints.map(|settings| Keeper::start(settings, resume.as_ref(), true)).transpose().map_err(no_thread)?;
    let mut out = Outbox::new();
    let mut ending: Option<Instant> = None;
    let mut said = Instant::now();
    loop {
        waiter.wait(Some(Duration::from_millis(50)));
        let now = Time(start.elapsed().as_nanos() as u64);
        while let Some(event) = transport.next() {
            // A broken connection is not a dead node: it has until the end of everybody's patience to call again. But one whose process
            // has ended need not be waited for.
            if let Event::Disconnected(node) = event
                && let Some(address) = machine.address(node)
            {
                probes.ask(node, address);
            }
            if let Event::Frame(frame) = event {
                if let Some(recorder) = &recorder {
                    recorder.input(CoordinatorInput::Frame(now, Box::new(frame.clone())));
                }
                machine.handle(now, frame, &mut out);
                forward(&mut out, &mut transport, recorder.as_ref());
            }
        }
        for node in probes.ended() {
            if let Some(recorder) = &recorder {
                recorder.input(CoordinatorInput::Gone(node));
            }
            machine.gone(node, &mut out);
            forward(&mut out, &mut transport, recorder.as_ref());
        }
        if let Some(recorder) = &recorder {
            recorder.input(CoordinatorInput::Tick(now));
        }
        machine.tick(now, &mut out);
        forward(&mut out, &mut transport, recorder.as_ref());
        let told = keeper.as_mut().map(|keeper| keeper.turn(now, &mut machine, &mut out));
        if let Some(recorder) = &recorder {
            told.into_iter().flatten().for_each(|input| recorder.input(input));
        }
        forward(&mut out, &mut transport, recorder.as_ref());
        if leave.is_asked() && machine.lost().is_none() && !machine.is_finished() {
            if !machine.has_begun() {
                return Err(NodeError::LeftEarly);
            }
            if let Some(recorder) = &recorder {
                recorder.input(CoordinatorInput::GiveUp(ALONE.to_owned()));
            }
            machine.give_up(ALONE.to_owned(), &mut out);
            forward(&mut out, &mut transport, recorder.as_ref());
        }
        transport.flush();
        say_news(&mut machine);
        if let Some(missing) = machine.missing().filter(|_| said.elapsed() > Duration::from_secs(5)) {
            said = Instant::now();
            tracing::info!(seconds = start.elapsed().as_secs(), "{missing}");
        }
        if !machine.has_begun() && start.elapsed() > join_limit {
            let reason = machine.missing().unwrap_or_else(|| "a node went away before the others had come".to_owned());
            return Err(NodeError::NotBegun { seconds: join_limit.as_secs(), reason });
        }
        let over = machine.is_finished() || machine.lost().is_some();
        if over && ending.is_none() {
            ending = Some(Instant::now());
        }
        let stay = if machine.lost().is_some() { linger } else { farewell };
        if ending.is_some_and(|ending| ending.elapsed() >= stay) {
            if let Some(keeper) = keeper.take() {
                keeper.finish(&mut machine);
            }
            return match machine.lost() {
                Some((node, reason)) => Err(NodeError::Lost { node, reason: reason.to_owned() }),
                None => Ok(()),
            };
        }
    }
}

/// Tells people who came and went.
pub(crate) fn say_news(machine: &mut Coordinator) {
    for news in machine.take_news() {
        tracing::warn!(node = %news.node, "{}", news.what);
    }
}

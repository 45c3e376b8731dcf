//! The processes of a run on this host: started, listened to, replaced where the run does without those that die, and never left behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::GIVEN_UP;
use anyhow::{Context, bail};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// How often the children are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// The exit status of a process whose main thread has panicked.
const PANICKED: i32 = 101;

/// Processes that are started in the place of others: if more die, something is wrong with all of them.
const MOST_REPLACED: u32 = 64;

/// When the processes are ended, rather than waited for.
pub(crate) struct Patience {
    /// So many interrupts are passed on to the workers, which heed them; the next one ends everybody.
    pub(crate) interrupts: u32,
    /// So many orders to leave are passed on to the workers, where they may leave; the next one ends everybody.
    pub(crate) leave_orders: u32,
    /// The signal that they are passed on by.
    pub(crate) leave_by: i32,
    pub(crate) after_a_death: Duration,
}

/// What is started in the place of those that die, in a run that does without them.
pub(crate) struct Spares {
    pub(crate) server: Option<Vec<OsString>>,
    /// None where the program goes with the workers that it began with.
    pub(crate) worker: Option<Vec<OsString>>,
}

/// The processes of the run. Dropping them ends those that are still there.
#[derive(Default)]
pub(crate) struct Children {
    /// What is started in the place of others, where the run does without those that die.
    pub(crate) spares: Option<Spares>,
    /// Who is to be killed, and how long after the start.
    pub(crate) kills: Vec<(Duration, String)>,
    replaced: u32,
    /// When the coordinator had done what there was to do: the run is over.
    over: Option<Instant>,
    running: Vec<Running>,
    /// Threads that pass on what the children say.
    mouths: Vec<(String, JoinHandle<Option<String>>)>,
}

/// A child that did not end well.
struct Death {
    name: String,
    obituary: String,
    by_signal: bool,
    /// Whether it had taken another's place: then it may have come when the run was over, and does not matter if that went well.
    is_spare: bool,
}

/// The death that the others followed from, as far as can be told: one that was killed, or that speaks of itself.
fn cause<'a>(deaths: &'a [Death], last_words: &BTreeMap<String, String>) -> Option<&'a Death> {
    let blames_another = |death: &&Death| {
        let words = last_words.get(&death.name).map_or("", String::as_str);
        words.contains("lost ") || words.contains("another worker could not go on")
    };
    let killed = deaths.iter().find(|death| death.by_signal);
    killed.or_else(|| deaths.iter().find(|death| !blames_another(death))).or(deaths.first())
}

struct Running {
    name: String,
    child: Child,
    is_spare: bool,
}

impl Running {
    /// What it is called and how it ended.
    fn obituary(&self, status: ExitStatus) -> String {
        format!("{} (process {}) {}", self.name, self.child.id(), in_words(status))
    }
}

impl Children {
    /// Starts a process of the run.
    pub(crate) fn start(&mut self, name: String, arguments: Vec<OsString>) -> anyhow::Result<()> {
        self.start_as(name, arguments, false)
    }

    fn start_as(&mut self, name: String, arguments: Vec<OsString>, is_spare: bool) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().with_context(|| format!("cannot start {} as {name}", program.display()))?;
        // What a worker prints is the result, which another program may want to read as it is. Only one of them does.
        let prefix = if name.starts_with("worker") { String::new() } else { format!("{name} | ") };
        let said = child.stdout.take().map(|said| std::thread::spawn(move || pass_on(said, io::stdout(), &prefix)));
        let prefix = format!("{name} | ");
        let logged = child.stderr.take().map(|said| std::thread::spawn(move || pass_on(said, io::stderr(), &prefix)));
        self.mouths.extend(said.into_iter().chain(logged).map(|mouth| (name.clone(), mouth)));
        tracing::info!(process = child.id(), "started {name}");
        self.running.push(Running { name, child, is_spare });
        Ok(())
    }

    /// Waits until every child has ended; once one has died, or a signal came, not for ever.
    pub(crate) fn see_through(mut self, stop: &AtomicUsize, mut patience: Patience) -> anyhow::Result<()> {
        let mut deaths: Vec<Death> = Vec::new();
        let mut first_death: Option<Instant> = None;
        let begin = Instant::now();
        while !self.running.is_empty() {
            self.kill_due(begin.elapsed())?;
            for (running, status) in self.reap()? {
                if status.success() {
                    // A worker may just have left.
                    if running.name == "coordinator" {
                        self.over.get_or_insert_with(Instant::now);
                    }
                    continue;
                }
                let obituary = running.obituary(status);
                eprintln!("launch | {obituary}");
                let by_signal = status.code().is_none();
                // One that fails by itself would do so again.
                let by_chance = by_signal
                    || status.code() == Some(GIVEN_UP.into())
                    || running.name.starts_with("server") && status.code() == Some(PANICKED);
                if by_chance && self.does_without(&running.name)? || self.over.is_some() {
                    continue;
                }
                if !running.is_spare {
                    first_death.get_or_insert_with(Instant::now);
                }
                let Running { name, is_spare, .. } = running;
                deaths.push(Death { name, obituary, by_signal, is_spare });
            }
            match stop.swap(0, Ordering::Relaxed) {
                0 => {}
                signal if signal == SIGINT as usize && patience.interrupts > 0 => {
                    patience.interrupts -= 1;
                    self.tell_workers(SIGINT);
                }
                signal if [SIGTERM, SIGUSR1].contains(&(signal as i32)) && patience.leave_orders > 0 => {
                    patience.leave_orders -= 1;
                    eprintln!(
                        "launch | told to leave by signal {signal}: the workers stop, and the servers end with the run"
                    );
                    self.tell_workers(patience.leave_by);
                }
                signal => {
                    self.end();
                    bail!("stopped by signal {signal}; every process of the run has been ended");
                }
            }
            if first_death.is_some_and(|death| death.elapsed() > patience.after_a_death) {
                self.say_ended(|_| true);
                self.end();
            }
            if self.over.is_some_and(|over| over.elapsed() > patience.after_a_death) {
                // They came too late, and look for a run that is no more.
                self.say_ended(|running| running.is_spare);
                let (late, others) =
                    std::mem::take(&mut self.running).into_iter().partition(|running| running.is_spare);
                self.running = late;
                self.end();
                self.running = others;
            }
            std::thread::sleep(LOOK);
        }
        // Everything said is passed on before the last word.
        let mut last_words: BTreeMap<String, String> = BTreeMap::new();
        for (name, mouth) in self.mouths.drain(..) {
            last_words.extend(mouth.join().ok().flatten().map(|words| (name, words)));
        }
        if self.over.is_some() {
            deaths.retain(|death| !death.is_spare);
        }
        match cause(&deaths, &last_words) {
            None => Ok(()),
            Some(Death { name, obituary, .. }) => match last_words.get(name) {
                Some(words) => bail!("the run failed: {obituary}, saying: {words}"),
                None => bail!("the run failed: {obituary}"),
            },
        }
    }

    /// Whether the run goes on without a process that was killed: mostly another takes its place.
    fn does_without(&mut self, name: &str) -> anyhow::Result<bool> {
        let Some(spares) = self.spares.as_ref().filter(|_| name != "coordinator") else { return Ok(false) };
        let is_worker = name.starts_with("worker");
        let goes_on = !is_worker || self.running.iter().any(|other| other.name.starts_with("worker"));
        let Some(spare) = (if is_worker { &spares.worker } else { &spares.server }).clone() else { return Ok(goes_on) };
        if self.over.is_some() || !goes_on {
            return Ok(self.over.is_some());
        }
        if self.replaced == MOST_REPLACED {
            eprintln!(
                "launch | {MOST_REPLACED} processes have been replaced, and no more are: something is wrong with all of them"
            );
            return Ok(is_worker);
        }
        self.replaced += 1;
        eprintln!("launch | another is started in its place, {} of {MOST_REPLACED} at most", self.replaced);
        let kind = if is_worker { "worker" } else { "server" };
        let first = name.rsplit(" in place of ").next().unwrap_or(name);
        self.start_as(format!("{kind} in place of {first}"), spare, true)?;
        Ok(true)
    }

    /// Says who is about to be ended.
    fn say_ended(&self, who: impl Fn(&Running) -> bool) {
        for Running { name, child, .. } in self.running.iter().filter(|running| who(running)) {
            eprintln!("launch | {name} (process {}) is still there, and is ended", child.id());
        }
    }

    /// Kills whoever is to be killed by now.
    fn kill_due(&mut self, elapsed: Duration) -> io::Result<()> {
        let (due, later) = std::mem::take(&mut self.kills).into_iter().partition(|(after, _)| *after <= elapsed);
        self.kills = later;
        for (_, name) in due {
            for running in self.running.iter_mut().filter(|running| running.name == name) {
                eprintln!("demo | {name} (process {}) is killed", running.child.id());
                running.child.kill()?;
            }
        }
        Ok(())
    }

    /// Takes out those that have ended, and how.
    fn reap(&mut self) -> io::Result<Vec<(Running, ExitStatus)>> {
        let mut ended = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            match running.child.try_wait()? {
                Some(status) => ended.push((running, status)),
                None => self.running.push(running),
            }
        }
        Ok(ended)
    }

    /// Passes a signal on to the workers; the servers end with the run.
    fn tell_workers(&self, signal: i32) {
        #[cfg(unix)]
        let Some(signal) = rustix::process::Signal::from_named_raw(signal) else { return };
        #[cfg(unix)]
        for Running { name, child, .. } in &self.running {
            if name.starts_with("worker") {
                // Fails only if it has ended already.
                rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).ok();
            }
        }
    }

    /// Ends those that are still there, by process id.
    fn end(&mut self) {
        for running in &mut self.running {
            // Both fail only if it has ended already.
            running.child.kill().ok();
            running.child.wait().ok();
        }
        self.running.clear();
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

fn in_words(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("died: signal {signal}");
    }
    status.code().map_or("died".to_owned(), |code| format!("failed: exit status {code}"))
}

/// Passes on a child's lines, each in one piece behind its prefix, until the child closes its end. Returns the last error
/// that it spoke of.
fn pass_on(said: impl Read, mut to: impl Write, prefix: &str) -> Option<String> {
    let mut said = BufReader::new(said);
    let mut line = Vec::new();
    let mut error = None;
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        match said.read_until(b'\n', &mut line) {
            Ok(read) if read > 0 => {}
            _ => return error,
        }
        if let Some(words) = line[prefix.len()..].strip_prefix(b"error: ") {
            error = Some(String::from_utf8_lossy(words.trim_ascii()).into_owned());
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        // Whoever read it may have heard enough; the child is still listened to, so that it does not stall.
        to.write_all(&line).and_then(|()| to.flush()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_passed_on_in_one_piece_behind_its_prefix() {
        for (said, expected) in [("", ""), ("a\nb\n", "w | a\nw | b\n"), ("a\n\nno end", "w | a\nw | \nw | no end\n")] {
            let mut heard = Vec::new();
            assert_eq!(pass_on(said.as_bytes(), &mut heard, "w | "), None);
            assert_eq!(String::from_utf8(heard).unwrap(), expected);
        }
        let said = "error: a\nerror: b \nno error: c\n";
        assert_eq!(pass_on(said.as_bytes(), Vec::new(), "w | ").as_deref(), Some("b"));
    }

    #[test]
    fn the_cause_is_whoever_was_killed_or_speaks_of_itself() {
        let death = |name: &str, by_signal| {
            let (name, obituary, is_spare) = (name.to_owned(), String::new(), false);
            Death { name, obituary, by_signal, is_spare }
        };
        let words = |words: &[(&str, &str)]| {
            words.iter().map(|(name, said)| ((*name).to_owned(), (*said).to_owned())).collect()
        };
        let deaths = [death("a", false), death("b", false), death("c", true)];
        let found = |deaths, said: &[(&str, &str)]| cause(deaths, &words(said)).map(|death| death.name.clone());
        assert_eq!(found(&deaths[..0], &[]), None);
        assert_eq!(found(&deaths, &[]).as_deref(), Some("c"));
        assert_eq!(found(&deaths[..2], &[("a", "lost b: it could not go on"), ("b", "no file")]).as_deref(), Some("b"));
        assert_eq!(found(&deaths[..2], &[("a", "lost x"), ("b", "lost x")]).as_deref(), Some("a"));
    }
}

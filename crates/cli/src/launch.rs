//! `launch`: a whole run on this host, each server and worker a process of its own.
//!
//! However it ends, no process that it started is left: when one dies, the others get time to notice and say so, and
//! whoever is still there after that is ended by process id. The processes are in groups of their own, so that what a
//! terminal says to stop reaches this process alone, which tells the others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::value_parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};

use crate::logs::Form;
use crate::process::{Limits, Program, Way};
use crate::{checkpoints, replay, train};

/// How often the children are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// After a child has died the others get this long beyond their own patience: the coordinator stays a while to tell all.
const GRACE: Duration = Duration::from_secs(5);

/// Servers that are started in the place of others: if more die, something is wrong with all of them.
const MOST_REPLACED: u32 = 64;

/// The settings of `launch`.
#[derive(clap::Args)]
pub struct Options {
    /// How many server processes to start; the first is the coordinator too.
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = value_parser!(u32).range(1..=256))]
    servers: u32,
    /// How many worker processes to start.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Let processes come and go: how many servers hold each part of every table. With 2 or more, a server that dies takes nothing with
    /// it, and another is started in its place; a worker that dies is done without. A process of its own coordinates, and must live.
    #[arg(long, value_name = "COUNT", value_parser = value_parser!(u32).range(1..=16))]
    copies: Option<u32>,
    /// How the processes talk: through shared memory, or over TCP as those of different hosts do.
    #[arg(long, value_name = "WAY", default_value = "shared-memory")]
    same_host: Way,
    /// Record everything that each process is told and says, in files of this folder that `slackwater replay` feeds back.
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
    /// Serve metrics of each server process, at this port + its number; port 0 is any free one. For those of workers, say --metrics to
    /// `train`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    checkpoints: checkpoints::Options,
    /// The program to run and its settings: `-- train [SETTINGS]` or `-- demo [SETTINGS]`; `-- train --help` lists them.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// The command `launch`.
pub fn run(options: &Options, log_form: Form) -> anyhow::Result<()> {
    run_killing(options, Vec::new(), log_form)
}

fn run_killing(options: &Options, kills: Vec<(Duration, String)>, log_form: Form) -> anyhow::Result<()> {
    // Settings that make no sense are refused here, once, rather than by every worker.
    let program = Program::parse(&options.program);
    if let Program::Train(train::InRun(given)) = &program
        && given.show
    {
        return train::show(given);
    }
    options.record.as_deref().map(replay::check_folder).transpose()?;
    options.checkpoints.resumed()?;
    let stop = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGQUIT] {
        signal_hook::flag::register_usize(signal, stop.clone(), signal as usize)
            .context("cannot listen for signals")?;
    }
    let meet = free_address()?;
    let mut children = Children::default();
    children.spare = spare_server(options, &meet, log_form);
    children.kills = kills;
    for (name, arguments) in processes(options, &meet, log_form) {
        children.start(name, arguments)?;
    }
    let patience = Patience {
        interrupts: u32::from(program.heeds_interrupts()),
        leave_orders: u32::from(options.copies.is_some()),
        after_a_death: Duration::from_secs(options.limits.patience) + GRACE,
    };
    children.see_through(&stop, patience)
}

/// A run of `program` in which each server's rows are held by another one too, and in which some processes are killed, each after so long.
pub fn demonstrate(
    (servers, workers): (u32, u32),
    program: Vec<OsString>,
    kills: Vec<(Duration, String)>,
    log_form: Form,
) -> anyhow::Result<()> {
    let limits = Limits { join_limit: 300, patience: 2 };
    let (copies, same_host, record, metrics) = (Some(2), Way::SharedMemory, None, None);
    let checkpoints = checkpoints::Options::none();
    let options = Options { servers, workers, copies, same_host, record, metrics, limits, checkpoints, program };
    run_killing(&options, kills, log_form)
}

/// When the processes are ended, rather than waited for.
struct Patience {
    /// So many interrupts are passed on to the workers, which heed them; the next one ends everybody.
    interrupts: u32,
    /// So many orders to leave are passed on to the workers, where they may leave; the next one ends everybody.
    leave_orders: u32,
    after_a_death: Duration,
}

/// A loopback address that nobody listens at.
fn free_address() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on the loopback address")?;
    Ok(listener.local_addr()?.to_string())
}

/// The name and the arguments of every process of the run.
fn processes(options: &Options, meet: &str, log_form: Form) -> Vec<(String, Vec<OsString>)> {
    let Options { servers, workers, copies, same_host, record, metrics, limits, checkpoints, program } = options;
    let common = |kind: &str, place: u32| {
        let mut arguments = vec![kind.to_owned(), format!("--meet={meet}"), format!("--place={place}")];
        arguments.extend([format!("--join-limit={}", limits.join_limit), format!("--patience={}", limits.patience)]);
        arguments.push(format!("--same-host={}", same_host.word()));
        arguments.extend((log_form == Form::Json).then(|| "--log-json".to_owned()));
        let mut arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        // As words of its own: the name of a folder need not be text.
        arguments.extend(record.iter().flat_map(|folder| ["--record".into(), folder.clone().into_os_string()]));
        arguments
    };
    let shape = ["--coordinate".to_owned(), format!("--servers={servers}"), format!("--workers={workers}")];
    let shape: Vec<OsString> = shape.map(OsString::from).into_iter().chain(checkpoints.arguments()).collect();
    let server = |place| {
        let mut arguments = common("server", place);
        arguments.extend(metrics.iter().map(|address| format!("--metrics={address}").into()));
        if place == 0 && copies.is_none() {
            arguments.extend(shape.clone());
        }
        (format!("server {place}"), arguments)
    };
    // Where any server may die, the coordinator is none of them.
    let coordinator = copies.map(|copies| {
        let mut arguments = common("server", 0);
        arguments.extend(["--threads=0".into(), format!("--copies={copies}").into()]);
        arguments.extend(shape.clone());
        ("coordinator".to_owned(), arguments)
    });
    let worker = |place| {
        let arguments = common("worker", place).into_iter();
        let arguments = arguments.chain([OsString::from("--")]).chain(program.iter().cloned());
        (format!("worker {place}"), arguments.collect())
    };
    let servers = (0..*servers).map(server);
    coordinator.into_iter().chain(servers).chain((0..*workers).map(worker)).collect()
}

/// The arguments of a server that takes a dead one's place, in a run that does without those that die.
fn spare_server(options: &Options, meet: &str, log_form: Form) -> Option<Vec<OsString>> {
    options.copies?;
    let last = processes(options, meet, log_form).into_iter().rfind(|(name, _)| name.starts_with("server"));
    let is_own = |word: &OsString| {
        let word = word.to_string_lossy();
        word.starts_with("--place")
    };
    last.map(|(_, arguments)| arguments.into_iter().filter(|word| !is_own(word)).collect())
}

/// The processes of the run. Dropping them ends those that are still there.
#[derive(Default)]
struct Children {
    /// What is started in place of a server that dies, where the run does without it.
    spare: Option<Vec<OsString>>,
    /// Who is to be killed, and how long after the start.
    kills: Vec<(Duration, String)>,
    replaced: u32,
    running: Vec<Running>,
    /// Threads that pass on what the children say.
    mouths: Vec<(String, JoinHandle<Option<String>>)>,
}

/// A child that did not end well.
struct Death {
    name: String,
    obituary: String,
    by_signal: bool,
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
}

impl Running {
    /// What it is called and how it ended.
    fn obituary(&self, status: ExitStatus) -> String {
        format!("{} (process {}) {}", self.name, self.child.id(), in_words(status))
    }
}

impl Children {
    fn start(&mut self, name: String, arguments: Vec<OsString>) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().with_context(|| format!("cannot start {} as {name}", program.display()))?;
        // What the first worker prints is the result, which another program may want to read as it is.
        let prefix = if name == "worker 0" { String::new() } else { format!("{name} | ") };
        let said = child.stdout.take().map(|said| std::thread::spawn(move || pass_on(said, io::stdout(), &prefix)));
        let prefix = format!("{name} | ");
        let logged = child.stderr.take().map(|said| std::thread::spawn(move || pass_on(said, io::stderr(), &prefix)));
        self.mouths.extend(said.into_iter().chain(logged).map(|mouth| (name.clone(), mouth)));
        tracing::info!(process = child.id(), "started {name}");
        self.running.push(Running { name, child });
        Ok(())
    }

    /// Waits until every child has ended; once one has died, or a signal came, not for ever.
    fn see_through(mut self, stop: &AtomicUsize, mut patience: Patience) -> anyhow::Result<()> {
        let mut deaths: Vec<Death> = Vec::new();
        let mut first_death: Option<Instant> = None;
        let begin = Instant::now();
        while !self.running.is_empty() {
            self.kill_due(begin.elapsed())?;
            for (running, status) in self.reap()? {
                if !status.success() {
                    let obituary = running.obituary(status);
                    eprintln!("launch | {obituary}");
                    let by_signal = status.code().is_none();
                    if by_signal && self.does_without(&running.name)? {
                        continue;
                    }
                    deaths.push(Death { name: running.name, obituary, by_signal: status.code().is_none() });
                    first_death.get_or_insert_with(Instant::now);
                }
            }
            match stop.swap(0, Ordering::Relaxed) {
                0 => {}
                signal if signal == SIGINT as usize && patience.interrupts > 0 => {
                    patience.interrupts -= 1;
                    self.tell_workers(signal as i32);
                }
                signal if [SIGTERM, SIGUSR1].contains(&(signal as i32)) && patience.leave_orders > 0 => {
                    patience.leave_orders -= 1;
                    eprintln!(
                        "launch | told to leave by signal {signal}: the workers are, and the servers end with the run"
                    );
                    self.tell_workers(signal as i32);
                }
                signal => {
                    self.end();
                    bail!("stopped by signal {signal}; every process of the run has been ended");
                }
            }
            if first_death.is_some_and(|death| death.elapsed() > patience.after_a_death) {
                for Running { name, child } in &self.running {
                    eprintln!("launch | {name} (process {}) is still there, and is ended", child.id());
                }
                self.end();
            }
            std::thread::sleep(LOOK);
        }
        // Everything said is passed on before the last word.
        let mut last_words: BTreeMap<String, String> = BTreeMap::new();
        for (name, mouth) in self.mouths.drain(..) {
            last_words.extend(mouth.join().ok().flatten().map(|words| (name, words)));
        }
        match cause(&deaths, &last_words) {
            None => Ok(()),
            Some(Death { name, obituary, .. }) => match last_words.get(name) {
                Some(words) => bail!("the run failed: {obituary}, saying: {words}"),
                None => bail!("the run failed: {obituary}"),
            },
        }
    }

    /// Whether the run goes on without a process that was killed: another takes a server's place.
    fn does_without(&mut self, name: &str) -> anyhow::Result<bool> {
        let Some(spare) = self.spare.clone().filter(|_| name != "coordinator" && self.replaced < MOST_REPLACED) else {
            return Ok(false);
        };
        if name.starts_with("server") {
            self.replaced += 1;
            self.start(format!("server in place of {name}"), spare)?;
            return Ok(true);
        }
        Ok(self.running.iter().any(|other| other.name.starts_with("worker")))
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
        for Running { name, child } in &self.running {
            if name.starts_with("worker") {
                // Fails only if it has ended already.
                let signal = match signal {
                    SIGTERM => rustix::process::Signal::TERM,
                    SIGUSR1 => rustix::process::Signal::USR1,
                    _ => rustix::process::Signal::INT,
                };
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
        let death = |name: &str, by_signal| Death { name: name.to_owned(), obituary: String::new(), by_signal };
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

    #[test]
    fn one_process_coordinates_and_every_process_has_its_place() {
        let limits = Limits { join_limit: 7, patience: 2 };
        let program = vec![OsString::from("demo"), OsString::from("--json")];
        let metrics = Some("here:9".to_owned());
        let (copies, same_host) = (None, Way::Tcp);
        let checkpoints = checkpoints::Options::none();
        let options =
            Options { servers: 2, workers: 3, copies, same_host, record: None, metrics, limits, checkpoints, program };
        let processes = processes(&options, "here:1", Form::Json);
        let names: Vec<&str> = processes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        for (name, arguments) in &processes {
            let line = arguments.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
            let (kind, place) = name.split_once(' ').unwrap();
            let begins =
                format!("{kind} --meet=here:1 --place={place} --join-limit=7 --patience=2 --same-host=tcp --log-json");
            assert!(line.starts_with(&begins), "{line}");
            assert_eq!(line.contains("--metrics=here:9"), kind == "server", "{line}");
            assert_eq!(line.contains("--coordinate --servers=2 --workers=3"), name == "server 0", "{line}");
            assert_eq!(line.ends_with(" -- demo --json"), kind == "worker", "{line}");
        }
        assert!(spare_server(&options, "here:1", Form::Json).is_none(), "a run that ends with any of them");
        let options = Options { copies: Some(2), ..options };
        let processes = super::processes(&options, "here:1", Form::Json);
        let names: Vec<&str> = processes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["coordinator", "server 0", "server 1", "worker 0", "worker 1", "worker 2"]);
        let spare = spare_server(&options, "here:1", Form::Json).unwrap();
        let line = spare.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
        assert_eq!(
            line,
            "server --meet=here:1 --join-limit=7 --patience=2 --same-host=tcp --log-json --metrics=here:9"
        );
    }
}

//! A network of hosts that can be cut off, where this machine lets us make one: network namespaces, each joined to a bridge by a cable of its own.
//!
//! The bridge is in a namespace, too, and the benchmark does its work there: nothing of the machine's own network is touched. Whoever made
//! the network removes it when the work is done, however that ended, with every process that is left in it.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// So many hosts that everybody has one, with some to spare for those who come before others have gone.
const HOSTS: usize = super::cluster::SERVERS + super::cluster::WORKERS + 3;
/// Where the bridge is.
pub(crate) const HUB_ADDRESS: &str = "10.77.0.1";
const LOOK: Duration = Duration::from_millis(20);

fn ip(arguments: &str) -> anyhow::Result<String> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().context("cannot start `ip`")?;
    ensure!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn hub(name: &str) -> String {
    format!("{name}-hub")
}

fn host(name: &str, number: usize) -> String {
    format!("{name}-{number}")
}

/// The network, for whoever made it.
pub(crate) struct Made(String);

impl Made {
    /// Makes it. Fails where this machine does not allow that.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let made = Self(format!("slackwater-chaos-{}", std::process::id()));
        let (name, hub) = (&made.0, hub(&made.0));
        ip(&format!("netns add {hub}"))?;
        ip(&format!("-n {hub} link add bridge type bridge forward_delay 0"))?;
        ip(&format!("-n {hub} addr add {HUB_ADDRESS}/24 dev bridge"))?;
        ip(&format!("-n {hub} link set lo up"))?;
        ip(&format!("-n {hub} link set bridge up"))?;
        for number in 0..HOSTS {
            let host = host(name, number);
            ip(&format!("netns add {host}"))?;
            ip(&format!("link add port{number} netns {hub} type veth peer name cable netns {host}"))?;
            ip(&format!("-n {hub} link set port{number} master bridge up"))?;
            ip(&format!("-n {host} addr add 10.77.0.{}/24 dev cable", number + 2))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} link set cable up"))?;
        }
        Ok(made)
    }

    /// Runs this program once more, with the same arguments, where the bridge is. A signal that would end this process ends that one first.
    pub(crate) fn run_inside(&self) -> anyhow::Result<()> {
        let stop = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            signal_hook::flag::register_usize(signal, stop.clone(), signal as usize)
                .context("cannot listen for signals")?;
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &hub(&self.0)]).arg(program).args(std::env::args_os().skip(1));
        let mut child: Child = command.args(["--network", &self.0]).spawn().context("cannot start `ip`")?;
        loop {
            if let Some(status) = child.try_wait()? {
                ensure!(status.success(), "it ended with {status}");
                return Ok(());
            }
            match stop.load(Ordering::Relaxed) {
                0 => std::thread::sleep(LOOK),
                signal => {
                    child.kill()?;
                    child.wait()?;
                    bail!("stopped by signal {signal}; every process of the run has been ended");
                }
            }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for namespace in (0..HOSTS).map(|number| host(&self.0, number)).chain([hub(&self.0)]) {
            // Only what was started here is in there.
            let left = ip(&format!("netns pids {namespace}")).unwrap_or_default();
            for id in left.lines().filter_map(|id| Pid::from_raw(id.trim().parse().ok()?)) {
                kill_process(id, Signal::KILL).ok();
            }
            // The cables go with their hosts.
            ip(&format!("netns del {namespace}")).ok();
        }
    }
}

/// The network, for those who work in it.
#[derive(Clone)]
pub(crate) struct Network {
    name: String,
    free: Arc<Mutex<Vec<usize>>>,
}

impl Network {
    /// The one of that name, where all hosts are free.
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), free: Arc::new(Mutex::new((0..HOSTS).collect())) }
    }

    /// A host for one process.
    pub(crate) fn host(&self) -> anyhow::Result<Host> {
        let number = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().context("no host is free")?;
        Ok(Host { network: self.clone(), number, cut: false })
    }
}

/// One process's place. Free again when it is dropped, and joined.
pub(crate) struct Host {
    network: Network,
    number: usize,
    cut: bool,
}

impl Host {
    /// Whatever is to be started there, so far.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host(&self.network.name, self.number)]);
        command
    }

    fn link(&mut self, way: &str) -> anyhow::Result<()> {
        self.cut = way == "down";
        ip(&format!("-n {} link set port{} {way}", hub(&self.network.name), self.number)).map(drop)
    }

    /// Takes its cable away.
    pub(crate) fn cut(&mut self) -> anyhow::Result<()> {
        self.link("down")
    }

    /// Joins it again.
    pub(crate) fn join(&mut self) -> anyhow::Result<()> {
        self.link("up")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.cut {
            self.join().ok();
        }
        self.network.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

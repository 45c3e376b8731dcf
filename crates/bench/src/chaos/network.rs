//! A network of hosts that can be cut off: network namespaces, each joined to a bridge by a cable
//! of its own. Making one takes the right to administer networks.
//!
//! The bridge is in a namespace, too, and the benchmark runs there, so the machine's own network is
//! not touched. The process that made the network removes it when the benchmark ends, even after a
//! failure, and ends every process that is left in it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use launch::{Namespace, NamespaceError, OutputTarget, Signal, SignalFlag, Start};

/// How many hosts there are: one for each server and worker, and spares for processes that start
/// before those they replace have ended.
const HOSTS: usize = super::cluster::SERVERS + super::cluster::WORKERS + 3;
/// The address of the bridge.
pub(crate) const HUB_ADDRESS: &str = "10.77.0.1";
/// No network card has this address, so frames that are sent to it are lost.
const NOBODY: &str = "02:00:00:00:00:01";
/// How often the process that made the network checks whether the benchmark has ended.
const LOOK: Duration = Duration::from_millis(20);

fn hub(name: &str) -> String {
    format!("{name}-hub")
}

fn host(name: &str, number: usize) -> String {
    format!("{name}-{number}")
}

/// The address of a host.
fn address(number: usize) -> String {
    format!("10.77.0.{}", number + 2)
}

/// The network, as the process that makes it holds it. Dropping it removes the network.
pub(crate) struct Made {
    name: String,
    /// Dropped before the hub, and their cables with them.
    _hosts: Vec<Namespace>,
    hub: Namespace,
}

impl Made {
    /// Makes the network. Fails where this process may not make network namespaces.
    pub(crate) fn make() -> Result<Self, NamespaceError> {
        let name = format!("slackwater-chaos-{}", std::process::id());
        let hub = Namespace::make(&hub(&name))?;
        hub.ip("link add bridge type bridge forward_delay 0")?;
        hub.add_address("bridge", &format!("{HUB_ADDRESS}/24"))?;
        hub.set_up("bridge")?;
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            let host = Namespace::make(&host(&name, number))?;
            hub.connect(&format!("port{number}"), &host, "cable")?;
            hub.ip(&format!("link set port{number} master bridge up"))?;
            host.add_address("cable", &format!("{}/24", address(number)))?;
            host.set_up("cable")?;
            hosts.push(host);
        }
        Ok(Self { name, _hosts: hosts, hub })
    }

    /// Runs this program again in the bridge's namespace, with the same arguments. A signal that
    /// would end this process ends the other one first.
    pub(crate) fn run_inside(&self) -> anyhow::Result<()> {
        let signals = SignalFlag::listen(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT])?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = (self.hub.start("the benchmark", program))
            .args(std::env::args_os().skip(1))
            .args(["--network", &self.name])
            .stdout(OutputTarget::Inherit)
            .stderr(OutputTarget::Inherit)
            .spawn()?;
        loop {
            if let Some(status) = process.try_wait()? {
                ensure!(status.success(), "the benchmark failed in its network: {status}");
                return Ok(());
            }
            match signals.take() {
                None => std::thread::sleep(LOOK),
                Some(signal) => {
                    process.kill();
                    bail!("stopped by signal {}; every process of the run has been ended", signal.as_raw());
                }
            }
        }
    }
}

/// The network, as the benchmark inside it sees it.
#[derive(Clone)]
pub(crate) struct Network {
    name: String,
    free: Arc<Mutex<Vec<usize>>>,
}

impl Network {
    /// The network `name`, with all hosts free.
    pub(crate) fn of(name: &str) -> Self {
        Self { name: name.to_owned(), free: Arc::new(Mutex::new((0..HOSTS).collect())) }
    }

    /// Takes a free host, for one process.
    pub(crate) fn host(&self) -> anyhow::Result<Host> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let number = free.context("no host of the network is free")?;
        let namespace = Namespace::existing(&host(&self.name, number));
        Ok(Host { network: self.clone(), namespace, number, cut: false })
    }
}

/// One end of a link.
#[derive(Clone, Copy)]
pub(crate) enum LinkEnd<'a> {
    /// The bridge, where the coordinator runs.
    Hub,
    Host(&'a Host),
}

impl LinkEnd<'_> {
    /// The address of this end.
    fn address(self) -> String {
        match self {
            Self::Hub => HUB_ADDRESS.to_owned(),
            Self::Host(host) => address(host.number),
        }
    }
}

/// A link that loses all frames in one direction. Dropping it makes the link whole again.
pub(crate) struct OneWayDrop {
    from: Namespace,
    interface: &'static str,
    to: String,
    ended: bool,
}

impl OneWayDrop {
    /// Begins to lose what `from` sends to `to`: `from` takes the wrong hardware address for that
    /// of `to`. It gets no error, as with a broken fibre.
    pub(crate) fn begin(network: &Network, from: LinkEnd<'_>, to: LinkEnd<'_>) -> anyhow::Result<Self> {
        let (from, interface) = match from {
            LinkEnd::Hub => (Namespace::existing(&hub(&network.name)), "bridge"),
            LinkEnd::Host(from) => (Namespace::existing(&host(&network.name, from.number)), "cable"),
        };
        let to = to.address();
        from.ip(&format!("neigh replace {to} lladdr {NOBODY} dev {interface} nud permanent"))?;
        Ok(Self { from, interface, to, ended: false })
    }

    /// Makes the link whole again. The kernel then asks for the right hardware address.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        self.ended = true;
        Ok(self.from.ip(&format!("neigh del {} dev {}", self.to, self.interface))?)
    }
}

impl Drop for OneWayDrop {
    fn drop(&mut self) {
        if !self.ended {
            self.end().ok();
        }
    }
}

/// The host of one process. Dropping it joins it again and frees it.
pub(crate) struct Host {
    network: Network,
    namespace: Namespace,
    number: usize,
    cut: bool,
}

impl Host {
    /// A process to start on this host.
    pub(crate) fn start(&self, name: &str, program: &Path) -> Start {
        self.namespace.start(name, program)
    }

    fn hub(&self) -> (Namespace, String) {
        (Namespace::existing(&hub(&self.network.name)), format!("port{}", self.number))
    }

    /// Cuts the host off the network.
    pub(crate) fn cut(&mut self) -> anyhow::Result<()> {
        self.cut = true;
        let (hub, port) = self.hub();
        Ok(hub.set_down(&port)?)
    }

    /// Joins the host to the network again.
    pub(crate) fn join(&mut self) -> anyhow::Result<()> {
        self.cut = false;
        let (hub, port) = self.hub();
        Ok(hub.set_up(&port)?)
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

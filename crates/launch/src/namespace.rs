//! Network namespaces of this machine (Linux, `ip` and `tc` of iproute2). A process in a namespace
//! sees a network of its own, as on another host.
//!
//! The machine's own network is not touched. Making a namespace takes root, or at least the right
//! to administer networks.

use std::ffi::OsStr;
use std::io;
use std::process::Command;

use rustix::process::Signal;

use crate::{Start, signal_process};

/// Why a namespace cannot be made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// The tool cannot be started.
    #[error("cannot start `{tool}` of iproute2, which makes network namespaces; it may not be installed")]
    Start {
        /// `ip` or `tc`.
        tool: String,
        /// What the system says.
        source: io::Error,
    },
    /// The tool fails.
    #[error("`{command}` failed: {reason}")]
    Refused {
        /// The command line.
        command: String,
        /// What the tool says.
        reason: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// Whether dropping this removes the namespace.
    is_ours: bool,
}

impl Namespace {
    /// Makes a namespace, with a loopback interface. Dropping it kills its processes and removes
    /// it.
    pub fn make(name: &str) -> Result<Self, NamespaceError> {
        call("ip", &format!("netns add {name}"))?;
        let namespace = Self { name: name.to_owned(), is_ours: true };
        namespace.set_up("lo")?;
        Ok(namespace)
    }

    /// A namespace that another process has made. Dropping it leaves the namespace there.
    pub fn existing(name: &str) -> Self {
        Self { name: name.to_owned(), is_ours: false }
    }

    /// Makes two namespaces joined by a virtual cable: the interface `cable` has address 10.0.0.1
    /// in the first and 10.0.0.2 in the second.
    pub fn make_pair(names: [&str; 2]) -> Result<[Self; 2], NamespaceError> {
        let pair = [Self::make(names[0])?, Self::make(names[1])?];
        pair[0].connect("cable", &pair[1], "cable")?;
        for (namespace, index) in pair.iter().zip(1..) {
            namespace.add_address("cable", &format!("10.0.0.{index}/24"))?;
            namespace.set_up("cable")?;
        }
        Ok(pair)
    }

    /// The namespace's name, which is unique on this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes an interface here and one in another namespace, joined by a virtual cable. Both are
    /// down.
    pub fn connect(&self, interface: &str, other: &Self, other_interface: &str) -> Result<(), NamespaceError> {
        let peer = format!("peer name {other_interface} netns {}", other.name);
        call("ip", &format!("link add {interface} netns {} type veth {peer}", self.name)).map(drop)
    }

    /// Adds an address to an interface, with the length of its network prefix: `10.0.0.1/24`.
    pub fn add_address(&self, interface: &str, address: &str) -> Result<(), NamespaceError> {
        // Without `nodad`, the kernel checks for a second whether an IPv6 address is already in
        // use.
        let at_once = if address.contains(':') { " nodad" } else { "" };
        self.ip(&format!("addr add {address} dev {interface}{at_once}"))
    }

    /// Connects an interface.
    pub fn set_up(&self, interface: &str) -> Result<(), NamespaceError> {
        self.ip(&format!("link set {interface} up"))
    }

    /// Disconnects an interface, as if its cable were pulled.
    pub fn set_down(&self, interface: &str) -> Result<(), NamespaceError> {
        self.ip(&format!("link set {interface} down"))
    }

    /// Limits the rate at which an interface sends, by a token bucket: `100mbit`.
    pub fn limit_rate(&self, interface: &str, rate: &str) -> Result<(), NamespaceError> {
        let bucket = format!("qdisc add dev {interface} root tbf rate {rate} burst 64kb latency 100ms");
        call("tc", &format!("-n {} {bucket}", self.name)).map(drop)
    }

    /// Runs `ip` with these arguments in this namespace.
    pub fn ip(&self, arguments: &str) -> Result<(), NamespaceError> {
        call("ip", &format!("-n {} {arguments}", self.name)).map(drop)
    }

    /// A process to start, which runs `program` in this namespace.
    pub fn start(&self, name: &str, program: impl AsRef<OsStr>) -> Start {
        Start::program(name, "ip").args(["netns", "exec", &self.name]).args([program])
    }

    /// The ids of the processes in this namespace.
    pub fn processes(&self) -> Vec<u32> {
        let listed = call("ip", &format!("netns pids {}", self.name)).unwrap_or_default();
        listed.lines().filter_map(|id| id.trim().parse().ok()).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if self.is_ours {
            for id in self.processes() {
                // Only processes started through this namespace are in it. Fails if one has ended.
                signal_process(id, Signal::KILL).ok();
            }
            // This also removes its cables.
            call("ip", &format!("netns del {}", self.name)).ok();
        }
    }
}

/// Runs a tool to its end, and returns its standard output.
fn call(tool: &str, arguments: &str) -> Result<String, NamespaceError> {
    let output = Command::new(tool).args(arguments.split_whitespace()).output();
    let output = output.map_err(|source| NamespaceError::Start { tool: tool.to_owned(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NamespaceError::Refused { command: format!("{tool} {arguments}"), reason })
}

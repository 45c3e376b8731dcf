//! A slow link: two network namespaces of this machine, joined by a virtual cable. A token bucket
//! at both ends limits it to 100 Mbit/s.

use std::path::Path;

use anyhow::{Context, ensure};
use launch::{Namespace, OutputTarget, Process};

use super::dense::{Trained, arguments, read};

/// The rate of the cable, each way.
const RATE: &str = "100mbit";

/// The two hosts. Dropping them ends every process that runs on them.
pub(crate) struct Hosts([Namespace; 2]);

impl Hosts {
    /// Makes the hosts: the first at 10.0.0.1, the second at 10.0.0.2. Fails where this process may
    /// not make network namespaces.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let [near, far] = ["near", "far"].map(|host| format!("slackwater-{host}-{}", std::process::id()));
        let hosts = Namespace::make_pair([&near, &far])?;
        for host in &hosts {
            host.limit_rate("cable", RATE)?;
        }
        Ok(Self(hosts))
    }

    fn start(&self, host: usize, name: &str, arguments: &[String]) -> anyhow::Result<Process> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(self.0[host].start(name, program).args(arguments).stdout(OutputTarget::Capture).spawn()?)
    }

    /// Trains a perceptron with a server on one host and a worker on the other.
    pub(crate) fn train(&self, images: &Path, epochs: u32, up: &str, down: &str) -> anyhow::Result<Trained> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let serve =
            "server --insecure --coordinator 10.0.0.1:7000 --coordinate --servers 1 --workers 1 --join-limit 60";
        let mut server = self.start(0, "the server", &words(serve))?;
        let work = [
            words("worker --insecure --coordinator 10.0.0.1:7000 --join-limit 60 --"),
            arguments(images, epochs, 1, up, down),
        ];
        let trained = printed(self.start(1, "the worker", &work.concat())?);
        // The next training listens at the same port.
        server.wait().ok();
        read(&trained.with_context(|| format!("over {RATE} with {up}"))?)
    }
}

fn printed(mut process: Process) -> anyhow::Result<String> {
    let status = process.wait()?;
    ensure!(status.success(), "{} failed: {status}", process.name());
    Ok(process.stdout())
}

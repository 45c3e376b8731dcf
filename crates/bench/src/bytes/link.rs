//! Two hosts joined by a cable of 100 Mbit/s: network namespaces of this machine, with a token bucket at both ends.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};

use super::dense::{Trained, arguments, read};

/// What the cable carries in a second, each way.
const RATE: &str = "100mbit";

/// The hosts, which go with everything that runs on them.
pub(crate) struct Hosts {
    names: [String; 2],
}

fn call(program: &str, arguments: &str) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

impl Hosts {
    /// Makes them: the first at 10.0.0.1, the second at 10.0.0.2. Fails where this machine does not allow it.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let hosts = Self { names: ["near", "far"].map(|host| format!("slackwater-{host}-{}", std::process::id())) };
        for name in &hosts.names {
            call("ip", &format!("netns add {name}"))?;
        }
        let [near, far] = &hosts.names;
        call("ip", &format!("link add cable netns {near} type veth peer name cable netns {far}"))?;
        for (name, index) in hosts.names.iter().zip(1..) {
            call("ip", &format!("-n {name} addr add 10.0.0.{index}/24 dev cable"))?;
            call("ip", &format!("-n {name} link set lo up"))?;
            call("ip", &format!("-n {name} link set cable up"))?;
            call("tc", &format!("-n {name} qdisc add dev cable root tbf rate {RATE} burst 64kb latency 100ms"))?;
        }
        Ok(hosts)
    }

    fn start(&self, host: usize, arguments: &[String]) -> anyhow::Result<Running> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(program).args(arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("cannot start a process")?;
        Ok(Running(Some(child)))
    }

    /// A server on one host and a worker on the other that trains a perceptron.
    pub(crate) fn train(&self, images: &Path, epochs: u32, up: &str, down: &str) -> anyhow::Result<Trained> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let serve = "server --meet 10.0.0.1:7000 --coordinate --servers 1 --workers 1 --join-limit 60";
        let server = self.start(0, &words(serve))?;
        let work = [words("worker --meet 10.0.0.1:7000 --join-limit 60 --"), arguments(images, epochs, 1, up, down)];
        let trained = self.start(1, &work.concat())?.printed();
        // Before the port is asked for again.
        server.printed().ok();
        read(&trained.with_context(|| format!("over {RATE} with {up}"))?)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // The cable goes with its hosts.
            call("ip", &format!("netns del {name}")).ok();
        }
    }
}

/// A process that ends with us.
struct Running(Option<Child>);

impl Running {
    fn printed(mut self) -> anyhow::Result<Vec<u8>> {
        let Some(child) = self.0.take() else { bail!("it was waited for") };
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a process ends with {}", output.status);
        Ok(output.stdout)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().and_then(|()| child.wait()).ok();
        }
    }
}

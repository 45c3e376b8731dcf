//! `--metrics`: serves the metrics of this process to Prometheus.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::Context;
use observe::{Exporter, ExporterSettings, Metrics};
use slackwater::security::Role;

use crate::security::SecurityOptions;

/// The settings of `server` and `launch` for metrics of servers.
#[derive(Clone, Default, clap::Args)]
#[group(skip)]
pub(crate) struct ServerMetrics {
    /// Serve metrics of each server process at this port + its number (--place). Port 0 is any free
    /// port. In a secured run a reader needs the bearer that `slackwater token http-bearer` prints,
    /// or with --tls-cert a client certificate of the role reader.
    /// For metrics of workers, give --metrics to `train`, after the `--`.
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// A name, beside this host's, by which readers of the metrics call this process. Several are
    /// separated by commas. IP addresses need not be named.
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "metrics")]
    metrics_host: Vec<String>,
}

impl ServerMetrics {
    /// Where to serve them, at the given port + `step`, if at all.
    pub(crate) fn served_at(&self, step: u32) -> Option<MetricsOptions> {
        let address = self.metrics.clone()?;
        Some(MetricsOptions { address, step, hosts: self.metrics_host.clone() })
    }

    /// These settings as the words of a command line.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let address = self.metrics.iter().map(|address| format!("--metrics={address}"));
        let hosts = self.metrics_host.iter().map(|host| format!("--metrics-host={host}"));
        address.chain(hosts).map(OsString::from).collect()
    }
}

/// Where to serve metrics, and under which names.
pub(crate) struct MetricsOptions {
    /// As given: `address:port`.
    pub(crate) address: String,
    /// What is added to the port, unless it is 0.
    pub(crate) step: u32,
    pub(crate) hosts: Vec<String>,
}

impl MetricsOptions {
    /// Serves metrics of a process in this role, to the readers that its access allows.
    pub(crate) fn serve(self, security: &SecurityOptions, role: Role) -> anyhow::Result<(Metrics, Exporter)> {
        let Self { address, step, mut hosts } = self;
        let wrong = || format!("--metrics {address}: write address:port, such as 127.0.0.1:9100");
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().with_context(wrong)?.collect();
        let stepped = |mut address: SocketAddr| {
            let port = if address.port() == 0 {
                Some(0)
            } else {
                u16::try_from(step).ok().and_then(|step| address.port().checked_add(step))
            };
            address.set_port(port?);
            Some(address)
        };
        let addresses: Option<Vec<SocketAddr>> = addresses.into_iter().map(stepped).collect();
        let addresses = addresses
            .with_context(|| format!("--metrics {address}: its port + {step} is past 65535; give a lower port"))?;
        hosts.extend(own_host());
        let readers = security.access().http_readers(role)?;
        let need_bearer = readers.ask_for_bearer();
        let need_certificate = readers.ask_for_certificate();
        let metrics = Metrics::new();
        let settings = ExporterSettings { readers, hosts, ..ExporterSettings::default() };
        let exporter = Exporter::start(&addresses[..], metrics.clone(), settings).with_context(|| {
            format!("cannot serve metrics at {address}{}", if step == 0 { String::new() } else { format!(" + {step}") })
        })?;
        eprintln!("metrics are at {}", exporter.url());
        if let Some(path) = security.token_path().filter(|_| need_bearer) {
            let path = path.display();
            eprintln!("readers send the bearer that `slackwater token http-bearer --token-file {path}` prints");
        }
        if need_certificate {
            eprintln!("readers show a client certificate of the role reader");
        }
        Ok((metrics, exporter))
    }
}

/// The name of this host, if it can be in a certificate.
fn own_host() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-.".contains(char);
    (!name.is_empty() && name.chars().all(is_allowed)).then_some(name)
}

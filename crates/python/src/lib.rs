//! The compiled half of the Python package: bindings of sessions, tables, tickets, key lists and
//! processes.
//!
//! The bindings are thin. They read and write arrays in Python's memory ([`memory`]), release the
//! interpreter lock before a call that may wait, and keep the messages of errors ([`error`]). The
//! public package, `python/slackwater`, adds defaults, checks and documentation.

mod error;
mod feed;
mod keys;
mod launch;
mod leases;
mod memory;
mod serve;
mod session;
mod table;
mod ticket;

use pyo3::prelude::*;

/// A free address of this host, as `host:port`.
#[pyfunction]
fn free_address() -> PyResult<String> {
    Ok(slackwater::cluster::free_address()?.to_string())
}

/// The module `slackwater._slackwater`.
#[pymodule]
fn _slackwater(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Warnings, such as the names of slow workers, go to stderr as Python's do.
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLACKWATER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // A logger that this process has set up before stays.
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init().ok();
    module.add_class::<session::PySession>()?;
    module.add_class::<table::PyTable>()?;
    module.add_class::<ticket::PyTicket>()?;
    module.add_class::<keys::PyKeys>()?;
    module.add_class::<leases::PyDataLeases>()?;
    module.add_class::<leases::PyDataLease>()?;
    module.add_class::<feed::PyFeed>()?;
    module.add_class::<feed::PyChanges>()?;
    module.add_function(wrap_pyfunction!(feed::follow, module)?)?;
    module.add_class::<serve::PyServer>()?;
    module.add_class::<launch::ChildProcess>()?;
    module.add_class::<launch::PyRunToken>()?;
    module.add_function(wrap_pyfunction!(free_address, module)?)?;
    error::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

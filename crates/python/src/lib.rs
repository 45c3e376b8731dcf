//! The compiled half of the Python package: sessions, tables, tickets, key lists and processes as
//! Python sees them.
//!
//! Everything here is thin. Memory is read and written where Python keeps it ([`memory`]), every
//! call that may wait gives up the interpreter first, and errors keep the words of the core
//! ([`error`]). What is pleasant about the package is in `python/slackwater`.

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

/// An address of this machine that nobody listens at.
#[pyfunction]
fn free_address() -> PyResult<String> {
    Ok(slackwater::cluster::free_address()?.to_string())
}

/// The module `slackwater._slackwater`.
#[pymodule]
fn _slackwater(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Warnings, such as who is waited for, go where Python's own do.
    let filter = tracing_subscriber::EnvFilter::try_from_env("SLACKWATER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // Whoever has set up logging in this process before keeps it.
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
    module.add_function(wrap_pyfunction!(free_address, module)?)?;
    error::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}

"""Slackwater: a parameter server that trains one model on machines that do not keep step.

The workers of a run read and write tables, each at its own pace::

    import numpy, slackwater

    with slackwater.init():                             # a whole run in this process
        weights = slackwater.Table("weights", rows=3, updater="sgd", rate=0.5, slack=0)
        for _ in range(20):
            rows = weights.pull()                       # a NumPy array
            weights.push(rows - 1)                      # a gradient
            slackwater.clock()                          # ends this unit of work

A *clock* is a worker's count of finished units of work, such as training steps. :func:`clock` ends
one: it adds 1 to the count. A table's *slack* says how many clocks a worker that reads may be ahead
of the slowest worker.

PyTorch users start at :mod:`slackwater.torch`. The package imports NumPy and PyTorch only when a
program uses them.
"""

from ._feed import Changes, Feed, follow
from ._leases import DataLeases, leases
from ._run import (
    Run,
    barrier,
    clock,
    init,
    is_initialized,
    launch,
    live_ranks,
    local_rank,
    now,
    rank,
    shutdown,
    size,
)
from ._slackwater import DataLease, Keys, RefusedError, RunError, SlackwaterError, TableError, Ticket, __version__
from ._table import Table

__all__ = [
    "Changes",
    "DataLease",
    "DataLeases",
    "Feed",
    "Keys",
    "RefusedError",
    "Run",
    "RunError",
    "SlackwaterError",
    "Table",
    "TableError",
    "Ticket",
    "__version__",
    "barrier",
    "clock",
    "follow",
    "init",
    "is_initialized",
    "launch",
    "leases",
    "live_ranks",
    "local_rank",
    "now",
    "rank",
    "shutdown",
    "size",
]


def __getattr__(name: str):
    # Import `slackwater.torch` on first use, so that `import slackwater` does not load PyTorch.
    if name == "torch":
        import importlib

        return importlib.import_module("slackwater.torch")
    raise AttributeError(f"module 'slackwater' has no attribute '{name}'")

"""Slackwater: trains one model on machines that do not keep step.

Tables are read and written by the workers of a run, each at its own pace::

    import numpy, slackwater

    with slackwater.init():                             # a whole run in this process
        weights = slackwater.Table("weights", rows=3, updater="sgd", rate=0.5, slack=0)
        for _ in range(20):
            rows = weights.pull()                       # a NumPy array
            weights.push(rows - 1)                      # a gradient
            slackwater.clock()                          # this unit of work is done

PyTorch users start at :mod:`slackwater.torch`. Neither NumPy nor PyTorch is imported before it is used.
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
    # `slackwater.torch` works without an import of its own, and costs nothing until then.
    if name == "torch":
        import importlib

        return importlib.import_module("slackwater.torch")
    raise AttributeError(f"module 'slackwater' has no attribute '{name}'")

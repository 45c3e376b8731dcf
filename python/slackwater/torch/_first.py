"""What one worker does, or gives, before the others go on. No barrier: a worker may come meanwhile, which everybody would wait for at one, and which waits for them."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from .._slackwater import RunError
from .._table import Table
from ._bits import WIDTH, Bits

# How often the others look whether it is done.
LOOK_SECONDS = 0.002


def root_first(run: Any, root: int, work: Callable[[], object]) -> None:
    """Has worker ``root`` do ``work``, and the others return when it is done. All workers call it at the same point, late ones too."""
    # A name that starts with a point is in no checkpoint.
    done = Table(f".done {run._session.unique_number()}", rows=1, updater="assign", slack=None)
    if run.rank == root:
        work()
        done.push(torch.ones(1))
        return
    seen = torch.zeros(1)
    while True:
        is_live = root in run._session.live_ranks()
        if done.pull(out=seen)[0] == 1:
            return
        if not is_live:
            raise RunError(f"worker {root}, which has the first weights, is gone before it gave them to the others; start the run again")
        time.sleep(LOOK_SECONDS)


def broadcast(run: Any, tensors: list[torch.Tensor], root: int) -> None:
    """Gives all workers what worker ``root`` has in these tensors."""
    bits = Bits(tensors)
    # A name that starts with a point is in no checkpoint.
    name = f".broadcast {run._session.unique_number()}"
    table = Table(name, rows=bits.rows, width=WIDTH, dtype="int64", updater="assign", slack=None)
    root_first(run, root, lambda: table.push(bits.gather()))
    table.pull(out=bits.memory)
    bits.scatter()

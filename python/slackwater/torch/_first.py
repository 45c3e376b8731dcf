"""Work of one worker before the others go on, and broadcasts of its tensors. The others poll a
table and do not use a barrier: a worker that joins meanwhile would wait here for them, and they
would wait for it at the barrier."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from .._slackwater import RunError
from .._table import Table
from ._bits import WIDTH, Bits

# How often the other workers check whether the work is done.
LOOK_SECONDS = 0.002


def root_first(run: Any, root: int, work: Callable[[], object]) -> None:
    """Runs ``work`` on worker ``root``; the other workers return when it is done. All workers call
    it at the same point, late ones too. Raises :class:`RunError` if ``root`` leaves before."""
    # Checkpoints leave out tables whose names begin with a dot.
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
            raise RunError(f"worker {root}, which has the first weights, left before it gave them to the others; start the run again")
        time.sleep(LOOK_SECONDS)


def broadcast(run: Any, tensors: list[torch.Tensor], root: int) -> None:
    """Copies worker ``root``'s values of these tensors to all workers."""
    bits = Bits(tensors)
    # Checkpoints leave out tables whose names begin with a dot.
    name = f".broadcast {run._session.unique_number()}"
    table = Table(name, rows=bits.rows, width=WIDTH, dtype="int64", updater="assign", slack=None)
    root_first(run, root, lambda: table.push(bits.gather()))
    table.pull(out=bits.memory)
    bits.scatter()

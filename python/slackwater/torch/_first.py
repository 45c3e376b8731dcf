"""What one worker does before the others go on. No barrier: a worker may come meanwhile, which everybody would wait for at one, and which waits for them."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from .._slackwater import RunError
from .._table import Table

# How often the others look whether it is done.
LOOK_SECONDS = 0.002


def root_first(run: Any, root: int, work: Callable[[], object]) -> None:
    """Has worker ``root`` do ``work``, and the others return when it is done. All workers call it at the same point, late ones too."""
    # A name that starts with a point is in no checkpoint.
    done = Table(f".done {run._session.turn()}", rows=1, updater="assign", slack=None)
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

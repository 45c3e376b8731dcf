"""Buffers, such as running means: after each step all workers take the first worker's."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .._slackwater import Keys, Ticket
from .._table import Table
from ._bits import WIDTH, Bits


class Buffers:
    """Shares the first worker's buffers. That worker pushes them in each clock; all others read
    them after it. The first worker is the live one of the lowest rank."""

    def __init__(self, model: torch.nn.Module, run: Any, number: int, slack: int, **_: Any):
        self.run = run
        self.first = min(run._session.live_ranks(), default=run.rank)
        self.table: Optional[Table] = None
        tensors = [buffer for buffer in model.buffers() if buffer is not None]
        if not tensors or run.size == 1 and not run._session.others_may_come:
            return
        self.bits = Bits(tensors)
        # In lock-step all workers must read the same, so the table combines by clock: it then shows
        # the state at the end of a clock. Each worker has rows of its own. Otherwise the buffers of
        # two workers that both count as the first, while one is lost, would add up.
        self.table = Table(
            f".buffers {number}", width=WIDTH, dtype="int64", updater="assign", combine="sum" if slack == 0 else "each",
            slack=max(0, slack - 1),
        )  # fmt: skip
        self.keys: dict[int, Keys] = {}

    def _rows_of(self, rank: int) -> Keys:
        """The keys of a worker's rows."""
        if rank not in self.keys:
            self.keys[rank] = self.table.keys(torch.arange(self.bits.rows) + (rank << 32))
        return self.keys[rank]

    def push(self) -> Optional[Ticket]:
        """Pushes this worker's buffers if it is the first worker."""
        # Stays until the next push: a worker that leaves after this clock has pushed in it.
        self.first = min(self.run._session.live_ranks(), default=self.run.rank)
        if self.table is None or self.first != self.run.rank:
            return None
        return self.table.push_async(self.bits.gather(), self._rows_of(self.run.rank))

    def ask(self) -> Optional[Ticket]:
        """Asks for the first worker's buffers, unless this is that worker."""
        if self.table is None or self.first == self.run.rank:
            return None
        return self.table.pull_async(self._rows_of(self.first), out=self.bits.memory)

    def take(self, ticket: Optional[Ticket]) -> None:
        """Waits for the buffers that :meth:`ask` asked for, and takes them."""
        if ticket is None:
            return
        ticket.wait()
        # A worker that has just become the first may not have pushed yet.
        if self.bits.is_filled:
            self.bits.scatter()

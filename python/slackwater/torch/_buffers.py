"""Buffers, such as running means: one worker's are everybody's after each step."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .._slackwater import Keys, Ticket
from .._table import Table
from ._bits import WIDTH, Bits


class Buffers:
    """The first worker's buffers, pushed with each clock and read by all after it. When it leaves, or is lost, the next one is the first."""

    def __init__(self, model: torch.nn.Module, run: Any, number: int, slack: int, **_: Any):
        self.run = run
        self.first = min(run._session.live_ranks(), default=run.rank)
        self.table: Optional[Table] = None
        tensors = [buffer for buffer in model.buffers() if buffer is not None]
        if not tensors or run.size == 1 and not run._session.others_may_come:
            return
        self.bits = Bits(tensors)
        # Of lock-step workers all must see the same; only what is combined by clock is as it was at its end. Each worker has rows of its own, so that
        # two that take themselves for the first, while one is lost, do not add up.
        self.table = Table(
            f".buffers {number}", width=WIDTH, dtype="int64", updater="assign", combine="sum" if slack == 0 else "each",
            slack=max(0, slack - 1),
        )  # fmt: skip
        self.keys: dict[int, Keys] = {}

    def _rows_of(self, rank: int) -> Keys:
        if rank not in self.keys:
            self.keys[rank] = self.table.keys(torch.arange(self.bits.rows) + (rank << 32))
        return self.keys[rank]

    def push(self) -> Optional[Ticket]:
        """Pushes this worker's, if it is the first."""
        # Until the next push: one that leaves after this clock has pushed in it.
        self.first = min(self.run._session.live_ranks(), default=self.run.rank)
        if self.table is None or self.first != self.run.rank:
            return None
        return self.table.push_async(self.bits.gather(), self._rows_of(self.run.rank))

    def ask(self) -> Optional[Ticket]:
        """Asks for the first worker's, if that is another."""
        if self.table is None or self.first == self.run.rank:
            return None
        return self.table.pull_async(self._rows_of(self.first), out=self.bits.memory)

    def take(self, ticket: Optional[Ticket]) -> None:
        """Waits for what was asked for."""
        if ticket is None:
            return
        ticket.wait()
        # One that has just become the first may not have pushed yet.
        if self.bits.is_filled:
            self.bits.scatter()

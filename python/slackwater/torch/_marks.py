"""Marks: what lock-step workers tell each other in each clock beside their gradients. A mark says
whether the worker has just joined, whether it gave up the step, its number of samples, and which
parameters it used."""

from __future__ import annotations

from typing import Iterable

import torch

from .._slackwater import Ticket
from .._table import Table

# The columns of a mark. CLOCK is the mark's clock plus 1, set by workers that joined, so that old
# marks are recognised.
CLOCK, CAME, GAVE_UP, SAMPLES, USED = 0, 1, 2, 3, 4


class Marks:
    """The table of marks. Reading it gives the mean of all workers' marks of a clock."""

    def __init__(self, number: int, parameters: int):
        width = USED + parameters
        self.table = Table(f".marks {number}", rows=1, width=width, dtype="float64", updater="assign", combine="mean", slack=0)
        self.mark = torch.zeros(1, width, dtype=torch.float64)

    def push(self, samples: float, used: Iterable[int]) -> None:
        """Pushes the mark of a worker that has pushed gradients in this clock."""
        self.mark.zero_()
        self.mark[0, SAMPLES] = samples
        self.mark[0, [USED + place for place in used]] = 1.0
        # The end of the clock raises a failure.
        self.table.push_async(self.mark)

    def come(self, clock: int) -> None:
        """Pushes the mark of a worker that joined in this clock, and pushes no gradients in it."""
        self.mark.zero_()
        self.mark[0, CLOCK], self.mark[0, CAME] = clock + 1.0, 1.0
        self.table.push_async(self.mark)

    def give_up(self) -> None:
        """Pushes the mark of a worker that has pushed only a part of its gradients in this clock,
        and gives up the step."""
        self.mark.zero_()
        self.mark[0, GAVE_UP] = 1.0
        self.table.push_async(self.mark)

    def ask(self) -> Ticket:
        """Asks for the mean of the marks of the clock that has just ended."""
        return self.table.pull_async(out=self.mark)

    def came(self, clock: int) -> float:
        """The share of workers that joined in that clock, from the mean that :meth:`ask` asked
        for."""
        about, share = self.mark[0, : CAME + 1].tolist()
        return share if share > 0 and round(about / share) == clock + 1 else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether no worker gave up the step."""
        return self.mark[0, GAVE_UP].item() == 0

    @property
    def samples(self) -> float:
        """The mean number of samples."""
        return self.mark[0, SAMPLES].item()

    def used(self) -> list[bool]:
        """Which parameters at least one worker used."""
        return (self.mark[0, USED:] > 0).tolist()

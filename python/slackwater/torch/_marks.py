"""What workers in lock-step tell each other beside their gradients: who has just come, who gave up, of how many samples, and which parameters were used."""

from __future__ import annotations

from typing import Iterable

import torch

from .._slackwater import Ticket
from .._table import Table

# Where in a mark what stands. The clock it was made in plus 1, by those that came: so that an old mark is known for one.
CLOCK, CAME, GAVE_UP, SAMPLES, USED = 0, 1, 2, 3, 4


class Marks:
    """The mean over all workers of their marks of a clock."""

    def __init__(self, number: int, parameters: int):
        width = USED + parameters
        self.table = Table(f".marks {number}", rows=1, width=width, dtype="float64", updater="assign", combine="mean", slack=0)
        self.mark = torch.zeros(1, width, dtype=torch.float64)

    def push(self, samples: float, used: Iterable[int]) -> None:
        """Says what gradients this worker has pushed in this clock."""
        self.mark.zero_()
        self.mark[0, SAMPLES] = samples
        self.mark[0, [USED + place for place in used]] = 1.0
        # A failure shows at the end of the clock.
        self.table.push_async(self.mark)

    def come(self, clock: int) -> None:
        """Says that this worker came in this clock, and pushes no gradients in it."""
        self.mark.zero_()
        self.mark[0, CLOCK], self.mark[0, CAME] = clock + 1.0, 1.0
        self.table.push_async(self.mark)

    def give_up(self) -> None:
        """Says that what this worker has pushed in this clock is not all, and that no more will come."""
        self.mark.zero_()
        self.mark[0, GAVE_UP] = 1.0
        self.table.push_async(self.mark)

    def ask(self) -> Ticket:
        """Asks for the mean of the clock that has just ended."""
        return self.table.pull_async(out=self.mark)

    def came(self, clock: int) -> float:
        """Of the mean that was asked for: the share of workers that came in that clock."""
        about, share = self.mark[0, : CAME + 1].tolist()
        return share if share > 0 and round(about / share) == clock + 1 else 0.0

    @property
    def is_whole(self) -> bool:
        """Whether nobody gave up."""
        return self.mark[0, GAVE_UP].item() == 0

    @property
    def samples(self) -> float:
        """The mean of samples."""
        return self.mark[0, SAMPLES].item()

    def used(self) -> list[bool]:
        """Which parameters anybody used."""
        return (self.mark[0, USED:] > 0).tolist()

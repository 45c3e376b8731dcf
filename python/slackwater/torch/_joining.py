"""Workers that come to a run in lock-step under way: they ask, and are given the weights of a clock on which all agree.

In lock-step the weights are with the workers, equal whenever a step is done. Whoever comes takes part from the clock where the others are, which does not
end without it. It marks that clock and pushes no gradient; all read the marks when the clock is over, as they read the means, take their
step, and the first of them gives weights, buffers and the optimiser's state. From the next clock on the one that came is as the others are.
"""

from __future__ import annotations

import io
import time
from typing import Any, Optional

import torch

from .._slackwater import RunError
from .._table import Table
from ._marks import Marks

# Numbers in a row of an answer.
WIDTH = 1024
# How often somebody who has asked looks for the answer, and after how long it asks again: the one who should have answered may be gone.
LOOK_SECONDS = 0.01
AGAIN_SECONDS = 30.0


class Joining:
    """What the workers of one optimiser ask and tell each other when one comes."""

    def __init__(self, run: Any, number: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, marks: Marks):
        self.run, self.model, self.optimizer, self.marks = run, model, optimizer, marks
        # Rows of the worker that answers, from its rank × 2**32 on. The first says which clock's, and how long the others are.
        self.answers = Table(f".answers {number}", width=WIDTH, dtype="int64", updater="assign", slack=None)
        # The clock whose question is to be answered.
        self.asked: Optional[int] = None

    def hear(self, clock: int) -> float:
        """The share of workers that came in that clock, by its marks."""
        share = self.marks.came(clock)
        self.asked = clock if share > 0 else self.asked
        return share

    def answer(self) -> None:
        """Gives what this worker has to those that came, if it is the one to do so. To be called when the step of that clock is done."""
        clock, self.asked = self.asked, None
        # Who comes later has a higher rank.
        if clock is None or self.run.rank != min(self.run._session.live_ranks()):
            return
        content = io.BytesIO()
        torch.save({"tensors": [tensor.detach() for tensor in self._tensors()], "optimizer": self.optimizer.state_dict()}, content)
        size = content.tell()
        padded = bytearray(content.getvalue()) + bytes(-size % (WIDTH * 8))
        rows = torch.frombuffer(padded, dtype=torch.int64).view(-1, WIDTH)
        first = self.run.rank << 32
        self.answers.push(rows, keys=torch.arange(first + 1, first + 1 + len(rows)))
        head = torch.zeros(1, WIDTH, dtype=torch.int64)
        head[0, 0], head[0, 1] = clock + 1, size
        self.answers.push(head, keys=[first])

    def join(self) -> None:
        """Takes the others' weights, buffers and optimiser's state. Returns at the clock after theirs."""
        session = self.run._session
        while True:
            clock = session.now()
            if len(session.live_ranks()) < 2:
                raise RunError("this worker came to a run that nobody is left of, so that nobody can give it the weights; start a new run")
            self.marks.come(clock)
            session.clock()
            self.marks.ask().wait()
            # Other marks may be heard instead if this clock had ended before.
            if self.hear(clock) > 0:
                self.asked = None
                content = self._await_answer(clock)
                if content is not None:
                    return self._take(torch.load(io.BytesIO(content), weights_only=True))

    def _await_answer(self, clock: int) -> Optional[bytes]:
        session, limit = self.run._session, time.monotonic() + AGAIN_SECONDS
        asked = others = [rank for rank in session.live_ranks() if rank != self.run.rank]
        while others == asked and time.monotonic() < limit:
            for first in (rank << 32 for rank in others):
                head = self.answers.pull(torch.tensor([first]))[0]
                if head[0] == clock + 1:
                    size = int(head[1])
                    rows = self.answers.pull(torch.arange(first + 1, first + 1 + -(-size // (WIDTH * 8))))
                    return rows.numpy().tobytes()[:size]
            time.sleep(LOOK_SECONDS)
            others = [rank for rank in session.live_ranks() if rank != self.run.rank]
        return None

    def _take(self, given: dict[str, Any]) -> None:
        with torch.no_grad():
            for tensor, theirs in zip(self._tensors(), given["tensors"], strict=True):
                tensor.copy_(theirs)
        self.optimizer.load_state_dict(given["optimizer"])

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *(buffer for buffer in self.model.buffers() if buffer is not None)]

"""Workers that join a lock-step run under way: they ask for the weights, and another worker sends
those of a clock that all agree on.

In lock-step the workers have the weights, which are equal whenever a step is done.

1. A new worker takes part from the clock of the other workers on, which does not end without it. It
   pushes a mark in that clock, and no gradient.
2. All workers read the marks when the clock is over, together with the means, and take their step.
3. The first worker (the live one of the lowest rank) sends weights, buffers and the optimiser's
   state.
4. From the next clock on the new worker trains as the others do.
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
# How often a new worker looks for the answer, and after how long it asks again, because the worker
# that should answer may be lost.
LOOK_SECONDS = 0.01
AGAIN_SECONDS = 30.0


class Joining:
    """The questions and answers between the workers of one optimiser when a worker joins."""

    def __init__(self, run: Any, number: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, marks: Marks):
        self.run, self.model, self.optimizer, self.marks = run, model, optimizer, marks
        # The answering worker's rows begin at its rank × 2**32. The first row has the clock and the
        # size of the rest.
        self.answers = Table(f".answers {number}", width=WIDTH, dtype="int64", updater="assign", slack=None)
        # The clock in which a worker has joined, until it is answered.
        self.asked: Optional[int] = None

    def hear(self, clock: int) -> float:
        """Returns the share of workers that joined in that clock, by its marks."""
        share = self.marks.came(clock)
        self.asked = clock if share > 0 else self.asked
        return share

    def answer(self) -> None:
        """Sends this worker's state to the workers that joined, if this is the first worker. Called
        when the step of that clock is done."""
        clock, self.asked = self.asked, None
        # Workers that join have higher ranks, so the lowest rank has the weights.
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
        """Takes the other workers' weights, buffers and optimiser state. Returns in the clock after
        the one they are of. Raises :class:`RunError` if no other worker is left."""
        session = self.run._session
        while True:
            clock = session.now()
            if len(session.live_ranks()) < 2:
                raise RunError("this worker joined a run that all other workers have left, so none can give it the weights; start a new run")
            self.marks.come(clock)
            session.clock()
            self.marks.ask().wait()
            # If the clock had ended before this worker's mark, the marks are of another clock: try
            # again.
            if self.hear(clock) > 0:
                self.asked = None
                content = self._await_answer(clock)
                if content is not None:
                    return self._take(torch.load(io.BytesIO(content), weights_only=True))

    def _await_answer(self, clock: int) -> Optional[bytes]:
        """Waits for the answer to the mark of a clock. None if it is time to ask again."""
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
        """Copies an answer into the model and the optimiser."""
        with torch.no_grad():
            for tensor, theirs in zip(self._tensors(), given["tensors"], strict=True):
                tensor.copy_(theirs)
        self.optimizer.load_state_dict(given["optimizer"])

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *(buffer for buffer in self.model.buffers() if buffer is not None)]

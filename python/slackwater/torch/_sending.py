"""Priority queue of a step's pushes (credit-based flow control, as in BytePS): at most so many
bytes are under way, and waiting pushes of front layers go first.

Backward computes the last layers' gradients first, and the next forward needs the first layers
first. Pushes that were handed over keep their order. So only as many bytes are handed over as keep
the network busy.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Callable, Optional

from .._slackwater import RefusedError, Ticket

# How many bytes may be under way: enough to keep the network busy until the next gradient comes.
CREDIT_BYTES = 16 << 20


class Pushed:
    """A push of the queue: it waits, is under way, or is done."""

    def __init__(self, size: int, push: Callable[[], Ticket]):
        self.size = size
        self._push = push
        self._ticket: Optional[Ticket] = None
        self._refused: Optional[RefusedError] = None

    def send(self) -> None:
        """Hands the push over to the worker."""
        self._ticket = self._push()

    def is_done(self) -> bool:
        """Whether it was sent and is done."""
        return self._ticket is not None and self._ticket.done()

    def settle(self) -> None:
        """Waits until it is done or refused. It must have been sent."""
        try:
            if self._refused is None:
                self._ticket.wait()
        except RefusedError as error:
            self._refused = error

    def wait(self) -> None:
        """Waits until it is done. Raises RefusedError if it was refused."""
        self.settle()
        if self._refused is not None:
            raise self._refused


class Sending:
    """The queue of a step's pushes."""

    def __init__(self, credit: int = CREDIT_BYTES):
        self.credit = credit
        self._waiting: list[tuple[int, int, Pushed]] = []
        self._under_way: deque[Pushed] = deque()
        self._asked = 0

    def push(self, place: int, size: int, push: Callable[[], Ticket]) -> Pushed:
        """Sends or queues a push of ``size`` bytes for the layer ``place``, counted from the front.
        ``push`` makes it."""
        pushed = Pushed(size, push)
        self._asked += 1
        heapq.heappush(self._waiting, (place, self._asked, pushed))
        self.proceed()
        return pushed

    def proceed(self) -> None:
        """Sends the pushes that the credit allows. A push larger than the credit goes when no other
        is under way."""
        while self._under_way and self._under_way[0].is_done():
            self._under_way.popleft()
        used = sum(pushed.size for pushed in self._under_way)
        while self._waiting and (not self._under_way or used + self._waiting[0][2].size <= self.credit):
            _, _, pushed = heapq.heappop(self._waiting)
            pushed.send()
            used += pushed.size
            self._under_way.append(pushed)

    def drop(self) -> None:
        """Forgets waiting pushes, and waits until sent ones are done: their memory may change from
        then on."""
        self._waiting.clear()
        while self._under_way:
            self._under_way.popleft().settle()

    def finish(self) -> None:
        """Waits until every push has been sent. Some may still be under way."""
        while self._waiting:
            self._under_way.popleft().settle()
            self.proceed()
        self._under_way.clear()

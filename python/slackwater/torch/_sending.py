"""Pushes that compete for the network: so many bytes are under way at once, and of what waits the front layers' goes first.

Backward comes to the last layers first, and the next forward wants the first ones first. What has been handed over keeps its order, so
only so much is handed over as keeps the network busy (the credits of BytePS).
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Callable, Optional

from .._slackwater import RefusedError, Ticket

# What keeps the network busy until the next gradient comes.
CREDIT_BYTES = 16 << 20


class Pushed:
    """A push that was asked for: it waits, is under way, or is done."""

    def __init__(self, size: int, push: Callable[[], Ticket]):
        self.size = size
        self._push = push
        self._ticket: Optional[Ticket] = None
        self._refused: Optional[RefusedError] = None

    def send(self) -> None:
        self._ticket = self._push()

    def is_done(self) -> bool:
        return self._ticket is not None and self._ticket.done()

    def settle(self) -> None:
        """Waits until it is done, well or not. It must have been sent."""
        try:
            if self._refused is None:
                self._ticket.wait()
        except RefusedError as error:
            self._refused = error

    def wait(self) -> None:
        """Waits until it is done. Raises if it was refused."""
        self.settle()
        if self._refused is not None:
            raise self._refused


class Sending:
    """The pushes of a step."""

    def __init__(self, credit: int = CREDIT_BYTES):
        self.credit = credit
        self._waiting: list[tuple[int, int, Pushed]] = []
        self._under_way: deque[Pushed] = deque()
        self._asked = 0

    def push(self, place: int, size: int, push: Callable[[], Ticket]) -> Pushed:
        """Sends, or puts aside, what ``push`` pushes: ``size`` bytes for the layer at ``place``, counted from the front."""
        pushed = Pushed(size, push)
        self._asked += 1
        heapq.heappush(self._waiting, (place, self._asked, pushed))
        self.proceed()
        return pushed

    def proceed(self) -> None:
        """Sends what may be sent by now. What is larger than the credit goes when nothing else is under way."""
        while self._under_way and self._under_way[0].is_done():
            self._under_way.popleft()
        used = sum(pushed.size for pushed in self._under_way)
        while self._waiting and (not self._under_way or used + self._waiting[0][2].size <= self.credit):
            _, _, pushed = heapq.heappop(self._waiting)
            pushed.send()
            used += pushed.size
            self._under_way.append(pushed)

    def drop(self) -> None:
        """Forgets what waits, and returns when what was sent is done: its memory may be changed from then on."""
        self._waiting.clear()
        while self._under_way:
            self._under_way.popleft().settle()

    def finish(self) -> None:
        """Returns when everything has been sent, though not all of it is done."""
        while self._waiting:
            self._under_way.popleft().settle()
            self.proceed()
        self._under_way.clear()

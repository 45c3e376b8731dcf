"""Weights that workers share through tables, for steps with slack and on servers: pushes and reads
travel while the worker computes the next step."""

from __future__ import annotations

import time
import warnings
from typing import Any, Callable, Optional

import torch

from .._slackwater import Keys, RefusedError, Ticket
from .._table import Table
from . import _flat
from ._buffers import Buffers
from ._policies import Named, Scaled

# How long a worker waits before it asks the servers again, in seconds: about a round trip.
AGAIN_SECONDS = 0.002


class Weights:
    """Parameters of one type in flat memory. The optimiser works on it in place, and pulls write
    it."""

    def __init__(self, named: Named, dtype: torch.dtype, table: Callable[[_flat.Flat], Table]):
        self.flat = _flat.Flat(named, dtype)
        self.inside = []
        with torch.no_grad():
            for piece in self.flat.pieces:
                view = piece.view(self.flat.memory)
                view.copy_(piece.tensor)
                inside = piece.tensor.device == view.device and piece.tensor.dtype == view.dtype
                if inside:
                    piece.tensor.data = view
                self.inside.append(inside)
        self.change = torch.zeros_like(self.flat.memory)
        self.table = table(self.flat)
        # The rows of the read under way, its ticket, and the tickets of pushes under way.
        self.ahead = torch.zeros_like(self.flat.memory)
        self.asked: Optional[Ticket] = None
        self.pushed: list[Ticket] = []
        self.keys: dict[int, Keys] = {}
        self.versions: list[int] = []

    def ask(self) -> None:
        """Asks for the rows. :meth:`take` takes them when the next step is done."""
        self.asked = self.table.pull_async(out=self.ahead)

    def take(self) -> torch.Tensor:
        """Waits for the rows that :meth:`ask` asked for, and returns them."""
        if self.asked is not None:
            self.asked.wait()
        return self.ahead

    def read_whole(self, clock: int) -> None:
        """Reads the rows from the servers, bypassing the cache, once they reflect every update of
        clocks below ``clock``."""
        self.take()
        self.asked, reached = None, -1
        while reached < clock:
            time.sleep(0.0 if reached < 0 else AGAIN_SECONDS)
            _, values, reached = self.table._table.pull_all()
        self.ahead.copy_(torch.frombuffer(bytearray(values), dtype=self.flat.dtype))

    def settle(self) -> None:
        """Waits until the last pushes are done: their memory may change from then on."""
        pushed, self.pushed = self.pushed, []
        for ticket in pushed:
            ticket.wait()

    def push(self, pieces: list[_flat.Piece]) -> None:
        """Pushes the changes of these tensors. ``change`` must not change until :meth:`settle`
        returns."""
        if len(pieces) == len(self.flat.pieces):
            self.pushed.append(self.table._table.push_lent(self.change, None, 1))
            return
        for piece in pieces:
            if piece.first not in self.keys:
                first = piece.first // _flat.WIDTH
                self.keys[piece.first] = self.table.keys(torch.arange(first, first + piece.rows))
            values = self.change[piece.first : piece.first + piece.rows * _flat.WIDTH]
            self.pushed.append(self.table._table.push_lent(values, self.keys[piece.first], 1))

    def note_versions(self) -> None:
        """Notes the versions of the parameters, to notice changes by other code from now on."""
        self.versions = [piece.tensor._version for piece in self.flat.pieces]

    @property
    def was_changed(self) -> bool:
        """Whether other code has changed a parameter."""
        return bool(self.versions) and self.versions != [piece.tensor._version for piece in self.flat.pieces]

    def not_finite(self) -> Optional[str]:
        """The name of a parameter whose change is not finite, or None."""
        # The sum is cheap: it allocates nothing. Only if it is not finite are the elements checked.
        if bool(torch.isfinite(self.change.sum())) or bool(torch.isfinite(self.change).all()):
            return None
        return self.flat.names_at(int((~torch.isfinite(self.change)).nonzero()[0]) // _flat.WIDTH)

    def gather(self) -> None:
        """Copies parameters that lie elsewhere into the flat memory."""
        for piece, inside in zip(self.flat.pieces, self.inside):
            if not inside:
                piece.view(self.flat.memory).copy_(piece.tensor.detach())

    def scatter(self) -> None:
        """Copies the flat memory to parameters that lie elsewhere."""
        with torch.no_grad():
            for piece, inside in zip(self.flat.pieces, self.inside):
                if not inside:
                    piece.tensor.copy_(piece.view(self.flat.memory))


class Sharer:
    """Shares parts and buffers with the other workers: pushes and reads that are under way while
    the program computes."""

    def __init__(self, run: Any, parts: list[Weights], buffers: Optional[Buffers], number: int):
        self.run, self.parts, self.buffers = run, parts, buffers
        self.asked_buffers: Optional[Ticket] = None
        # The clock of each worker when it came to `meet`, by rank.
        self.clocks = Table(f".clocks {number}", dtype="int64", updater="assign", slack=None)

    def share(self, pieces: list[list[_flat.Piece]]) -> None:
        """Pushes the changed pieces of each part, and ends the clock."""
        for part, changed in zip(self.parts, pieces):
            part.push(changed)
        if self.buffers:
            # The end of the clock raises a failure.
            self.buffers.push()
        self.run._session.clock()

    def ask(self) -> None:
        """Asks for the next rows. Takes the buffers that were asked for before, and asks for the
        next ones."""
        for part in self.parts:
            part.ask()
        if self.buffers:
            self.buffers.take(self.asked_buffers)
            self.asked_buffers = self.buffers.ask()

    def meet(self) -> int:
        """Waits until all workers are here and the servers have everything that they pushed. Brings
        all workers to the same clock, and returns it."""
        for part in self.parts:
            part.settle()
        pushed = self.buffers.push() if self.buffers else None
        if pushed is not None:
            pushed.wait()
        session = self.run._session
        barrier = session.stand_at_barrier()
        while not session.is_past_barrier(barrier):
            # A worker that has not arrived may wait in a read for this worker's clock: end clocks
            # for it.
            _, _, reached = self.clocks._table.pull_all()
            if reached >= session.now():
                session.clock()
            time.sleep(AGAIN_SECONDS)
        self.clocks.push(torch.tensor([session.now()]), keys=[self.run.rank])
        session.barrier()
        # The highest clock of all workers that ever met, so that all compute the same.
        _, clocks, _ = self.clocks._table.pull_all()
        last = int(torch.frombuffer(bytearray(clocks), dtype=torch.int64).max())
        for _ in range(session.now(), last):
            session.clock()
        return last

    def read(self, together: bool) -> None:
        """Reads everything anew. With ``together``: all pushes that any worker has made, and none
        that come later. Otherwise: what the servers have by now."""
        clock = self.meet() if together else 0
        for part in self.parts:
            if together:
                part.read_whole(clock)
            else:
                part.take()
                part.ask()
        if self.buffers:
            # An earlier read writes to the same memory, so it must be done first.
            self.buffers.take(self.asked_buffers)
            self.asked_buffers = None
            self.buffers.take(self.buffers.ask())
        if together:
            self.run._session.barrier()


def by_dtype(named: Named) -> list[tuple[torch.dtype, Named]]:
    """Groups parameters by the number type of their table."""
    found: dict[torch.dtype, Named] = {}
    for name, parameter in named:
        found.setdefault(_flat.table_dtype(parameter.dtype), []).append((name, parameter))
    return list(found.items())


def unscale(parts: list[Weights], scaled: Scaled) -> None:
    """Divides gradients by the scale of a GradScaler, if it has not done so itself."""
    if scaled.by is None or scaled.is_lost:
        return
    for part in parts:
        for piece in part.flat.pieces:
            if piece.tensor.grad is not None:
                piece.tensor.grad.div_(scaled.by.to(piece.tensor.grad.device))


def not_finite_gradient(parts: list[Weights]) -> Optional[str]:
    """The name of a parameter whose gradient is not finite, or None."""
    for part in parts:
        for piece in part.flat.pieces:
            gradient = piece.tensor.grad
            if gradient is not None and not bool(torch.isfinite(gradient.sum())) and not bool(torch.isfinite(gradient).all()):
                return piece.name
    return None


def refused(rank: int, name: str) -> RefusedError:
    """The exception for a gradient or change that is not finite."""
    return RefusedError(f"what worker {rank} would push for '{name}' is not finite; nothing was pushed, and its weights are as they were")


def warn_if_changed(parts: list[Weights]) -> None:
    """Warns if other code has changed weights since the last step."""
    if any(part.was_changed for part in parts):
        warnings.warn(
            "weights were changed outside of step(), and the next step will restore the servers' weights; if a state was loaded, call optimizer.give_weights() on every worker",
            stacklevel=4,
        )

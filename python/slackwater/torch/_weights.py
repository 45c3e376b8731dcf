"""What a step means where weights are shared: sums of changes, or optimisers on the servers. Both travel while the next step is computed."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

import torch

from .._slackwater import RefusedError, Ticket
from .._table import Table
from . import _first, _flat
from ._policies import Buffers, Named

# How long a worker waits before it asks again for rows that hold all of a clock: about a round trip.
AGAIN_SECONDS = 0.002


class Weights:
    """Parameters of one type in one flat memory, where the optimiser finds them, and pulls write them."""

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
        # Rows that were asked for and those that are pushed, while the program computes.
        self.ahead = torch.zeros_like(self.flat.memory)
        self.asked: Optional[Ticket] = None
        self.pushed: Optional[Ticket] = None

    def ask(self) -> None:
        """Asks for rows, to be taken when the next step is done."""
        self.asked = self.table.pull_async(out=self.ahead)

    def take(self) -> torch.Tensor:
        """The rows that were asked for."""
        if self.asked is not None:
            self.asked.wait()
        return self.ahead

    def read_whole(self, clock: int) -> None:
        """Brings the servers' rows, whatever copies are here, once everything of the clocks below ``clock`` is in them."""
        self.take()
        self.asked, reached = None, -1
        while reached < clock:
            time.sleep(0.0 if reached < 0 else AGAIN_SECONDS)
            _, values, reached = self.table._table.pull_all()
        self.ahead.copy_(torch.frombuffer(bytearray(values), dtype=self.flat.dtype))

    def settle(self) -> None:
        """Waits until the last push is done: its memory may be changed from then on."""
        if self.pushed is not None:
            self.pushed.wait()
            self.pushed = None

    def gather(self) -> None:
        """Brings what lies elsewhere into the flat memory."""
        for piece, inside in zip(self.flat.pieces, self.inside):
            if not inside:
                piece.view(self.flat.memory).copy_(piece.tensor.detach())

    def scatter(self) -> None:
        """Brings the flat memory to what lies elsewhere."""
        with torch.no_grad():
            for piece, inside in zip(self.flat.pieces, self.inside):
                if not inside:
                    piece.tensor.copy_(piece.view(self.flat.memory))


def _by_dtype(named: Named) -> list[tuple[torch.dtype, Named]]:
    found: dict[torch.dtype, Named] = {}
    for name, parameter in named:
        found.setdefault(_flat.table_dtype(parameter.dtype), []).append((name, parameter))
    return list(found.items())


class Deltas:
    """Slack > 0: each worker's changes, divided by their number, are added to weights that all share.

    What one step pushes, and the weights after it, travel while the next step is computed. They are asked for a clock early, so a table's slack is
    one less than the optimiser's.
    """

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer = run, optimizer
        self.sharing, self.samples = True, 1.0

        def table(index: int, dtype: torch.dtype) -> Callable[[_flat.Flat], Table]:
            return lambda flat: Table(
                f"weights {number}.{index}", rows=flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype),
                updater="sum", slack=slack - 1, codecs=_flat.upward(codecs),
            )  # fmt: skip

        self.parts = [
            Weights(together, dtype, table(index, dtype)) for index, (dtype, together) in enumerate(_by_dtype(named))
        ]
        _first.root_first(run, 0, lambda: [part.table.push(part.flat.memory) for part in self.parts])
        self.sharer = Sharer(run, self.parts, buffers, number)
        if run._session.came_later:
            self.synchronize(together=False)
        else:
            # Worker 0's weights are everybody's already.
            self.sharer.ask()

    def synchronize(self, together: bool) -> None:
        self.sharer.read(together)
        for part in self.parts:
            part.flat.memory.copy_(part.take())
            part.scatter()

    def step(self, closure: Optional[Callable[[], Any]]) -> Any:
        for part in self.parts:
            part.settle()
            part.gather()
            part.change.copy_(part.flat.memory)
        result = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        live = len(self.run._session.live_ranks())
        for part in self.parts:
            part.gather()
            torch.sub(part.flat.memory, part.change, out=part.change)
            part.change.mul_(1.0 / max(1, live))
        self.sharer.share()
        for part in self.parts:
            # They were asked for before this step, and hold this worker's earlier ones.
            torch.add(part.take(), part.change, out=part.flat.memory)
            part.scatter()
        self.sharer.ask()
        return result


class Sharer:
    """Pushes and reads that are under way while the program computes."""

    def __init__(self, run: Any, parts: list[Weights], buffers: Optional[Buffers], number: int):
        self.run, self.parts, self.buffers = run, parts, buffers
        self.asked_buffers: Optional[Ticket] = None
        # The clock of each worker when it came to `meet`, by rank.
        self.clocks = Table(f".clocks {number}", dtype="int64", updater="assign", slack=None)

    def share(self) -> None:
        """Pushes what has changed and ends the clock. What is refused is raised with its parameter's name."""
        for part in self.parts:
            if not bool(torch.isfinite(part.change).all()):
                row = int((~torch.isfinite(part.change)).nonzero()[0]) // _flat.WIDTH
                name = part.flat.names_at(row)
                raise RefusedError(f"what worker {self.run.rank} would push for '{name}' is not finite; nothing was pushed")
        for part in self.parts:
            part.pushed = part.table._table.push_lent(part.change, None, 1)
        if self.buffers:
            # A failure shows at the end of the clock.
            self.buffers.push()
        self.run._session.clock()

    def ask(self) -> None:
        """Takes the buffers that were asked for, and asks for everything that comes next."""
        for part in self.parts:
            part.ask()
        if self.buffers:
            self.buffers.take(self.asked_buffers)
            self.asked_buffers = self.buffers.ask()

    def meet(self) -> int:
        """Waits for all workers, each of which comes when the servers have all that it pushed. Then all are at the same clock, which is returned."""
        for part in self.parts:
            part.settle()
        pushed = self.buffers.push() if self.buffers else None
        if pushed is not None:
            pushed.wait()
        session = self.run._session
        self.clocks.push(torch.tensor([session.now()]), keys=[self.run.rank])
        # Nothing is read before: a read may wait for a worker that stands here.
        session.barrier()
        # Of all that there ever were, so that nobody counts other workers than the others do.
        _, clocks, _ = self.clocks._table.pull_all()
        last = int(torch.frombuffer(bytearray(clocks), dtype=torch.int64).max())
        for _ in range(session.now(), last):
            session.clock()
        return last

    def read(self, together: bool) -> None:
        """Reads everything anew: ``together`` with all that anybody has pushed, and nothing that is pushed later, else with what has arrived by now."""
        clock = self.meet() if together else 0
        for part in self.parts:
            if together:
                part.read_whole(clock)
            else:
                part.take()
                part.ask()
        if self.buffers:
            # What was asked for earlier comes to the same memory.
            self.buffers.take(self.asked_buffers)
            self.asked_buffers = None
            self.buffers.take(self.buffers.ask())
        if together:
            self.run._session.barrier()


class OnServers:
    """The servers keep the optimiser's state: gradients go up, and what they make of the first weights comes down.

    Gradients are pushed by ``step()``, so that clipping and scaling are heeded. With slack they travel while the next step is computed, and so do
    the weights, which are asked for a clock early.
    """

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.is_ahead = run, optimizer, slack > 0
        self.sharing, self.samples = True, 1.0
        names = {id(parameter): name for name, parameter in named}
        self.parts: list[Weights] = []
        self.groups: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            updater, settings = _updater(optimizer, group)
            own = [(names[id(parameter)], parameter) for parameter in group["params"] if id(parameter) in names]
            for dtype, together in _by_dtype(own):
                index = len(self.parts)

                def table(flat: _flat.Flat) -> Table:
                    return Table(
                        f"weights {number}.{index}", rows=flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype),
                        updater=updater, slack=max(0, slack - 1), combine="mean", codecs=codecs,
                        cached_rows=_flat.cached(codecs, flat.rows), **settings,
                    )  # fmt: skip

                self.parts.append(Weights(together, dtype, table))
                self.groups.append(group)
        # Rows begin at zero: they are what the weights have changed by.
        self.first = [part.flat.memory.clone() for part in self.parts]
        self.rates = [group["lr"] for group in self.groups]
        self.sharer = Sharer(run, self.parts, buffers, number)
        self.synchronize(together=False)

    def synchronize(self, together: bool) -> None:
        self.sharer.read(together)
        self._take()

    def _take(self) -> None:
        for part, first in zip(self.parts, self.first):
            torch.add(part.take(), first, out=part.flat.memory)
            part.scatter()

    def step(self, closure: Optional[Callable[[], Any]]) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for place, (part, group) in enumerate(zip(self.parts, self.groups)):
            if group["lr"] != self.rates[place]:
                self.rates[place] = group["lr"]
                if self.run.rank == 0:
                    part.table.set_rate(group["lr"])
            part.settle()
            part.change.zero_()
            for piece in part.flat.pieces:
                if piece.tensor.grad is not None:
                    piece.view(part.change).copy_(piece.tensor.grad)
        self.sharer.share()
        if self.is_ahead:
            self._take()
            self.sharer.ask()
        else:
            self.synchronize(together=False)
        return result


def _updater(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The servers' updater that does what this optimiser does."""
    kind = type(optimizer).__name__
    odd = [name for name in ("weight_decay", "nesterov", "amsgrad", "maximize", "dampening", "lr_decay") if group.get(name)]
    if odd:
        raise ValueError(f"servers have no {kind} with {', '.join(odd)}; leave that out, or say on='workers'")
    if kind == "SGD" and not group["momentum"]:
        return "sgd", {"rate": group["lr"]}
    if kind == "SGD":
        return "momentum", {"rate": group["lr"], "momentum": group["momentum"]}
    if kind == "Adagrad" and not group["initial_accumulator_value"]:
        return "adagrad", {"rate": group["lr"], "epsilon": group["eps"]}
    if kind == "Adam":
        beta1, beta2 = group["betas"]
        return "adam", {"rate": group["lr"], "beta1": beta1, "beta2": beta2, "epsilon": group["eps"]}
    raise ValueError(f"servers have no {kind}: they have SGD, Adagrad and Adam; say on='workers'")

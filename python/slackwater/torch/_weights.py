"""What a step means where weights are shared: sums of changes, or optimisers on the servers. Both travel while the next step is computed."""

from __future__ import annotations

import time
import warnings
from typing import Any, Callable, Optional

import torch

from .._slackwater import Keys, RefusedError, Ticket
from .._table import Table
from . import _first, _flat
from ._buffers import Buffers
from ._policies import Named, Scaled

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
        self.pushed: list[Ticket] = []
        self.keys: dict[int, Keys] = {}
        self.versions: list[int] = []

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
        pushed, self.pushed = self.pushed, []
        for ticket in pushed:
            ticket.wait()

    def push(self, pieces: list[_flat.Piece]) -> None:
        """Pushes the change of these, which may be changed again when it is settled."""
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
        """From now on whoever changes a parameter is not this optimiser."""
        self.versions = [piece.tensor._version for piece in self.flat.pieces]

    @property
    def was_changed(self) -> bool:
        """Whether somebody else has changed a parameter."""
        return bool(self.versions) and self.versions != [piece.tensor._version for piece in self.flat.pieces]

    def not_finite(self) -> Optional[str]:
        """The name of a parameter whose change is not finite."""
        # A sum is read once and makes nothing; only one that is not finite asks for a second look.
        if bool(torch.isfinite(self.change.sum())) or bool(torch.isfinite(self.change).all()):
            return None
        return self.flat.names_at(int((~torch.isfinite(self.change)).nonzero()[0]) // _flat.WIDTH)

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

    # A GradScaler finds what is not finite on one worker alone, which ends its clock all the same.
    unscales = True

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
            for part in self.parts:
                part.note_versions()

    def recover(self) -> None:
        """Nothing is under way between a backward and its step."""

    def synchronize(self, together: bool) -> None:
        self.sharer.read(together)
        for part in self.parts:
            part.flat.memory.copy_(part.take())
            part.scatter()
            part.note_versions()

    def give_weights(self) -> None:
        """Gives everybody the first worker's weights."""
        mine = [part.flat.memory.clone() for part in self.parts]
        self.sharer.read(True)

        def give() -> None:
            for part, weights in zip(self.parts, mine):
                part.table.push(weights - part.take())

        _first.root_first(self.run, min(self.run._session.live_ranks()), give)
        self.synchronize(together=True)

    def step(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> Any:
        _warn_if_changed(self.parts)
        for part in self.parts:
            part.settle()
            part.gather()
            part.change.copy_(part.flat.memory)
        result, lost = self._step_alone(closure, scaled)
        lost = self._find_change() or lost
        if lost is not None:
            for part in self.parts:
                part.change.zero_()
        self.sharer.share([part.flat.pieces if lost is None else [] for part in self.parts])
        for part in self.parts:
            # They were asked for before this step, and hold this worker's earlier ones.
            torch.add(part.take(), part.change, out=part.flat.memory)
            part.scatter()
            part.note_versions()
        self.sharer.ask()
        if lost is not None and not scaled.is_lost:
            raise _refused(self.run.rank, lost)
        return result

    def _step_alone(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> tuple[Any, Optional[str]]:
        """A step of the local optimiser, unless a gradient is not finite: its state would never be again. Returns what the closure did, and that gradient's name."""
        lost: Optional[str] = None

        def is_sound() -> bool:
            nonlocal lost
            _unscale(self.parts, scaled)
            lost = _not_finite_gradient(self.parts)
            return lost is None and not scaled.is_lost

        if closure is None:
            return (self.optimizer.step() if is_sound() else None), lost

        def checked() -> Any:
            found = closure()
            if not is_sound():
                self.optimizer.zero_grad()
            return found

        return self.optimizer.step(checked), lost

    def _find_change(self) -> Optional[str]:
        """Leaves in ``change`` what the step has changed, for its share of the workers. Returns the name of a parameter of which that is not finite."""
        lost: Optional[str] = None
        live = len(self.run._session.live_ranks())
        for part in self.parts:
            part.gather()
            torch.sub(part.flat.memory, part.change, out=part.change)
            part.change.mul_(1.0 / max(1, live))
            lost = lost or part.not_finite()
        return lost


class Sharer:
    """Pushes and reads that are under way while the program computes."""

    def __init__(self, run: Any, parts: list[Weights], buffers: Optional[Buffers], number: int):
        self.run, self.parts, self.buffers = run, parts, buffers
        self.asked_buffers: Optional[Ticket] = None
        # The clock of each worker when it came to `meet`, by rank.
        self.clocks = Table(f".clocks {number}", dtype="int64", updater="assign", slack=None)

    def share(self, pieces: list[list[_flat.Piece]]) -> None:
        """Pushes what has changed of each part, and ends the clock."""
        for part, changed in zip(self.parts, pieces):
            part.push(changed)
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
        barrier = session.stand_at_barrier()
        while not session.is_past_barrier(barrier):
            # Whoever is still on its way may have to read first, which waits for this worker's clock.
            _, _, reached = self.clocks._table.pull_all()
            if reached >= session.now():
                session.clock()
            time.sleep(AGAIN_SECONDS)
        self.clocks.push(torch.tensor([session.now()]), keys=[self.run.rank])
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

    # A GradScaler finds what is not finite on one worker alone, which ends its clock all the same.
    unscales = True

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.is_ahead = run, optimizer, slack > 0
        self.sharing, self.samples = True, 1.0
        names = {id(parameter): name for name, parameter in named}
        self.parts: list[Weights] = []
        # Of each part the place of its group, which is another one after `load_state_dict()`.
        self.groups: list[int] = []
        for place, group in enumerate(optimizer.param_groups):
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
                self.groups.append(place)
        # Rows begin at zero: they are what the weights have changed by.
        self.first = [part.flat.memory.clone() for part in self.parts]
        self.settings = [_updater(optimizer, group)[1] for group in optimizer.param_groups]
        self.sharer = Sharer(run, self.parts, buffers, number)
        self.synchronize(together=False)

    def recover(self) -> None:
        """Nothing is under way between a backward and its step."""

    def synchronize(self, together: bool) -> None:
        self.sharer.read(together)
        self._take()

    def _take(self) -> None:
        for part, first in zip(self.parts, self.first):
            torch.add(part.take(), first, out=part.flat.memory)
            part.scatter()
            part.note_versions()

    def give_weights(self) -> None:
        """Gives everybody the first worker's weights: from now on what the servers have is counted from these."""
        tensors = [part.flat.memory.clone() for part in self.parts]
        _first.broadcast(self.run, tensors, min(self.run._session.live_ranks()))
        self.sharer.read(True)
        for part, first, weights in zip(self.parts, self.first, tensors):
            torch.sub(weights, part.take(), out=first)
        self._take()

    def step(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> Any:
        _warn_if_changed(self.parts)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._tune()
        _unscale(self.parts, scaled)
        lost: Optional[str] = None
        used = []
        for part in self.parts:
            part.settle()
            with_gradient = [piece for piece in part.flat.pieces if piece.tensor.grad is not None]
            for piece in with_gradient:
                piece.view(part.change).copy_(piece.tensor.grad)
            lost = lost or part.not_finite()
            # What nobody pushes stays as it is, and so does the state of its optimiser.
            used.append(with_gradient)
        is_lost = lost is not None or scaled.is_lost
        if lost is not None:
            for part in self.parts:
                part.change.zero_()
        self.sharer.share([[] if is_lost else pieces for pieces in used])
        if self.is_ahead:
            self._take()
            self.sharer.ask()
        else:
            self.synchronize(together=False)
        if lost is not None and not scaled.is_lost:
            raise _refused(self.run.rank, lost)
        return result

    def _tune(self) -> None:
        """Has the servers follow the learning rates. The other settings are theirs for good."""
        for place, group in enumerate(self.optimizer.param_groups):
            _, settings = _updater(self.optimizer, group)
            known = self.settings[place]
            if other := [name for name in settings if name != "rate" and settings[name] != known[name]]:
                raise ValueError(
                    f"servers keep {', '.join(other)} as it was when the optimiser was made; leave it alone (cycle_momentum=False of OneCycleLR), or say on='workers'"
                )
            if settings["rate"] != known["rate"] and self.run.rank == min(self.run._session.live_ranks(), default=self.run.rank):
                for part, of in zip(self.parts, self.groups):
                    if of == place:
                        part.table.set_rate(settings["rate"])
            self.settings[place] = settings


def _unscale(parts: list[Weights], scaled: Scaled) -> None:
    """Divides gradients by what a GradScaler has multiplied them with, and has not divided them by yet."""
    if scaled.by is None or scaled.is_lost:
        return
    for part in parts:
        for piece in part.flat.pieces:
            if piece.tensor.grad is not None:
                piece.tensor.grad.div_(scaled.by.to(piece.tensor.grad.device))


def _not_finite_gradient(parts: list[Weights]) -> Optional[str]:
    """The name of a parameter whose gradient is not finite."""
    for part in parts:
        for piece in part.flat.pieces:
            gradient = piece.tensor.grad
            if gradient is not None and not bool(torch.isfinite(gradient.sum())) and not bool(torch.isfinite(gradient).all()):
                return piece.name
    return None


def _refused(rank: int, name: str) -> RefusedError:
    return RefusedError(f"what worker {rank} would push for '{name}' is not finite; nothing was pushed, and its weights are as they were")


def _warn_if_changed(parts: list[Weights]) -> None:
    if any(part.was_changed for part in parts):
        warnings.warn(
            "weights were changed outside of step(), and the servers have others, which the next step brings back; if a state was loaded, call optimizer.give_weights() on every worker",
            stacklevel=4,
        )


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

"""Steps with slack (stale synchronous parallel): each worker's optimiser makes a change of the
weights, and the servers add it to weights that all workers share."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .._table import Table
from . import _first, _flat
from ._buffers import Buffers
from ._policies import Named, Scaled
from ._weights import Sharer, Weights, by_dtype, not_finite_gradient, refused, unscale, warn_if_changed


class Deltas:
    """Slack > 0: the servers add each worker's changes, divided by the number of workers, to the
    shared weights.

    A step's push, and the read of the weights after it, travel while the worker computes the next
    step. The worker asks for weights a clock early, so the tables' slack is one less than the
    optimiser's.
    """

    # A GradScaler finds a gradient that is not finite on one worker alone, which must end its clock
    # all the same. So `step()` handles the scaling.
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
            Weights(together, dtype, table(index, dtype)) for index, (dtype, together) in enumerate(by_dtype(named))
        ]
        _first.root_first(run, 0, lambda: [part.table.push(part.flat.memory) for part in self.parts])
        self.sharer = Sharer(run, self.parts, buffers, number)
        if run._session.joined_late:
            self.synchronize(together=False)
        else:
            # All workers have worker 0's weights already.
            self.sharer.ask()
            for part in self.parts:
                part.note_versions()

    def recover(self) -> None:
        """Does nothing: no push is under way between a backward and its step."""

    def synchronize(self, together: bool) -> None:
        """Reads the shared weights anew: see :meth:`DistributedOptimizer.synchronize`."""
        self.sharer.read(together)
        for part in self.parts:
            part.flat.memory.copy_(part.take())
            part.scatter()
            part.note_versions()

    def give_weights(self) -> None:
        """Gives all workers the first worker's weights."""
        for part in self.parts:
            part.gather()
        mine = [part.flat.memory.clone() for part in self.parts]
        self.sharer.read(True)

        def give() -> None:
            for part, weights in zip(self.parts, mine):
                part.table.push(weights - part.take())

        _first.root_first(self.run, min(self.run._session.live_ranks()), give)
        self.synchronize(together=True)

    def step(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> Any:
        """Takes a step of the local optimiser, pushes its change, and takes the shared weights.
        Returns what the closure returned."""
        warn_if_changed(self.parts)
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
            # Asked for before this step, so these rows have this worker's earlier changes, but not
            # this one.
            torch.add(part.take(), part.change, out=part.flat.memory)
            part.scatter()
            part.note_versions()
        self.sharer.ask()
        if lost is not None and not scaled.is_lost:
            raise refused(self.run.rank, lost)
        return result

    def _step_alone(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> tuple[Any, Optional[str]]:
        """Takes a step of the local optimiser, unless a gradient is not finite: that would spoil
        its state for good. Returns what the closure returned, and the name of that gradient."""
        lost: Optional[str] = None

        def is_sound() -> bool:
            nonlocal lost
            unscale(self.parts, scaled)
            lost = not_finite_gradient(self.parts)
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
        """Computes into ``change`` what the step has changed, divided by the number of workers.
        Returns the name of a parameter whose change is not finite."""
        lost: Optional[str] = None
        live = len(self.run._session.live_ranks())
        for part in self.parts:
            part.gather()
            torch.sub(part.flat.memory, part.change, out=part.change)
            part.change.mul_(1.0 / max(1, live))
            lost = lost or part.not_finite()
        return lost

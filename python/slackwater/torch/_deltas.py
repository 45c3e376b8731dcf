"""What a step means with slack: the local optimiser makes a change, which is added to weights that all share."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .._table import Table
from . import _first, _flat
from ._buffers import Buffers
from ._policies import Named, Scaled
from ._weights import Sharer, Weights, by_dtype, not_finite_gradient, refused, unscale, warn_if_changed


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
            Weights(together, dtype, table(index, dtype)) for index, (dtype, together) in enumerate(by_dtype(named))
        ]
        _first.root_first(run, 0, lambda: [part.table.push(part.flat.memory) for part in self.parts])
        self.sharer = Sharer(run, self.parts, buffers, number)
        if run._session.joined_late:
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
            # They were asked for before this step, and hold this worker's earlier ones.
            torch.add(part.take(), part.change, out=part.flat.memory)
            part.scatter()
            part.note_versions()
        self.sharer.ask()
        if lost is not None and not scaled.is_lost:
            raise refused(self.run.rank, lost)
        return result

    def _step_alone(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> tuple[Any, Optional[str]]:
        """A step of the local optimiser, unless a gradient is not finite: its state would never be again. Returns what the closure did, and that gradient's name."""
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
        """Leaves in ``change`` what the step has changed, for its share of the workers. Returns the name of a parameter of which that is not finite."""
        lost: Optional[str] = None
        live = len(self.run._session.live_ranks())
        for part in self.parts:
            part.gather()
            torch.sub(part.flat.memory, part.change, out=part.change)
            part.change.mul_(1.0 / max(1, live))
            lost = lost or part.not_finite()
        return lost

"""Steps with ``on="servers"``: workers push gradients, the servers hold the optimiser and apply the
mean of each clock, and workers read the weights."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .._table import Table
from . import _first, _flat
from ._buffers import Buffers
from ._policies import Named, Scaled
from ._weights import Sharer, Weights, by_dtype, refused, unscale, warn_if_changed


class OnServers:
    """The servers hold the optimiser's state. Workers push gradients, and read how the weights have
    changed since the beginning.

    ``step()`` pushes the gradients, so they are clipped and unscaled before. With slack, gradients
    and weights travel while the worker computes the next step, and it asks for weights a clock
    early.
    """

    # A GradScaler finds a gradient that is not finite on one worker alone, which must end its clock
    # all the same. So `step()` handles the scaling.
    unscales = True

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.is_ahead = run, optimizer, slack > 0
        self.sharing, self.samples = True, 1.0
        names = {id(parameter): name for name, parameter in named}
        self.parts: list[Weights] = []
        # For each part, the index of its parameter group. The group objects change in
        # `load_state_dict()`.
        self.groups: list[int] = []
        for place, group in enumerate(optimizer.param_groups):
            updater, settings = _updater(optimizer, group)
            own = [(names[id(parameter)], parameter) for parameter in group["params"] if id(parameter) in names]
            for dtype, together in by_dtype(own):
                index = len(self.parts)

                def table(flat: _flat.Flat) -> Table:
                    return Table(
                        f"weights {number}.{index}", rows=flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype),
                        updater=updater, slack=max(0, slack - 1), combine="mean", codecs=codecs,
                        cached_rows=_flat.cached(codecs, flat.rows), **settings,
                    )  # fmt: skip

                self.parts.append(Weights(together, dtype, table))
                self.groups.append(place)
        # The first weights. Table rows begin at zero, and hold the change since then.
        self.first = [part.flat.memory.clone() for part in self.parts]
        self.settings = [_updater(optimizer, group)[1] for group in optimizer.param_groups]
        self.sharer = Sharer(run, self.parts, buffers, number)
        self.synchronize(together=False)

    def recover(self) -> None:
        """Does nothing: no push is under way between a backward and its step."""

    def synchronize(self, together: bool) -> None:
        """Reads the weights anew: see :meth:`DistributedOptimizer.synchronize`."""
        self.sharer.read(together)
        self._take()

    def _take(self) -> None:
        """Sets the weights to the first weights plus the rows that were read."""
        for part, first in zip(self.parts, self.first):
            torch.add(part.take(), first, out=part.flat.memory)
            part.scatter()
            part.note_versions()

    def give_weights(self) -> None:
        """Gives all workers the first worker's weights. The servers' changes are added to these
        from now on."""
        for part in self.parts:
            part.gather()
        tensors = [part.flat.memory.clone() for part in self.parts]
        _first.broadcast(self.run, tensors, min(self.run._session.live_ranks()))
        self.sharer.read(True)
        for part, first, weights in zip(self.parts, self.first, tensors):
            torch.sub(weights, part.take(), out=first)
        self._take()

    def step(self, closure: Optional[Callable[[], Any]], scaled: Scaled) -> Any:
        """Pushes gradients and takes the weights. Returns what the closure returned."""
        warn_if_changed(self.parts)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._tune()
        unscale(self.parts, scaled)
        lost: Optional[str] = None
        used = []
        for part in self.parts:
            part.settle()
            with_gradient = [piece for piece in part.flat.pieces if piece.tensor.grad is not None]
            for piece in with_gradient:
                piece.view(part.change).copy_(piece.tensor.grad)
            lost = lost or part.not_finite()
            # A parameter that no worker pushes stays as it is, with its optimiser state.
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
            raise refused(self.run.rank, lost)
        return result

    def _tune(self) -> None:
        """Sends changed learning rates to the servers. Raises ``ValueError`` if another setting has
        changed, because servers cannot change it."""
        for place, group in enumerate(self.optimizer.param_groups):
            _, settings = _updater(self.optimizer, group)
            known = self.settings[place]
            if other := [name for name in settings if name != "rate" and settings[name] != known[name]]:
                raise ValueError(
                    f"servers cannot change {', '.join(other)} after the optimiser was made; leave it as it was (cycle_momentum=False of OneCycleLR), or say on='workers'"
                )
            if settings["rate"] != known["rate"] and self.run.rank == min(self.run._session.live_ranks(), default=self.run.rank):
                for part, of in zip(self.parts, self.groups):
                    if of == place:
                        part.table.set_rate(settings["rate"])
            self.settings[place] = settings


def _updater(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The servers' updater and its settings that match an optimiser. Raises ``ValueError`` if there
    is none."""
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

"""An optimiser whose gradients, or weights, are everybody's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from .. import _run
from .._slackwater import RefusedError, RunError
from . import _buffers, _deltas, _first, _policies, _servers


def broadcast(tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Gives all workers what worker ``root`` has in these tensors, bit for bit. Every worker calls it, with tensors of the same shapes and types.

    >>> import torch, slackwater, slackwater.torch
    >>> run = slackwater.init()
    >>> slackwater.torch.broadcast([torch.ones(3), torch.tensor(float("-inf"))])
    >>> slackwater.shutdown()
    """
    _first.broadcast(_run.current(), list(tensors), root)


class DistributedOptimizer(torch.optim.Optimizer):
    """Makes ``optimizer``, which trains ``model``, one of a run of several workers.

    * ``slack=0``: when ``backward()`` returns, ``.grad`` holds the mean over all workers, as with DistributedDataParallel. Each gradient is pushed
      while backward goes on with the layers before it. Clipping, schedulers and ``GradScaler`` work as they do alone.
    * ``slack=s``: workers may be s clocks apart. ``step()`` takes a step of the local optimiser, adds the change, divided by the number of
      workers, to weights that all share, and reads those, while the next step is computed. The optimiser's state stays each worker's own.
    * ``on="servers"``: ``step()`` pushes gradients, the servers keep the optimiser's state and apply the mean of each clock, and
      weights are read. For SGD with and without momentum, Adagrad and Adam, without weight decay; learning rates follow the
      schedulers of worker 0. Together with ``slack``.

    ``codecs`` shrinks what is pushed, as in ``["1bit"]``, and on="servers" what is read, too; parameters that nobody used then get a mean of zero. ``average="samples"`` weighs each worker by ``set_samples(count)`` of its batch (slack 0).
    Worker 0's weights and buffers win at the beginning; its buffers, such as running means, are everybody's after each step unless
    ``broadcast_buffers=False``.

    A gradient that is not finite fails the step of all workers alike: a ``GradScaler`` skips it, and otherwise ``step()`` raises
    :class:`slackwater.RefusedError`, which names the parameter and the rank.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        slack: int = 0,
        codecs: Any = None,
        *,
        on: str = "workers",
        average: str = "workers",
        broadcast_buffers: bool = True,
    ):
        # Not `super().__init__`: groups and state are the wrapped optimiser's.
        if not isinstance(slack, int) or slack < 0:
            raise ValueError(f"slack={slack!r} is no number of steps; say 0 for lock-step, or how many steps a worker may be ahead")
        if on not in ("workers", "servers"):
            raise ValueError(f"on='{on}' is neither 'workers' nor 'servers'")
        if average not in ("workers", "samples"):
            raise ValueError(f"average='{average}' is neither 'workers' nor 'samples'")
        if average == "samples" and (slack > 0 or on == "servers"):
            raise ValueError("average='samples' goes with slack=0 on workers")
        if average == "samples" and codecs is not None:
            raise ValueError("average='samples' needs the numbers as they are; leave out codecs")
        self.optimizer = optimizer
        self.model = model
        run = _run.current()
        lock_step = slack == 0 and on == "workers"
        if run._session.joined_late and lock_step and run._took_weights:
            raise ValueError("a worker that came to a run under way can have one optimiser with slack=0; the others need slack=1, or on='servers'")
        names = _named_parameters(optimizer, model)
        broadcast_to_all(model, run)
        policy = {
            "codecs": codecs, "slack": slack, "run": run, "optimizer": optimizer,
            "number": run._session.unique_number(),
        }  # fmt: skip
        self._run = run
        self._buffers = _buffers.Buffers(model, **policy) if broadcast_buffers else None
        kind: Callable[..., Any]
        run._took_weights = run._took_weights or lock_step
        if on == "servers":
            kind = _servers.OnServers
        elif slack > 0:
            kind = _deltas.Deltas
        else:
            kind = _policies.Means
            policy.update(by_samples=average == "samples", model=model)
        self._policy = kind(names, self._buffers, **policy)

    # What schedulers, scalers and programs ask of an optimiser is the wrapped one's.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"Distributed{self.optimizer!r}"

    def __getstate__(self) -> Any:
        raise TypeError("a DistributedOptimizer belongs to its run; keep its state_dict() instead")

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimiser's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the wrapped optimiser's state."""
        self.optimizer.load_state_dict(state)

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise ValueError("add parameter groups to the optimiser before it is made distributed")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimiser does."""
        if self._run._session.is_open:
            self._policy.recover()
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes a step. Raises :class:`slackwater.RefusedError` if anybody's gradient was not finite."""
        if not self._run._session.is_open:
            raise RunError("the run of this optimiser is over; make another one in a new run, or train by the optimiser that it was made of")
        given = vars(self)
        return self._policy.step(closure, _policies.Scaled(given.get("grad_scale"), given.get("found_inf")))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What a ``GradScaler`` asks: whether it should call ``step()`` though gradients are scaled, or not finite."""
        return self._policy.unscales

    def give_weights(self) -> None:
        """Gives everybody the first worker's weights, after they were changed outside of ``step()``: by ``model.load_state_dict()``, for one. Every worker calls it."""
        self._policy.give_weights()

    def synchronize(self, together: bool = True) -> None:
        """Brings what all have made of the weights: before a model is tested or saved. Every worker calls it, and waits for the others.

        Each waits until the servers have all that it pushed, and then for the others. What everybody gets is the same: whatever anybody's steps changed until then,
        and nothing that came later. Workers that have ended fewer clocks than others end some, so that all are at the same one. With ``together=False``
        a worker reads alone and waits for nobody: what has arrived by now, at most ``slack`` steps behind. With ``slack=0`` there is nothing to
        do: weights are equal after each step.
        """
        self._policy.synchronize(together)

    def set_samples(self, count: float) -> None:
        """How many samples the gradients of the next ``backward()`` are the mean of, for ``average="samples"``."""
        self._policy.samples = float(count)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it ``backward()`` adds up gradients without sharing them, as DistributedDataParallel's does."""
        earlier, self._policy.sharing = self._policy.sharing, False
        try:
            yield
        finally:
            self._policy.sharing = earlier


def broadcast_to_all(model: torch.nn.Module, run: Any) -> None:
    """Worker 0's weights and buffers win."""
    tensors = [tensor for tensor in model.parameters()] + [tensor for tensor in model.buffers() if tensor is not None]
    if (run.size > 1 or run._session.others_may_come) and tensors:
        _first.broadcast(run, tensors, 0)


def _named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Those of the model that the optimiser trains, each once, front layers first."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) in trained]
    found = {id(parameter) for _, parameter in named}
    if missing := len(trained - found):
        raise ValueError(f"the optimiser trains {missing} parameters that the model does not have")
    if complex_ones := [name for name, parameter in named if parameter.is_complex()]:
        raise TypeError(f"parameters of complex numbers do not travel: {', '.join(complex_ones)}; keep torch.view_as_real() of them instead")
    return [(name, parameter) for name, parameter in named if parameter.requires_grad]


__all__ = ["DistributedOptimizer", "RefusedError", "broadcast"]

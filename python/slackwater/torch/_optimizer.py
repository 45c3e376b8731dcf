"""DistributedOptimizer: wraps a PyTorch optimiser so that all workers share gradients, or
weights."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from .. import _run
from .._slackwater import RefusedError, RunError
from . import _buffers, _deltas, _first, _policies, _servers


def broadcast(tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Copies worker ``root``'s values of these tensors to all workers, bit for bit. Every worker
    calls it, with tensors of the same shapes and types. Raises :class:`RunError` if ``root`` leaves
    before.

    >>> import torch, slackwater, slackwater.torch
    >>> run = slackwater.init()
    >>> slackwater.torch.broadcast([torch.ones(3), torch.tensor(float("-inf"))])
    >>> slackwater.shutdown()
    """
    _first.broadcast(_run.current(), list(tensors), root)


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps ``optimizer``, which trains ``model``, so that the workers of a run train together.
    ``step()`` also ends a clock: see :func:`slackwater.clock`. In lock-step ``backward()`` does.

    * ``slack=0`` (lock-step): when ``backward()`` returns, ``.grad`` holds the mean over all
      workers, as with DistributedDataParallel. Gradients travel while backward computes those of
      earlier layers. Clipping, schedulers and ``GradScaler`` work as without it.
    * ``slack=s``: workers may be s clocks apart. ``step()`` takes a step of the local optimiser,
      and adds the change, divided by the number of workers, to the shared weights. Pushes and reads
      travel while the worker computes the next step. Each worker keeps its own optimiser state.
    * ``on="servers"``: ``step()`` pushes gradients; the servers hold the optimiser's state and
      apply the mean of each clock; ``step()`` then reads the weights. For SGD with and without
      momentum, Adagrad and Adam, without weight decay. Learning rates follow the schedulers of the
      first worker (the live one of the lowest rank). Works with any ``slack``.
    * ``codecs``: codecs for pushes, as in ``["1bit"]``, and with ``on="servers"`` for reads too.
      With codecs, a parameter that no worker used gets a mean of zero.
    * ``average="samples"``: weighs each worker by ``set_samples(count)`` of its batch. With slack 0
      only.
    * ``broadcast_buffers``: whether all workers take the first worker's buffers, such as running
      means, after each step.

    All workers begin with worker 0's weights and buffers.

    A gradient that is not finite fails the step: with slack 0 of all workers alike, else of that
    worker. A ``GradScaler`` skips the step; without one, ``step()`` raises
    :class:`slackwater.RefusedError`, which names the parameter and the rank.

    Raises ``ValueError`` or ``TypeError`` for arguments that do not fit together, and
    :class:`slackwater.RunError` if this process is in no run.
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
        # Does not call `super().__init__`: groups and state are the wrapped optimiser's.
        if not isinstance(slack, int) or slack < 0:
            raise ValueError(f"slack={slack!r} is not a number of steps; say 0 for lock-step, or how many steps a worker may be ahead")
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
            raise ValueError("a worker that joined a run under way can have one optimiser with slack=0; make the others with slack=1, or on='servers'")
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

    # Schedulers, scalers and programs see the wrapped optimiser's groups, state and defaults.
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
        raise TypeError("a DistributedOptimizer belongs to its run and cannot be pickled; save its state_dict() instead")

    def state_dict(self) -> dict[str, Any]:
        """Returns the wrapped optimiser's state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state into the wrapped optimiser."""
        self.optimizer.load_state_dict(state)

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise ValueError("add parameter groups to the optimiser before it is made distributed")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, as the wrapped optimiser does."""
        if self._run._session.is_open:
            self._policy.recover()
        self.optimizer.zero_grad(set_to_none=set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes a step. Returns what ``closure`` returned, if it is given. Raises
        :class:`slackwater.RefusedError` if a gradient was not finite (with slack 0, of any worker),
        and :class:`slackwater.RunError` if the run is over."""
        if not self._run._session.is_open:
            if self._run._session.is_held:
                # The run is lost: the error names the first cause.
                self._run._session.check()
            raise RunError("the run of this optimiser is over; make another one in a new run, or train with the optimiser that it wraps")
        given = vars(self)
        return self._policy.step(closure, _policies.Scaled(given.get("grad_scale"), given.get("found_inf")))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Tells a ``GradScaler`` whether to call ``step()`` even if gradients are scaled, or not
        finite."""
        return self._policy.unscales

    def give_weights(self) -> None:
        """Gives all workers the first worker's weights. Call it on every worker after the weights
        were changed outside of ``step()``, for example by ``model.load_state_dict()``."""
        self._policy.give_weights()

    def synchronize(self, together: bool = True) -> None:
        """Gives all workers the same, current weights. Call it on every worker before the model is
        tested or saved; each waits for the others.

        The weights have all steps that workers took before the call, and none that came later.
        Workers that have ended fewer clocks than others end more, so that all are at the same
        clock.

        With ``together=False`` this worker reads alone and waits for no worker; the weights are at
        most ``slack`` steps behind. With ``slack=0`` the call is not needed, because weights are
        equal after each step.
        """
        self._policy.synchronize(together)

    def set_samples(self, count: float) -> None:
        """Sets how many samples the next ``backward()`` takes the mean of, for
        ``average="samples"``."""
        self._policy.samples = float(count)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which ``backward()`` adds up gradients without sharing them, as
        DistributedDataParallel's ``no_sync()``."""
        earlier, self._policy.sharing = self._policy.sharing, False
        try:
            yield
        finally:
            self._policy.sharing = earlier


def broadcast_to_all(model: torch.nn.Module, run: Any) -> None:
    """Gives all workers worker 0's weights and buffers."""
    tensors = [tensor for tensor in model.parameters()] + [tensor for tensor in model.buffers() if tensor is not None]
    if (run.size > 1 or run._session.others_may_come) and tensors:
        _first.broadcast(run, tensors, 0)


def _named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that the optimiser trains, with their names in the model, each once, front
    layers first."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) in trained]
    found = {id(parameter) for _, parameter in named}
    if missing := len(trained - found):
        raise ValueError(f"the optimiser trains {missing} parameters that the model does not have")
    if complex_ones := [name for name, parameter in named if parameter.is_complex()]:
        raise TypeError(f"tables hold no complex numbers, but these parameters are complex: {', '.join(complex_ones)}; keep torch.view_as_real() of them instead")
    return [(name, parameter) for name, parameter in named if parameter.requires_grad]


__all__ = ["DistributedOptimizer", "RefusedError", "broadcast"]

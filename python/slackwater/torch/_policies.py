"""What a step means: means of gradients, sums of changes, or optimisers on the servers."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .._slackwater import RefusedError, Ticket
from .._table import Table
from . import _flat

Named = list[tuple[str, torch.nn.Parameter]]


class Buffers:
    """Worker 0's buffers, pushed with each clock and read by all after it."""

    def __init__(self, model: torch.nn.Module, run: Any, number: int, slack: int, **_: Any):
        named = [(name, buffer) for name, buffer in model.named_buffers() if buffer is not None]
        self.root = run.rank == 0
        self.table: Optional[Table] = None
        if not named or run.size == 1:
            return
        # Integers up to 2**53 arrive as they were.
        self.flat = _flat.Flat(named, torch.float64)
        # Of lock-step workers all must see the same; only what is combined by clock is as it was at its end.
        self.table = Table(
            f".buffers {number}", rows=self.flat.rows, width=_flat.WIDTH, dtype="float64", updater="assign",
            combine="sum" if slack == 0 else "each", slack=slack,
        )  # fmt: skip

    def push(self) -> Optional[Ticket]:
        if self.table is None or not self.root:
            return None
        for piece in self.flat.pieces:
            piece.view(self.flat.memory).copy_(piece.tensor)
        return self.table.push_async(self.flat.memory)

    def pull(self) -> None:
        if self.table is None or self.root:
            return
        self.table.pull(out=self.flat.memory)
        with torch.no_grad():
            for piece in self.flat.pieces:
                piece.tensor.copy_(piece.view(self.flat.memory))


class Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, name: str, together: Named, dtype: torch.dtype, codecs: Any, by_samples: bool):
        # After the gradients: for each parameter whether it was used, and how many samples there were.
        self.flat = _flat.Flat(together, dtype, extra=len(together) + 1)
        self.table = Table(
            name, rows=self.flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype), updater="assign",
            combine="sum" if by_samples else "mean", slack=0, codecs=codecs,
        )  # fmt: skip
        self.used: set[int] = set()
        self.arrived: set[int] = set()
        self.ticket: Optional[Ticket] = None


class Means:
    """Slack 0: gradients are everybody's mean when ``backward()`` returns."""

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, by_samples: bool, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.shared_buffers = run, optimizer, buffers
        self.sharing, self.samples, self.by_samples = True, 1.0, by_samples
        self.failure: Optional[str] = None
        self.under_way = False
        # Backward comes to the last layers first.
        parts = list(_flat.buckets(list(reversed(named))))
        self.buckets = [
            Bucket(f".gradients {number}.{index}", together, dtype, codecs, by_samples)
            for index, (dtype, together) in enumerate(parts)
        ]
        for bucket in self.buckets:
            for place, piece in enumerate(bucket.flat.pieces):
                piece.tensor.register_post_accumulate_grad_hook(self._hook(bucket, place, piece))

    def _hook(self, bucket: Bucket, place: int, piece: _flat.Piece) -> Callable[[torch.Tensor], None]:
        view = piece.view(bucket.flat.memory)

        def accumulated(parameter: torch.Tensor) -> None:
            bucket.used.add(place)
            if not self.sharing:
                return
            if not self.under_way:
                self.under_way, self.failure = True, None
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            gradient = parameter.grad
            if gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
                if gradient.device == view.device and gradient.dtype == view.dtype:
                    parameter.grad = view
            bucket.arrived.add(place)
            if len(bucket.arrived) == len(bucket.flat.pieces):
                self._push(bucket)

        return accumulated

    def _push(self, bucket: Bucket) -> None:
        flat, memory = bucket.flat, bucket.flat.memory
        extra = memory[flat.extra]
        extra.zero_()
        for place, piece in enumerate(flat.pieces):
            view = piece.view(memory)
            gradient = piece.tensor.grad
            if place in bucket.used:
                extra[place] = 1.0
                if place not in bucket.arrived and gradient is not None and gradient.data_ptr() != view.data_ptr():
                    view.copy_(gradient)
            else:
                if gradient is not None and gradient.data_ptr() == view.data_ptr():
                    # Nobody may have used it: then it stays as it is.
                    piece.tensor.grad = gradient.clone()
                view.zero_()
        if self.by_samples:
            memory.mul_(self.samples)
        extra[-1] = self.samples if self.by_samples else 1.0
        bucket.ticket = bucket.table._table.push_lent(memory, None, max(1, int(self.samples)))

    def _finish(self) -> None:
        """After the last gradient of a backward: what everybody has is put together."""
        self.under_way = False
        for bucket in self.buckets:
            if bucket.ticket is None:
                self._push(bucket)
        pushed = self.shared_buffers.push() if self.shared_buffers else None
        session = self.run._session
        clock = session.now()
        session.clock()
        # Front layers are wanted first.
        pulls = [(bucket, bucket.table.pull_async(out=bucket.flat.memory)) for bucket in reversed(self.buckets)]
        for bucket, pull in pulls:
            pull.wait()
            self._take(bucket, [failed for failed in pull.failed_clocks if failed[0] == clock])
        if self.shared_buffers:
            if pushed is not None:
                pushed.wait()
            self.shared_buffers.pull()

    def _take(self, bucket: Bucket, failed: list[tuple[int, int, Optional[int], str]]) -> None:
        flat, memory = bucket.flat, bucket.flat.memory
        try:
            bucket.ticket.wait()
        except RefusedError:
            if not failed:
                raise
        if failed:
            _, rank, row, why = failed[0]
            name = flat.names_at(row) if row is not None else "a gradient"
            self.failure = f"the gradient of '{name}' by worker {rank} was refused, so that no worker can take this step: {why}"
            # What a GradScaler looks for. What lies between the gradients stays zero: it is pushed, too.
            for piece in flat.pieces:
                piece.view(memory).fill_(float("nan"))
            memory[flat.extra].fill_(1.0)
        used = memory[flat.extra].tolist()
        if self.by_samples and used[-1] > 0:
            memory[: flat.extra.start].div_(used[-1])
        for place, piece in enumerate(flat.pieces):
            if used[place] > 0:
                view, parameter = piece.view(memory), piece.tensor
                if parameter.device == view.device and parameter.dtype == view.dtype:
                    parameter.grad = view
                elif parameter.grad is None:
                    parameter.grad = view.to(parameter.device, parameter.dtype)
                else:
                    parameter.grad.copy_(view)
        bucket.used.clear()
        bucket.arrived.clear()
        bucket.ticket = None

    def step(self, closure: Optional[Callable[[], Any]]) -> Any:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise RefusedError(failure)
        return self.optimizer.step(closure) if closure is not None else self.optimizer.step()


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
    """Slack > 0: each worker's changes, divided by their number, are added to weights that all share."""

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.shared_buffers = run, optimizer, buffers
        self.sharing, self.samples = True, 1.0

        def table(index: int, dtype: torch.dtype) -> Callable[[_flat.Flat], Table]:
            return lambda flat: Table(
                f"weights {number}.{index}", rows=flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype),
                updater="sum", slack=slack, codecs=codecs,
            )  # fmt: skip

        self.parts = [
            Weights(together, dtype, table(index, dtype)) for index, (dtype, together) in enumerate(_by_dtype(named))
        ]
        if not run._session.came_later:
            if run.rank == 0:
                for part in self.parts:
                    part.table.push(part.flat.memory)
            run._session.barrier()
        self._pull()

    def _pull(self) -> None:
        pulls = [part.table.pull_async(out=part.flat.memory) for part in self.parts]
        for part, pull in zip(self.parts, pulls):
            pull.wait()
            part.scatter()

    def step(self, closure: Optional[Callable[[], Any]]) -> Any:
        for part in self.parts:
            part.gather()
            part.change.copy_(part.flat.memory)
        result = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        live = len(self.run._session.live_ranks())
        for part in self.parts:
            part.gather()
            torch.sub(part.flat.memory, part.change, out=part.change)
            part.change.mul_(1.0 / max(1, live))
        _share(self.run, self.parts, self.shared_buffers)
        self._pull()
        return result


def _share(run: Any, parts: list[Weights], buffers: Optional[Buffers]) -> None:
    """Pushes what has changed and ends the clock. What is refused is raised with its parameter's name."""
    for part in parts:
        if not bool(torch.isfinite(part.change).all()):
            row = int((~torch.isfinite(part.change)).nonzero()[0]) // _flat.WIDTH
            name = part.flat.names_at(row)
            raise RefusedError(f"what worker {run.rank} would push for '{name}' is not finite; nothing was pushed")
    tickets = [part.table.push_async(part.change) for part in parts]
    if buffers and (ticket := buffers.push()) is not None:
        tickets.append(ticket)
    run._session.clock()
    for ticket in tickets:
        ticket.wait()
    if buffers:
        buffers.pull()


class OnServers:
    """The servers keep the optimiser's state: gradients go up, and what they make of the first weights comes down."""

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, slack: int,
    ):  # fmt: skip
        self.run, self.optimizer, self.shared_buffers = run, optimizer, buffers
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
                        updater=updater, slack=slack, combine="mean", codecs=codecs, **settings,
                    )  # fmt: skip

                self.parts.append(Weights(together, dtype, table))
                self.groups.append(group)
        # Rows begin at zero: they are what the weights have changed by.
        self.first = [part.flat.memory.clone() for part in self.parts]
        self.rates = [group["lr"] for group in self.groups]
        self._pull()

    def _pull(self) -> None:
        pulls = [part.table.pull_async(out=part.flat.memory) for part in self.parts]
        for part, first, pull in zip(self.parts, self.first, pulls):
            pull.wait()
            part.flat.memory.add_(first)
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
            part.change.zero_()
            for piece in part.flat.pieces:
                if piece.tensor.grad is not None:
                    piece.view(part.change).copy_(piece.tensor.grad)
        _share(self.run, self.parts, self.shared_buffers)
        self._pull()
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

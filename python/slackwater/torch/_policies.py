"""What a step means in lock-step: means of gradients. Buffers, which every policy shares."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from .._slackwater import RefusedError, Ticket
from .._table import Table
from . import _flat, _joining, _sending

Named = list[tuple[str, torch.nn.Parameter]]


class Buffers:
    """Worker 0's buffers, pushed with each clock and read by all after it."""

    def __init__(self, model: torch.nn.Module, run: Any, number: int, slack: int, **_: Any):
        named = [(name, buffer) for name, buffer in model.named_buffers() if buffer is not None]
        self.root = run.rank == 0
        self.table: Optional[Table] = None
        if not named or run.size == 1 and not run._session.others_may_come:
            return
        # Integers up to 2**53 arrive as they were.
        self.flat = _flat.Flat(named, torch.float64)
        # Of lock-step workers all must see the same; only what is combined by clock is as it was at its end.
        self.table = Table(
            f".buffers {number}", rows=self.flat.rows, width=_flat.WIDTH, dtype="float64", updater="assign",
            combine="sum" if slack == 0 else "each", slack=max(0, slack - 1),
        )  # fmt: skip

    def push(self) -> Optional[Ticket]:
        if self.table is None or not self.root:
            return None
        for piece in self.flat.pieces:
            piece.view(self.flat.memory).copy_(piece.tensor)
        return self.table.push_async(self.flat.memory)

    def ask(self) -> Optional[Ticket]:
        """Asks for what worker 0 has."""
        return None if self.table is None or self.root else self.table.pull_async(out=self.flat.memory)

    def take(self, ticket: Optional[Ticket]) -> None:
        """Waits for what was asked for."""
        if ticket is None:
            return
        ticket.wait()
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
            combine="sum" if by_samples else "mean", slack=0, codecs=codecs, cached_rows=_flat.cached(codecs, self.flat.rows),
        )  # fmt: skip
        # A codec does not keep ones and zeros apart: then all count as used.
        self.counts_used = codecs is None
        self.used: set[int] = set()
        self.arrived: set[int] = set()
        self.pushed: Optional[_sending.Pushed] = None


class Means:
    """Slack 0: gradients are everybody's mean when ``backward()`` returns."""

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, by_samples: bool, slack: int, model: torch.nn.Module,
    ):  # fmt: skip
        self.run, self.optimizer, self.shared_buffers = run, optimizer, buffers
        self.sharing, self.samples, self.by_samples = True, 1.0, by_samples
        self.failure: Optional[str] = None
        self.under_way = False
        self.sending = _sending.Sending()
        # Backward comes to the last layers first.
        parts = list(_flat.buckets(list(reversed(named))))
        self.buckets = [
            Bucket(f".gradients {number}.{index}", together, dtype, _flat.upward(codecs), by_samples)
            for index, (dtype, together) in enumerate(parts)
        ]
        for bucket in self.buckets:
            for place, piece in enumerate(bucket.flat.pieces):
                piece.tensor.register_post_accumulate_grad_hook(self._hook(bucket, place, piece))
        self.joining = _joining.Joining(run, number, model, optimizer)
        if run._session.came_later:
            self.joining.join()

    def _hook(self, bucket: Bucket, place: int, piece: _flat.Piece) -> Callable[[torch.Tensor], None]:
        view = piece.view(bucket.flat.memory)

        def accumulated(parameter: torch.Tensor) -> None:
            bucket.used.add(place)
            if not self.sharing:
                return
            if not self.under_way:
                # Of a step that was left out, by a GradScaler for one, nobody has heard.
                self.joining.answer()
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
            else:
                self.sending.proceed()

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
        samples = max(1, int(self.samples))
        # The last bucket is the front layers'.
        front = len(self.buckets) - self.buckets.index(bucket)
        size = memory.numel() * memory.element_size()
        bucket.pushed = self.sending.push(front, size, lambda: bucket.table._table.push_lent(memory, None, samples))

    def _finish(self) -> None:
        """After the last gradient of a backward: what everybody has is put together."""
        self.under_way = False
        for bucket in self.buckets:
            if bucket.pushed is None:
                self._push(bucket)
        self.sending.finish()
        pushed = self.shared_buffers.push() if self.shared_buffers else None
        session = self.run._session
        clock = session.now()
        session.clock()
        question = self.joining.ask()
        # Front layers are wanted first.
        pulls = [(bucket, bucket.table.pull_async(out=bucket.flat.memory)) for bucket in reversed(self.buckets)]
        # Those that came in this clock count for the mean, though they had no gradients yet.
        came = self.joining.hear(question, clock)
        for bucket, pull in pulls:
            pull.wait()
            if came > 0 and not self.by_samples:
                bucket.flat.memory[: bucket.flat.extra.start].div_(1 - came)
            self._take(bucket, [failed for failed in pull.failed_clocks if failed[0] == clock])
        if self.shared_buffers:
            if pushed is not None:
                pushed.wait()
            self.shared_buffers.take(self.shared_buffers.ask())

    def synchronize(self, together: bool) -> None:
        """What all have is here whenever ``backward()`` has returned."""

    def _take(self, bucket: Bucket, failed: list[tuple[int, int, Optional[int], str]]) -> None:
        flat, memory = bucket.flat, bucket.flat.memory
        try:
            bucket.pushed.wait()
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
        used = memory[flat.extra].tolist() if bucket.counts_used else [1.0] * (len(flat.pieces) + 1)
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
        bucket.pushed = None

    def step(self, closure: Optional[Callable[[], Any]]) -> Any:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise RefusedError(failure)
        result = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self.joining.answer()
        return result

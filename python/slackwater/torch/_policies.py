"""Steps in lock-step (all-reduce through tables): gradients become the mean over all workers."""

from __future__ import annotations

import enum
from typing import Any, Callable, NamedTuple, Optional

import torch

from .._slackwater import RefusedError, RunError, SlackwaterError
from .._table import Table
from . import _first, _flat, _joining, _marks, _sending
from ._buffers import Buffers

Named = list[tuple[str, torch.nn.Parameter]]


class Scaled(NamedTuple):
    """What a ``GradScaler`` passes to a step: by what to divide the gradients, and whether some are
    not finite."""

    by: Optional[torch.Tensor] = None
    found_inf: Optional[torch.Tensor] = None

    @property
    def is_lost(self) -> bool:
        """Whether some gradients are not finite, so that the step is skipped."""
        return self.found_inf is not None and bool(self.found_inf)


class Stage(enum.Enum):
    """How far a lock-step step is."""

    IDLE = enum.auto()
    # Gradients are being pushed while backward goes on.
    PUSHING = enum.auto()
    # The clock has ended, and the worker reads its means.
    READING = enum.auto()


class Bucket:
    """Parameters whose gradients travel together, with their flat memory and table."""

    def __init__(self, name: str, together: Named, dtype: torch.dtype, codecs: Any, first: int):
        self.flat = _flat.Flat(together, dtype)
        self.table = Table(
            name, rows=self.flat.rows, width=_flat.WIDTH, dtype=_flat.dtype_name(dtype), updater="assign",
            combine="mean", slack=0, codecs=codecs, cached_rows=_flat.cached(codecs, self.flat.rows),
        )  # fmt: skip
        # The index of its first parameter among all parameters.
        self.first = first
        # Indices of parameters that have a gradient in this step, and whose gradient has been
        # taken.
        self.used: set[int] = set()
        self.arrived: set[int] = set()
        self.pushed: Optional[_sending.Pushed] = None

    def take(self, piece: _flat.Piece) -> None:
        """Copies a gradient to the flat memory, and points ``.grad`` there. Its old memory is then
        free for the next layer's gradient."""
        parameter, view = piece.tensor, piece.view(self.flat.memory)
        gradient = parameter.grad
        if gradient.layout != torch.strided:
            raise TypeError(f"the gradient of '{piece.name}' is sparse, which DistributedOptimizer does not support; use slackwater.torch.Embedding, or sparse=False")
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            if gradient.device == view.device and gradient.dtype == view.dtype:
                parameter.grad = view

    def keep(self, piece: _flat.Piece) -> torch.Tensor:
        """Copies the gradient of a parameter that this worker did not use out of the flat memory:
        it stays as it is if no worker used the parameter. Returns its view of the flat memory."""
        view, gradient = piece.view(self.flat.memory), piece.tensor.grad
        if gradient is not None and gradient.data_ptr() == view.data_ptr():
            piece.tensor.grad = gradient.clone()
        return view

    def forget(self) -> None:
        """Resets the bucket for the next step."""
        self.used.clear()
        self.arrived.clear()
        self.pushed = None


class Means:
    """Slack 0: when ``backward()`` returns, gradients are the mean over all workers."""

    # A GradScaler looks at the means, which are equal on all workers, so all workers skip a step or
    # none does.
    unscales = False

    def __init__(
        self, named: Named, buffers: Optional[Buffers], run: Any, number: int, optimizer: torch.optim.Optimizer,
        codecs: Any, by_samples: bool, slack: int, model: torch.nn.Module,
    ):  # fmt: skip
        self.run, self.optimizer, self.shared_buffers = run, optimizer, buffers
        self.sharing, self.samples, self.by_samples = True, 1.0, by_samples
        self.failure: Optional[str] = None
        self.stage = Stage.IDLE
        # The clock whose means are being read, and the reads under way: of the marks, and of the
        # buckets.
        self.clock = 0
        self.marked = None
        self.pulls = []
        self.sending = _sending.Sending()
        # The order of backward: the last layers come first.
        self.buckets: list[Bucket] = []
        first = 0
        for index, (dtype, together) in enumerate(_flat.buckets(list(reversed(named)))):
            self.buckets.append(Bucket(f".gradients {number}.{index}", together, dtype, _flat.upward(codecs), first))
            first += len(together)
        for bucket in self.buckets:
            for place, piece in enumerate(bucket.flat.pieces):
                piece.tensor.register_post_accumulate_grad_hook(self._hook(bucket, place, piece))
        self.marks = _marks.Marks(number, len(named))
        self.joining = _joining.Joining(run, number, model, optimizer, self.marks)
        if run._session.joined_late:
            self.joining.join()

    def _hook(self, bucket: Bucket, place: int, piece: _flat.Piece) -> Callable[[torch.Tensor], None]:
        """The hook that takes and pushes a parameter's gradient when backward has computed it."""

        def accumulated(_: torch.Tensor) -> None:
            if not self.run._session.is_open:
                # The run is over. The program may train the model alone, or with the optimiser of
                # another run.
                return
            bucket.used.add(place)
            if not self.sharing:
                return
            if self.stage is not Stage.PUSHING:
                self.recover()
                # If the program skipped the last step, as a GradScaler does, workers that joined
                # still wait for an answer.
                self.joining.answer()
                self.stage, self.failure = Stage.PUSHING, None
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            bucket.take(piece)
            bucket.arrived.add(place)
            if len(bucket.arrived) == len(bucket.flat.pieces):
                self._push(bucket)
            else:
                self.sending.proceed()

        return accumulated

    def _push(self, bucket: Bucket) -> None:
        """Pushes a bucket's gradients, unless this worker used none of its parameters."""
        for place, piece in enumerate(bucket.flat.pieces):
            if piece.tensor.grad is None:
                # The program has dropped a gradient that it added up within `no_sync`.
                bucket.used.discard(place)
        if not bucket.used:
            # A bucket that is not pushed counts as zeros in the mean.
            for piece in bucket.flat.pieces:
                bucket.keep(piece)
            return
        for place, piece in enumerate(bucket.flat.pieces):
            if place not in bucket.used:
                bucket.keep(piece).zero_()
            elif place not in bucket.arrived:
                bucket.take(piece)
        values = bucket.flat.memory
        if self.by_samples:
            values.mul_(self.samples)
        samples = max(1, int(self.samples))
        # The last bucket has the front layers.
        front = len(self.buckets) - self.buckets.index(bucket)
        size = values.numel() * values.element_size()
        bucket.pushed = self.sending.push(front, size, lambda: bucket.table._table.push_lent(values, None, samples))

    def _finish(self) -> None:
        """Runs after the last gradient of a backward: pushes the rest, ends the clock and reads the
        means."""
        for bucket in self.buckets:
            if bucket.pushed is None:
                self._push(bucket)
        self.sending.finish()
        self.marks.push(self.samples, [bucket.first + place for bucket in self.buckets for place in bucket.used])
        if self.shared_buffers:
            # The end of the clock raises a failure.
            self.shared_buffers.push()
        refused = self._end_clock()
        self.marked = self.marks.ask()
        # The next forward needs the front layers first.
        self.pulls = [(bucket, bucket.table.pull_async(out=bucket.flat.memory)) for bucket in reversed(self.buckets)]
        self._read()
        if refused is not None:
            raise refused

    def _end_clock(self) -> Optional[SlackwaterError]:
        """Ends the clock. Returns the refusal of another table's push since the last clock, if
        there is one; this step's own pushes are waited for elsewhere."""
        session = self.run._session
        self.clock = session.now()
        try:
            session.clock()
        except RefusedError as error:
            if session.now() == self.clock:
                raise
            return error
        finally:
            self.stage = Stage.READING if session.now() > self.clock else self.stage
        return None

    def _read(self) -> None:
        """Reads the means of the clock that has ended into ``.grad``."""
        self.marked.wait()
        # The means are over all workers of the clock. Workers that joined in it pushed no
        # gradients, so scale the means.
        came = self.joining.hear(self.clock)
        with_gradients = self.marks.samples if self.by_samples else 1 - came
        used = self.marks.used()
        if not self.marks.is_whole:
            self.failure = "a worker gave up in the middle of backward(), so no worker can take this step"
        while self.pulls:
            bucket, pull = self.pulls[0]
            pull.wait()
            if with_gradients not in (0.0, 1.0):
                bucket.flat.memory.div_(with_gradients)
            failed = [failed for failed in pull.failed_clocks if failed[0] == self.clock]
            self._take(bucket, used[bucket.first : bucket.first + len(bucket.flat.pieces)], failed)
            self.pulls.pop(0)
        if self.shared_buffers:
            self.shared_buffers.take(self.shared_buffers.ask())
        self.stage = Stage.IDLE

    def recover(self) -> None:
        """Ends a step that Ctrl-C or another exception has interrupted in the middle of
        backward."""
        if self.stage is Stage.READING:
            self._read()
            raise RunError("backward() was interrupted after the other workers had this worker's gradients, so their weights may be a step ahead; end the run")
        if self.stage is Stage.IDLE:
            return
        self.sending.drop()
        was_pushed = any(bucket.pushed is not None for bucket in self.buckets)
        for bucket in self.buckets:
            bucket.forget()
        self.stage = Stage.IDLE
        if was_pushed:
            # This clock's sums have a part of the gradients, so no worker can use them.
            self.marks.give_up()
            self.run._session.clock()

    def synchronize(self, together: bool) -> None:
        """Does nothing: weights are equal on all workers after each step."""

    def give_weights(self) -> None:
        """Gives all workers the first worker's weights."""
        _first.broadcast(self.run, [piece.tensor for bucket in self.buckets for piece in bucket.flat.pieces], min(self.run._session.live_ranks()))

    def _take(self, bucket: Bucket, used: list[bool], failed: list[tuple[int, int, Optional[int], str]]) -> None:
        """Points ``.grad`` to the means of a bucket, or to NaN if the step failed."""
        try:
            if bucket.pushed is not None:
                bucket.pushed.wait()
        except RefusedError:
            if not failed:
                raise
        if failed:
            _, rank, row, why = failed[0]
            name = bucket.flat.names_at(row) if row is not None else "a gradient"
            self.failure = f"the gradient of '{name}' by worker {rank} was refused, so no worker can take this step: {why}"
        is_lost = bool(failed) or not self.marks.is_whole
        for piece, is_used in zip(bucket.flat.pieces, used):
            view, parameter = piece.view(bucket.flat.memory), piece.tensor
            if is_lost:
                # A GradScaler looks for NaN. The padding between gradients stays zero, because it
                # is pushed too.
                view.fill_(float("nan"))
            if is_used or is_lost:
                if parameter.device == view.device and parameter.dtype == view.dtype:
                    parameter.grad = view
                elif parameter.grad is None:
                    parameter.grad = view.to(parameter.device, parameter.dtype)
                else:
                    parameter.grad.copy_(view)
        bucket.forget()

    def _check(self) -> None:
        """Raises if the last backward failed or was interrupted."""
        if self.stage is not Stage.IDLE:
            self.recover()
            raise RefusedError("backward() was left in the middle, so no worker can take this step; go on with the next one")
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise RefusedError(failure)

    def step(self, closure: Optional[Callable[[], Any]], _: Scaled) -> Any:
        """Takes a step of the local optimiser with the means. Returns what it returned."""
        if closure is None:
            self._check()
            result = self.optimizer.step()
        else:

            def checked() -> Any:
                found = closure()
                self._check()
                return found

            result = self.optimizer.step(checked)
        self.joining.answer()
        return result

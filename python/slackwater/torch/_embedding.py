"""Embeddings of any size: rows live on the servers, appear on first use, and come one batch at a time."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from .. import _run
from .._slackwater import Keys, Ticket
from .._table import Table
from ._first import root_first

# Batches whose rows may be asked for early.
AHEAD = 4


class Ahead(NamedTuple):
    """Rows that were asked for."""

    # As they were then.
    ids: torch.Tensor
    # For each id its place among the rows.
    inverse: torch.Tensor
    keys: Keys
    ticket: Ticket


class _Rows(torch.nn.Module):
    """The rows of a sparse table that a batch needs."""

    def __init__(
        self, name: str, embedding_dim: int, updater: str, slack: Optional[int], codecs: Any, scale: float, seed: int,
        settings: dict[str, float],
    ):  # fmt: skip
        super().__init__()
        self.embedding_dim = embedding_dim
        initial = ("normal", seed, scale) if scale else None
        self.table = Table(
            name, width=embedding_dim, updater=updater, slack=slack, codecs=codecs, initial=initial, **settings
        )
        self._ahead: list[Ahead] = []

    def prefetch(self, ids: torch.Tensor) -> None:
        """Asks for the rows of a batch that comes soon, and returns at once: before the ``forward`` of the batch at hand, or after it. What is pushed until then may
        not be in them, beyond what the table's slack asks. Of more than four batches the oldest are forgotten."""
        if ids.is_floating_point():
            raise TypeError(f"ids are integers, not {ids.dtype}")
        unique, inverse = torch.unique(ids, return_inverse=True)
        keys = self.table.keys(unique.to(torch.int64).contiguous())
        room = torch.empty(len(unique), self.embedding_dim)
        self._ahead.append(Ahead(ids.clone(), inverse, keys, self.table.pull_async(keys, out=room)))
        del self._ahead[:-AHEAD]

    def _pull(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of the batch's ids, each once, and for each id its place among them."""
        place = next((place for place, ahead in enumerate(self._ahead) if torch.equal(ahead.ids, ids)), None)
        if place is None:
            self.prefetch(ids)
            place = -1
        _, inverse, keys, ticket = self._ahead.pop(place)
        rows = ticket.wait()
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_post_accumulate_grad_hook(lambda leaf: self._push(keys, leaf))
        return rows, inverse

    def _push(self, keys: Keys, leaf: torch.Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        # A failure shows at the end of the clock.
        self.table.push_async(gradient.contiguous(), keys)

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Every row that there is, with what its updater keeps beside it: part of ``state_dict()``."""
        state = self.table.state()
        return {"keys": torch.from_numpy(state["keys"].astype("int64")), "rows": torch.from_numpy(state["rows"].copy())}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """Sets rows to what they were: what ``load_state_dict()`` does. Every worker calls it, as it does for the rest of a model, and the first one's counts."""
        run = _run.current()
        root_first(
            run,
            min(run._session.live_ranks(), default=run.rank),
            lambda: self.table.load_state({"keys": state["keys"].numpy().astype("uint64"), "rows": state["rows"].numpy()}),
        )
        self._ahead.clear()


class Embedding(_Rows):
    """As :class:`torch.nn.Embedding`, on a sparse table: ids are any integers that are not negative, and nobody says how many there are.

    ``forward`` pulls the rows of a batch's ids, each once; ``backward`` pushes their gradients, to which the servers apply ``updater`` (its settings are
    further arguments: ``rate=0.05``). Rows begin at random, with a standard deviation of ``scale``. Workers end their clocks with
    :func:`slackwater.clock`, or a :class:`DistributedOptimizer` of the model's other parameters does.
    """

    def __init__(
        self, name: str, embedding_dim: int, *, updater: str = "adagrad", slack: Optional[int] = 2, codecs: Any = None,
        scale: float = 0.01, seed: int = 0, **settings: float,
    ):  # fmt: skip
        super().__init__(name, embedding_dim, updater, slack, codecs, scale, seed, settings)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of ``ids``, in their shape with ``embedding_dim`` after it."""
        rows, inverse = self._pull(ids)
        return torch.nn.functional.embedding(inverse, rows)


class EmbeddingBag(_Rows):
    """As :class:`torch.nn.EmbeddingBag` (mode "sum" or "mean"), on a sparse table: see :class:`Embedding`."""

    def __init__(
        self, name: str, embedding_dim: int, *, mode: str = "mean", updater: str = "adagrad", slack: Optional[int] = 2,
        codecs: Any = None, scale: float = 0.01, seed: int = 0, **settings: float,
    ):  # fmt: skip
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode='{mode}' is neither 'sum' nor 'mean'")
        super().__init__(name, embedding_dim, updater, slack, codecs, scale, seed, settings)
        self.mode = mode

    def forward(self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None) -> torch.Tensor:
        """A row for each bag: those of a 2-dimensional ``ids``, or those that begin at ``offsets``."""
        rows, inverse = self._pull(ids)
        return torch.nn.functional.embedding_bag(inverse, rows, offsets, mode=self.mode)

"""Embeddings of any size: the servers hold the rows in a sparse table, rows are made on first use,
and a worker pulls the rows of one batch at a time. It can prefetch those of the next batches, and
pushes their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from .. import _run
from .._slackwater import Keys, Ticket
from .._table import Table
from ._first import root_first

# How many batches can be prefetched.
AHEAD = 4


class Ahead(NamedTuple):
    """The rows of a batch that was prefetched."""

    # The ids of the batch, copied: the caller may change its tensor.
    ids: torch.Tensor
    # For each id, the index of its row.
    inverse: torch.Tensor
    keys: Keys
    ticket: Ticket


class _Rows(torch.nn.Module):
    """A module on a sparse table: pulls and pushes the rows that a batch needs."""

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
        """Asks for the rows of a coming batch, and returns at once. Call it before or after the
        ``forward`` of the current batch; the ``forward`` of the coming batch then finds its rows.
        They may lack pushes made after this call, within the table's slack. Keeps four batches and
        forgets older ones. Raises ``TypeError`` if ``ids`` are not integers."""
        if ids.is_floating_point():
            raise TypeError(f"ids are integers, not {ids.dtype}")
        unique, inverse = torch.unique(ids, return_inverse=True)
        keys = self.table.keys(unique.to(torch.int64).contiguous())
        room = torch.empty(len(unique), self.embedding_dim)
        self._ahead.append(Ahead(ids.clone(), inverse, keys, self.table.pull_async(keys, out=room)))
        del self._ahead[:-AHEAD]

    def _pull(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pulls the rows of the batch's ids, each once. Returns them, and for each id the index of
        its row."""
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
        """Pushes the gradients of the rows after a backward."""
        gradient, leaf.grad = leaf.grad, None
        # The end of the clock raises a failure.
        self.table.push_async(gradient.contiguous(), keys)

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """Returns every row with its updater's state, as a part of ``state_dict()``."""
        state = self.table.state()
        return {"keys": torch.from_numpy(state["keys"].astype("int64")), "rows": torch.from_numpy(state["rows"].copy())}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """Sets rows to those of a state; ``load_state_dict()`` calls it. Every worker must call it;
        the first worker's state counts."""
        run = _run.current()
        root_first(
            run,
            min(run._session.live_ranks(), default=run.rank),
            lambda: self.table.load_state({"keys": state["keys"].numpy().astype("uint64"), "rows": state["rows"].numpy()}),
        )
        self._ahead.clear()


class Embedding(_Rows):
    """As :class:`torch.nn.Embedding`, on a sparse table: ids are any integers that are not
    negative, and their number need not be known.

    ``forward`` pulls the rows of a batch's ids, each once. ``backward`` pushes their gradients, and
    the servers apply ``updater`` to them.

    * ``name``: the name of the table.
    * ``embedding_dim``: how many numbers a row has.
    * ``updater``, ``slack``, ``codecs``: as in :class:`slackwater.Table`. The updater's settings
      are further arguments, as in ``rate=0.05``.
    * ``scale``, ``seed``: standard deviation and seed of the random initial rows.

    A worker ends its clock by :func:`slackwater.clock`, or by ``step()`` of a
    :class:`DistributedOptimizer` of the model's other parameters.
    """

    def __init__(
        self, name: str, embedding_dim: int, *, updater: str = "adagrad", slack: Optional[int] = 2, codecs: Any = None,
        scale: float = 0.01, seed: int = 0, **settings: float,
    ):  # fmt: skip
        super().__init__(name, embedding_dim, updater, slack, codecs, scale, seed, settings)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of ``ids``, in the shape of ``ids`` followed by ``embedding_dim``."""
        rows, inverse = self._pull(ids)
        return torch.nn.functional.embedding(inverse, rows)


class EmbeddingBag(_Rows):
    """As :class:`torch.nn.EmbeddingBag` with mode "sum" or "mean", on a sparse table. The other
    arguments are those of :class:`Embedding`."""

    def __init__(
        self, name: str, embedding_dim: int, *, mode: str = "mean", updater: str = "adagrad", slack: Optional[int] = 2,
        codecs: Any = None, scale: float = 0.01, seed: int = 0, **settings: float,
    ):  # fmt: skip
        if mode not in ("sum", "mean"):
            raise ValueError(f"mode='{mode}' is neither 'sum' nor 'mean'")
        super().__init__(name, embedding_dim, updater, slack, codecs, scale, seed, settings)
        self.mode = mode

    def forward(self, ids: torch.Tensor, offsets: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Returns a row for each bag: a row of a 2-dimensional ``ids``, or the ids from each of
        ``offsets`` on."""
        rows, inverse = self._pull(ids)
        return torch.nn.functional.embedding_bag(inverse, rows, offsets, mode=self.mode)

"""Flat memory: many small tensors lie end to end in the rows of one table, so that they travel as
one push."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Mapping, Optional

import torch

# Numbers in a row. Each tensor begins at a row, so that a refused row names its tensor.
WIDTH = 256
# A bucket has tensors of up to this many bytes; a larger tensor has a bucket of its own.
FUSED_BYTES = 4 << 20


class Piece:
    """The place of a tensor in flat memory."""

    def __init__(self, name: str, tensor: torch.Tensor, first: int):
        self.name = name
        self.tensor = tensor
        self.first = first
        self.count = tensor.numel()
        self.rows = -(-self.count // WIDTH)

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor's part of ``flat``, in its shape."""
        return flat[self.first : self.first + self.count].view(self.tensor.shape)


class Flat:
    """Flat memory for tensors of one type."""

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype):
        self.pieces: list[Piece] = []
        self.rows, self.dtype = 0, dtype
        for name, tensor in named:
            piece = Piece(name, tensor, self.rows * WIDTH)
            self.pieces.append(piece)
            self.rows += piece.rows
        self.rows = max(1, self.rows)
        self.memory = torch.zeros(self.rows * WIDTH, dtype=dtype)

    def names_at(self, row: int) -> str:
        """The name of the tensor that has this row."""
        for piece in self.pieces:
            if piece.first // WIDTH <= row < piece.first // WIDTH + piece.rows:
                return piece.name
        return "no parameter"


def table_dtype(dtype: torch.dtype) -> torch.dtype:
    """The number type of the table for tensors of this type. Half-precision numbers travel as
    float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def buckets(named: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[torch.dtype, list[tuple[str, torch.Tensor]]]]:
    """Groups tensors into buckets, in their order: of one number type, and of up to
    :data:`FUSED_BYTES`."""
    open_ones: dict[torch.dtype, tuple[int, list[tuple[str, torch.Tensor]]]] = {}
    for name, tensor in named:
        dtype = table_dtype(tensor.dtype)
        size, together = open_ones.get(dtype, (0, []))
        more = tensor.numel() * (8 if dtype == torch.float64 else 4)
        if together and size + more > FUSED_BYTES:
            yield dtype, together
            size, together = 0, []
        together.append((name, tensor))
        open_ones[dtype] = (size + more, together)
    for dtype, (_, together) in open_ones.items():
        yield dtype, together


def dtype_name(dtype: torch.dtype) -> str:
    """The type's name in tables."""
    return str(dtype).removeprefix("torch.")


def upward(codecs: Any) -> Any:
    """Uses codecs for pushes only, unless the caller names both directions: gradients and changes
    are encoded once, not again when they are read."""
    return codecs if codecs is None or isinstance(codecs, Mapping) else {"up": [codecs] if isinstance(codecs, str) else list(codecs)}


def cached(codecs: Any, rows: int) -> Optional[int]:
    """How many rows to cache: lossy codecs send reads as deltas, which are added to cached rows."""
    return rows if codecs and (not isinstance(codecs, Mapping) or codecs.get("down")) else None

"""Tensors of any type as bits in rows of int64, so that every value arrives unchanged, infinities
and NaN included."""

from __future__ import annotations

import torch

# Numbers in a row.
WIDTH = 256
# Every tensor begins at a multiple of this, so that it is aligned for any type.
ALIGNED_BYTES = 16


class Bits:
    """Flat memory for tensors of any type. Its first word says whether a worker has filled it."""

    def __init__(self, tensors: list[torch.Tensor]):
        self.places: list[tuple[torch.Tensor, int, int]] = []
        first = ALIGNED_BYTES
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            self.places.append((tensor, first, first + size))
            first += -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
        self.rows = -(-first // (WIDTH * 8))
        self.memory = torch.zeros(self.rows, WIDTH, dtype=torch.int64)

    def gather(self) -> torch.Tensor:
        """Copies the tensors into the memory, and returns it."""
        self.memory[0, 0] = 1
        for tensor, first, last in self.places:
            here = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.memory.view(-1).view(torch.uint8)[first:last].copy_(here)
        return self.memory

    @property
    def is_filled(self) -> bool:
        """Whether the memory has what a worker has pushed, not initial zeros."""
        return bool(self.memory[0, 0] == 1)

    def scatter(self) -> None:
        """Copies the memory into the tensors."""
        with torch.no_grad():
            for tensor, first, last in self.places:
                there = self.memory.view(-1).view(torch.uint8)[first:last]
                tensor.copy_(there.view(tensor.dtype).view(tensor.shape))

"""Tensors bit for bit in rows of int64: whatever they hold arrives as it was, of every type, and infinities and NaN too."""

from __future__ import annotations

import torch

# Numbers in a row.
WIDTH = 256
# Every tensor begins where any type may.
ALIGNED_BYTES = 16


class Bits:
    """Flat memory for tensors of any type, after one word that says whether anybody has filled it."""

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
        """Fills the memory from the tensors."""
        self.memory[0, 0] = 1
        for tensor, first, last in self.places:
            here = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            self.memory.view(-1).view(torch.uint8)[first:last].copy_(here)
        return self.memory

    @property
    def is_filled(self) -> bool:
        """Whether what was read is what anybody gave."""
        return bool(self.memory[0, 0] == 1)

    def scatter(self) -> None:
        """Fills the tensors from the memory."""
        with torch.no_grad():
            for tensor, first, last in self.places:
                there = self.memory.view(-1).view(torch.uint8)[first:last]
                tensor.copy_(there.view(tensor.dtype).view(tensor.shape))

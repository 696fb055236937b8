"""The three sizes that speed is measured at."""

from typing import NamedTuple


class Shape(NamedTuple):
    """A model, and the batch of a training step: B rows of T tokens."""

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    T: int
    B: int

    def flops(self) -> int:
        """Of a training step's matrix products: forward, and two for the backward pass."""
        matrices = 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd
        return 6 * self.B * self.T * matrices


SHAPES = {
    "char": Shape(4, 4, 128, 65, 64, 12),
    "small": Shape(6, 6, 384, 4096, 256, 8),
    "gpt2": Shape(12, 12, 768, 50257, 256, 1),
}

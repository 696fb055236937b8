"""What a position adds to the token that stands there: one row of a table, (block_size, C)."""

import torch
from torch import Tensor, nn

from minigpt.config import ModelConfig


def position_table(config: ModelConfig) -> nn.Module:
    """A module from positions (…) to vectors (…, C): learned rows, or the sinusoidal ones."""
    if config.position == "learned":
        return nn.Embedding(config.block_size, config.n_embd)
    return SinusoidalPositions(config.block_size, config.n_embd)


def sinusoidal_table(length: int, width: int) -> Tensor:
    """The fixed table of Vaswani et al. 2017, section 3.5: (length, width), float64.

    Column 2i holds sin(t / 10000^(2i / width)), column 2i + 1 the cosine of the same angle. At an
    odd width the last column is a sine whose cosine is left out.
    """
    even = torch.arange(0, width, 2, dtype=torch.float64)
    times = torch.arange(length, dtype=torch.float64)
    angles = times[:, None] / 10000 ** (even / width)
    table = torch.empty(length, width, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : width // 2].cos()
    return table


class SinusoidalPositions(nn.Module):
    """`sinusoidal_table` as a module; not in the state dict, since the shape gives it."""

    table: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        table = sinusoidal_table(length, width).to(torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Integer positions (…) in [0, length) to (…, width)."""
        return self.table[positions]

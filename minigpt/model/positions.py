"""What a position adds to the token that stands there: one row of a table, (block_size, C)."""

import math

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
    """`sinusoidal_table` at the size of the token embeddings; it is not in the state dict.

    A sine has a root mean square of 1/√2 and a new embedding one of 0.02: at its full size the
    table would drown the tokens, and learning would have to wait until they have grown. The paper
    meets that by multiplying the embeddings by √C, which the head that is tied to them would feel.
    Here the table is multiplied by 0.02·√2 instead, so that tokens and positions start level.
    """

    table: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        table = (0.02 * math.sqrt(2) * sinusoidal_table(length, width)).float()
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Integer positions (…) in [0, length) to (…, width)."""
        return self.table[positions]

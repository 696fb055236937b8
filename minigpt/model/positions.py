"""How the model knows where a token stands: a vector is added to it, or its heads are turned.

A table, (block_size, C), has a vector for each position, which is added to the embedding. Rotary
positions add nothing: every head's queries and keys are turned by angles that grow with the
position, so that the product of two of them depends on how far they are apart.
"""

import math

import torch
from torch import Tensor, nn

from minigpt.config import ModelConfig


def position_table(config: ModelConfig) -> nn.Module:
    """A module from positions (…) to vectors (…, C): learned rows, or the sinusoidal ones.

    Rotary positions have no table: an empty module, that nothing calls, is in its place.
    """
    if config.position == "rotary":
        return nn.Identity()
    if config.position == "learned":
        return nn.Embedding(config.block_size, config.n_embd)
    return SinusoidalPositions(config.block_size, config.n_embd)


def rotary_angles(positions: Tensor, head_width: int, dtype: torch.dtype) -> Tensor:
    """Cosine and sine of each position's angles: positions (…) to (…, 1, D / 2, 2).

    Pair i of a head's D numbers turns by position · 10000^(-2i / D) (Su et al. 2021, section
    3.2.2). The 1 is for the heads, which are turned alike. Float64 for float64, else float32: an
    angle in half precision would take neighbouring positions for one.
    """
    dtype = torch.promote_types(dtype, torch.float32)
    even = torch.arange(0, head_width, 2, dtype=dtype, device=positions.device)
    angles = positions[..., None] * 10000 ** (-even / head_width)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).unsqueeze(-3)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Queries or keys (…, D) with each pair of numbers turned, in their own type.

    Pairs are neighbours, (x0, x1), (x2, x3), … as in the paper: so one is a complex number where it
    lies, and turning it is one multiplication. `angles` (…, D / 2, 2) are `rotary_angles`'.
    """
    pairs = x.view(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():  # which has no code for complex numbers
        a, b = pairs.unbind(-1)
        cos, sin = angles.unbind(-1)
        y = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        pairs = pairs.to(angles.dtype)
        y = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(angles))
    return y.flatten(-2).to(x.dtype)


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

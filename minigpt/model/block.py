"""One Transformer block: attention lets positions talk, the MLP thinks about each by itself."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from minigpt.config import ModelConfig
from minigpt.model.attention import CausalSelfAttention
from minigpt.model.kv_cache import KVCache
from minigpt.model.linear import Linear


def activated(x: Tensor, activation: str) -> Tensor:
    """The MLP's nonlinearity by its setting's name, number by number."""
    if activation == "gelu":
        if torch.compiler.is_compiling():
            return _gelu(x)
        return F.gelu(x, approximate="tanh")
    if activation == "relu":
        return F.relu(x)
    if torch.compiler.is_compiling():  # which joins the two by itself
        return F.relu(x).square()
    return cast("Tensor", SquaredReLU.apply(x))


def _gelu(x: Tensor) -> Tensor:
    """The same, by (1 + tanh u) / 2 = sigmoid(2u): a compiler's sigmoid is faster than its tanh."""
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


class SquaredReLU(Function):
    """relu(x)² (So et al. 2021, section 4), whose derivative is 2 relu(x).

    Written out, because autograd would take it for two functions, and twice the passes over memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Square what is above zero."""
        y = x.relu()
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    @once_differentiable  # whose result torch types as a function of other names
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> Tensor:
        """The gradient of x."""
        (y,) = ctx.saved_tensors
        return (gradients[0] * y).mul_(2)


class MLP(nn.Module):
    """Two linear maps with a nonlinearity between, four times as wide; each position by itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.down = Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return self.down(activated(self.up(x), self.activation))


class Block(nn.Module):
    """Attention and MLP, each a residual branch with a norm.

    `pre`, as in GPT-2: x + F(norm(x)), which leaves the residual stream itself untouched. `post`,
    as in the first Transformer and GPT: norm(x + F(x)).
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.pre = config.norm_order == "pre"
        self.norm_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attention = CausalSelfAttention(config, layer)
        self.norm_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        attention: list[Tensor] | None = None,
        angles: Tensor | None = None,
        documents: list[int] | None = None,
    ) -> Tensor:
        """(B, T, C) to (B, T, C); the other arguments are `CausalSelfAttention`'s."""
        if self.pre:
            y = self.attention(self.norm_1(x), mask, cache, attention, angles, documents)
            x = x + self.dropout(y)
            return x + self.dropout(self.mlp(self.norm_2(x)))
        y = self.attention(x, mask, cache, attention, angles, documents)
        x = self.norm_1(x + self.dropout(y))
        return self.norm_2(x + self.dropout(self.mlp(x)))

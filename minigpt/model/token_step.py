"""Decoding's step: one more token a row, as `GPT.forward` reads it, without the modules around it.

With one position a row the arithmetic is small. What then counts is how fast the weights are read
and, in a small model, what Python does between kernels: calling a module costs more than many of
the kernels inside. So the weights are taken out of their modules once, and a step is the flat list
of what the forward pass computes. It is the same model: law 2 holds one against the other, and so
does the doctor.

Shapes: B rows, S positions read with this one, H heads, D head width, C = H * D, V tokens.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from minigpt.model.block import Block
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache

#: Weight and bias of a linear layer or a norm; the bias is None where the model has none.
Affine = tuple[Tensor, Tensor | None]


class _Weights(NamedTuple):
    """What a block is made of."""

    norm_1: Affine
    qkv: Affine
    output: Affine
    norm_2: Affine
    up: Affine
    down: Affine


class TokenStep:
    """The step of a model in evaluation mode, for one generation.

    The positions are looked up once; all else are the model's own weights.
    """

    def __init__(self, model: GPT) -> None:
        self._config = model.config
        self._embedding = model.embedding.weight
        self._places = torch.arange(model.config.block_size, device=model.device)
        self._positions = cast("Tensor", model.position(self._places))  # (block_size, C)
        self._blocks = [_weights(cast("Block", block)) for block in model.blocks]
        self._norm = _affine(model.norm) if model.config.norm_order == "pre" else None
        self._shape = (model.config.n_embd,)

    def __call__(self, tokens: Tensor, cache: KVCache, lengths: Tensor | None = None) -> Tensor:
        """Logits (B, V) after one more token a row, (B,), which is added to the cache.

        `lengths` (B,) int64 says how many positions of each row the cache holds, from its first
        place on, the longest being `cache.length`; None: of all rows as many.

        Raises:
            ValueError: S is beyond block_size or the cache's capacity.
        """
        S = cache.length + 1
        if self._config.block_size < S:
            raise ValueError(f"{S} positions are beyond block_size={self._config.block_size}")
        mask = None  # one query that reads every key needs none
        if lengths is not None:
            mask = (self._places[:S] <= lengths[:, None])[:, None, None]  # (B, 1, 1, S)
        x = F.embedding(tokens, self._embedding)
        x = x + self._positions[S - 1 if lengths is None else lengths]
        for layer, block in enumerate(self._blocks):
            if self._norm is not None:
                x = x + self._attend(self._normed(x, block.norm_1), layer, cache, lengths, mask)
                x = x + self._mlp(self._normed(x, block.norm_2), block)
            else:
                x = self._normed(x + self._attend(x, layer, cache, lengths, mask), block.norm_1)
                x = self._normed(x + self._mlp(x, block), block.norm_2)
        cache.advance(1)
        return F.linear(x if self._norm is None else self._normed(x, self._norm), self._embedding)

    def _normed(self, x: Tensor, norm: Affine) -> Tensor:
        return F.layer_norm(x, self._shape, *norm)

    def _attend(
        self, x: Tensor, layer: int, cache: KVCache, places: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        """(B, C) to (B, C): what a block's attention adds."""
        block = self._blocks[layer]
        B, C = x.shape
        heads = F.linear(x, *block.qkv).view(B, 3 * self._config.n_head, 1, -1)
        q, k, v = heads.chunk(3, dim=1)  # (B, H, 1, D) each
        k, v = cache.append(layer, k, v, places)
        y = F.scaled_dot_product_attention(q, k, v, mask)
        return F.linear(y.reshape(B, C), *block.output)

    def _mlp(self, x: Tensor, block: _Weights) -> Tensor:
        """(B, C) to (B, C): what a block's MLP adds."""
        x = F.linear(x, *block.up)
        x = F.gelu(x, approximate="tanh") if self._config.activation == "gelu" else F.relu(x)
        return F.linear(x, *block.down)


def _weights(block: Block) -> _Weights:
    return _Weights(
        _affine(block.norm_1),
        _affine(block.attention.qkv),
        _affine(block.attention.output),
        _affine(block.norm_2),
        _affine(block.mlp.up),
        _affine(block.mlp.down),
    )


def _affine(module: nn.Module) -> Affine:
    layer = cast("nn.Linear", module)  # or a norm, whose two are called the same
    return layer.weight, cast("Tensor | None", layer.bias)

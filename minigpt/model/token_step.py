"""Decoding's step: one more token a row, as `GPT.forward` reads it, without the modules around it.

With one position a row the arithmetic is small. What then counts is how fast the weights are read
and, in a small model, what Python does between kernels: calling a module costs more than many of
the kernels inside. So the weights are taken out of their modules once, and a step is the flat list
of what the forward pass computes. It is the same model: law 2 holds one against the other, and so
does the doctor.

Shapes: B rows, S positions read with this one, R the cache's room for them, H heads, D head width,
C = H * D, V tokens.
"""

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from minigpt.model.block import Block, activated
from minigpt.model.few_rows import LinearMap, linear, linear_of
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.positions import rotary_angles, turned
from minigpt.model.query_key_norm import rms_normed

#: Devices on which a compiled step is launched as a whole, as CUDA graphs.
GRAPHS_ON = ("cuda",)

#: Weight and bias of a norm; the bias is None where the model has none.
Affine = tuple[Tensor, Tensor | None]


class _Parts(NamedTuple):
    """What a block is made of."""

    norm_1: Affine
    qkv: LinearMap
    output: LinearMap
    norm_2: Affine
    up: LinearMap
    down: LinearMap


class TokenStep:
    """The step of a model in evaluation mode, for one generation of so many `rows`.

    The positions are looked up once; all else are the model's own weights, or copies of them that
    are read faster (`few_rows.py`). Without `rows` there are none.
    """

    def __init__(self, model: GPT, rows: int | None = None, *, compiled: bool = False) -> None:
        self._config = model.config
        self._compiled = compiled
        self._graphs = compiled and model.device.type in GRAPHS_ON
        mode = "reduce-overhead" if self._graphs else "default"
        self._run = torch.compile(self._read, mode=mode) if compiled else self._read
        rows = None if compiled else rows  # the compiler has kernels of its own
        self._embedding = model.embedding.weight
        self._places = torch.arange(model.config.block_size, device=model.device)
        self._rotary = model.config.position == "rotary"
        self._positions = _positions(model, self._places)
        self._blocks = [_parts(cast("Block", block), rows) for block in model.blocks]
        self._norm = _affine(model.norm) if model.config.norm_order == "pre" else None
        self._head = (
            linear(self._embedding, None, rows)
            if model.head is None
            else linear_of(model.head, rows)
        )
        self._shape = (model.config.n_embd,)
        self._scale = 1 / math.sqrt(model.config.n_embd // model.config.n_head)
        # added to a score: 0 where a key may be read, then -inf; S keys are the last S zeros
        self._open = torch.zeros(2 * len(self._places), dtype=self._embedding.dtype)
        self._open[len(self._places) :] = -math.inf
        self._open = self._open.to(model.device)
        # other types round scores, which PyTorch's fused kernel does not
        self._wide = self._embedding.dtype in {torch.float32, torch.float64}

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
        room = cache.make_room(1)
        here = self._positions[S - 1 if lengths is None else lengths]
        keys, values = cache.keys, cache.values
        if lengths is None and not self._compiled:
            mask, place = None, S - 1
            keys, values = keys.narrow(3, 0, S), values.narrow(3, 0, S)
        else:
            mask = self._mask(S, room, lengths)
            place = self._places[S - 1].expand(len(tokens)) if lengths is None else lengths
            place = place[:, None, None, None]
        if self._graphs:
            for held in (keys, values):  # a graph may write only to what stays where it is
                torch._dynamo.mark_static_address(held)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        logits = self._run(tokens, here, mask, place, keys, values)
        cache.advance(1)
        return logits

    def _read(
        self,
        tokens: Tensor,
        here: Tensor,
        mask: Tensor | None,
        place: int | Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """The logits, from tensors alone: all that is compiled.

        `keys` and `values` (n_layer, B, H, R, D) get what is new at `place`, of each row its own
        if it is (B, 1, 1, 1). Without a `mask` all of them are read.
        """
        x = torch.embedding(self._embedding, tokens)
        if not self._rotary:
            x = x + here
        for block, *held in zip(self._blocks, keys.unbind(), values.unbind(), strict=True):
            if self._norm is not None:
                heads = block.qkv(self._normed(x, block.norm_1))
                x = block.output(self._attend(heads, here, mask, place, *held)).add_(x)
                x = self._mlp(self._normed(x, block.norm_2), block).add_(x)
            else:
                y = block.output(self._attend(block.qkv(x), here, mask, place, *held))
                x = self._normed(y.add_(x), block.norm_1)
                x = self._normed(self._mlp(x, block).add_(x), block.norm_2)
        return self._head(x if self._norm is None else self._normed(x, self._norm))

    def _mask(self, S: int, room: int, lengths: Tensor | None) -> Tensor:
        """What is added to scores, (1, 1, R) or (B, H, R): 0 where a key may be read, else -inf."""
        block_size, H = len(self._places), self._config.n_head
        if lengths is None:
            return self._open.narrow(0, block_size - S, room).view(1, 1, room)
        closed = torch.arange(room, device=lengths.device) > lengths[:, None]
        mask = torch.zeros_like(closed, dtype=self._open.dtype).masked_fill_(closed, -math.inf)
        return mask[:, None].expand(-1, H, -1)

    def _normed(self, x: Tensor, norm: Affine) -> Tensor:
        return torch.layer_norm(x, self._shape, *norm)

    def _attend(
        self,
        heads: Tensor,
        here: Tensor,
        mask: Tensor | None,
        place: int | Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """From the projection, (B, 3C), to the heads' outputs, (B, C)."""
        B, H = len(heads), self._config.n_head
        both, v = heads.view(B, 3 * H, 1, -1).tensor_split((2 * H,), dim=1)
        if self._config.qk_norm:
            both = rms_normed(both)
        if self._rotary:
            both = turned(both, here)
        q, k = both.chunk(2, dim=1)  # (B, H, 1, D) each, as v
        for held, new in ((keys, k), (values, v)):
            if isinstance(place, int):
                held.narrow(2, place, 1).copy_(new)
            else:
                held.scatter_(2, place.expand_as(new), new)
        if mask is None:
            y = F.scaled_dot_product_attention(q, keys, values)
        elif self._wide:
            scores = torch.baddbmm(
                mask.reshape(-1, 1, mask.size(-1)),
                q.reshape(B * H, 1, -1),
                keys.flatten(0, 1).mT,
                alpha=self._scale,
            )
            y = scores.softmax(-1).bmm(values.flatten(0, 1))
        else:
            y = F.scaled_dot_product_attention(q, keys, values, mask[:, :, None])
        return y.reshape(B, -1)

    def _mlp(self, x: Tensor, block: _Parts) -> Tensor:
        """(B, C) to (B, C): what a block's MLP adds."""
        return block.down(activated(block.up(x), self._config.activation))


def _positions(model: GPT, places: Tensor) -> Tensor:
    """What each position adds, (block_size, C); or its angles, (block_size, 1, 1, D / 2, 2)."""
    if model.config.position != "rotary":
        return cast("Tensor", model.position(places))
    width = model.config.n_embd // model.config.n_head
    return rotary_angles(places, width, model.embedding.weight.dtype).unsqueeze(1)


def _parts(block: Block, rows: int | None) -> _Parts:
    return _Parts(
        _affine(block.norm_1),
        linear_of(block.attention.qkv, rows),
        linear_of(block.attention.output, rows),
        _affine(block.norm_2),
        linear_of(block.mlp.up, rows),
        linear_of(block.mlp.down, rows),
    )


def _affine(module: nn.Module) -> Affine:
    norm = cast("nn.LayerNorm", module)
    return norm.weight, cast("Tensor | None", norm.bias)

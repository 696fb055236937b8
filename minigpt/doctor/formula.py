"""Multi-head attention in plain loops (Vaswani et al. 2017, section 3.2), right and wrong.

Queries and keys are first divided by their root mean square (`model.qk_norm`) and turned by their
position (`model.position=rotary`), where the settings say so.

`Recipe` names the steps of the computation; one with a step changed is a known mistake. Attention
that differs from the right recipe is compared with the wrong ones, which tells what was done.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.doctor.finding import (
    EXACT,
    Finding,
    Subject,
    blocks,
    difference,
    judged,
    recognised,
    skipped,
)
from minigpt.model.attention import CausalSelfAttention
from minigpt.model.positions import rotary_angles


@dataclass(frozen=True, slots=True)
class Recipe:
    """How attention is computed: its steps, and the scale of the scores from C and D.

    `order` is that of queries, keys and values in the wide projection; `hidden` what the scores of
    keys that may not be read are set to before the softmax, None if they are zeroed after it. Of
    rotary positions: `turned` are the parts that are turned, `halves` pairs number i of a head with
    number i + D / 2 instead of its neighbour, and `normed` are the parts with a norm.
    """

    scale: Callable[[int, int], float] = lambda _, D: 1 / math.sqrt(D)
    order: str = "qkv"
    hidden: float | None = -math.inf
    key_transposed: bool = True
    softmax_over_keys: bool = True
    split_transposed: bool = True
    merge_transposed: bool = True
    projected: bool = True
    normed: str = "qk"
    turned: str = "qk"
    halves: bool = False


RIGHT = Recipe()

#: What the norm of queries and keys adds to their mean square.
QK_EPSILON = 1e-6

#: As `EXACT`, for a recipe whose scale was worked out from rounded numbers.
_FITTED = 1e-6

MISTAKES = {
    "the scores are scaled twice: divided by D, not by √D": Recipe(scale=lambda _, D: 1 / D),
    "the scores are divided by √C, not by √D, the root of a head's own width": Recipe(
        scale=lambda C, _: 1 / math.sqrt(C)
    ),
    "the scores are not divided by √D": Recipe(scale=lambda _, __: 1.0),
    "the keys are not transposed: q k stands for q kᵀ": Recipe(key_transposed=False),
    "the softmax runs over the queries, not over the keys (the last axis)": Recipe(
        softmax_over_keys=False
    ),
    "the heads are viewed as (B, H, T, D) without a transpose: view as (B, T, H, D), then"
    " transpose": Recipe(split_transposed=False),
    "the heads are merged without a transpose: transpose back to (B, T, H, D), then reshape":
        Recipe(merge_transposed=False),
    "the output projection is missing": Recipe(projected=False),
    "the mask is put on after the softmax: put -inf in before it": Recipe(hidden=None),
    "the mask sets scores to 0, which is a score like others: set them to -inf": Recipe(hidden=0.0),
    "queries and keys are not divided by their root mean square (model.qk_norm)": Recipe(normed=""),
    "only the queries are divided by their root mean square": Recipe(normed="q"),
    "only the keys are divided by their root mean square": Recipe(normed="k"),
    "the values are divided by their root mean square too": Recipe(normed="qkv"),
    "queries and keys are not turned by their positions (model.position=rotary)": Recipe(turned=""),
    "only the queries are turned by their positions": Recipe(turned="q"),
    "only the keys are turned by their positions": Recipe(turned="k"),
    "the values are turned by their positions too": Recipe(turned="qkv"),
    "a number of a head is turned with the one half a head further, not with its neighbour":
        Recipe(halves=True),
    **{
        f"the projection is taken apart as {', '.join(order)}, not as q, k, v": Recipe(order=order)
        for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
    },
}  # fmt: skip


def attention_by_loops(
    module: CausalSelfAttention,
    x: Tensor,
    reads: Tensor,
    recipe: Recipe = RIGHT,
    *,
    rotary: bool = False,
) -> Tensor:
    """What a module with these weights has to give for one sequence, (T, C) to (T, C).

    `reads` (H, T, T) says which keys each query reads: whether it may is another question. With
    `rotary`, the sequence stands at positions 0 to T - 1.
    """
    T, C = x.shape
    H, D = module.n_head, C // module.n_head
    q, k, v = _heads(module, x, recipe, rotary=rotary)
    merged = torch.zeros(H, T, D, dtype=x.dtype)
    for h in range(H):
        scores = torch.zeros(T, T, dtype=x.dtype)
        for t in range(T):
            keys = k[h] if recipe.key_transposed else k[h].T
            scores[t] = keys @ q[h, t] * recipe.scale(C, D)
        if recipe.hidden is not None:
            scores[~reads[h]] = recipe.hidden
        axis = -1 if recipe.softmax_over_keys else 0
        powers = (scores - scores.amax(axis, keepdim=True)).exp()
        weights = powers / powers.sum(axis, keepdim=True)
        if recipe.hidden is None:
            weights[~reads[h]] = 0.0
        for t in range(T):
            merged[h, t] = weights[t] @ v[h]
    y = merged.transpose(0, 1) if recipe.merge_transposed else merged
    y = y.reshape(T, C)
    return linear(y, module.output) if recipe.projected else y


def _heads(module: CausalSelfAttention, x: Tensor, recipe: Recipe, *, rotary: bool) -> list[Tensor]:
    """Queries, keys and values of x (T, C), (H, T, D) each, as the scores are made of them."""
    T, C = x.shape
    H, D = module.n_head, C // module.n_head
    projected = linear(x, module.qkv)
    wide = (projected[:, :C], projected[:, C : 2 * C], projected[:, 2 * C :])
    parts = {
        name: part.reshape(T, H, D).transpose(0, 1)
        if recipe.split_transposed
        else part.reshape(H, T, D)
        for name, part in zip(recipe.order, wide, strict=True)
    }
    for name in recipe.normed if module.qk_norm else "":
        mean_square = (parts[name] ** 2).sum(-1, keepdim=True) / D
        parts[name] = parts[name] / (mean_square + QK_EPSILON).sqrt()
    for name in recipe.turned if rotary else "":
        parts[name] = _turned(parts[name], halves=recipe.halves)
    return [parts[name] for name in "qkv"]


def _turned(x: Tensor, *, halves: bool) -> Tensor:
    """Pair i of each vector of x (H, T, D) turned by t 10000^(-2i/D) (Su et al. 2021, eq. 15)."""
    _, T, D = x.shape
    y = torch.zeros_like(x)
    for t in range(T):
        for i in range(D // 2):
            a, b = (i, i + D // 2) if halves else (2 * i, 2 * i + 1)
            angle = t * 10000 ** (-2 * i / D)
            y[:, t, a] = math.cos(angle) * x[:, t, a] - math.sin(angle) * x[:, t, b]
            y[:, t, b] = math.sin(angle) * x[:, t, a] + math.cos(angle) * x[:, t, b]
    return y


def linear(x: Tensor, layer: torch.nn.Linear) -> Tensor:
    """Multiply by the layer's matrix, and add its bias if it has one."""
    y = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias  # pyright: ignore[reportUnnecessaryComparison]


@torch.no_grad()
def look_at_formula(subject: Subject) -> Finding:
    """Compare the readable attention of every layer with the loops, for what each query reads.

    As many positions as a head is wide: only then does attention with keys that are not transposed
    run at all.
    """
    shape = subject.exact.config
    T = min(max(2, shape.n_embd // shape.n_head), shape.block_size)
    lengths = {T, min(T + 3, shape.block_size)}  # a second one: the scale must not depend on it
    worst = 0.0
    for length, (number, block) in product(sorted(lengths), enumerate(blocks(subject.exact))):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(1, length, shape.n_embd, generator=generator).double()
        weights: list[Tensor] = []
        angles = angles_of(shape, length)
        y = block.attention(x, None, None, weights, angles)
        if difference(y, block.attention(x, None, None, [], angles)):
            return skipped("two passes differ, so neither can be judged")
        if len(weights[0][0]) != shape.n_head:
            heads = f"weights of {len(weights[0][0])} heads in layer {number}"
            return Finding(status="failed", figure=f"{heads}, n_head is {shape.n_head}")
        seen = Seen(block.attention, x[0], weights[0][0], y[0], rotary=angles is not None)
        off = seen.distance(RIGHT)
        if not off <= EXACT:
            return judged(f"largest difference, in layer {number}", off, EXACT, seen.cause)
        worst = max(worst, off)
    return judged("largest difference", worst, EXACT)


def angles_of(shape: ModelConfig, T: int) -> Tensor | None:
    """What the program turns the queries and keys of positions 0 to T - 1 by, if it does."""
    if shape.position != "rotary":
        return None
    return rotary_angles(torch.arange(T), shape.n_embd // shape.n_head, torch.float64)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a module made of a sequence x (T, C): weights (H, T, T) and output y (T, C)."""

    module: CausalSelfAttention
    x: Tensor
    weights: Tensor
    y: Tensor
    rotary: bool

    def distance(self, recipe: Recipe) -> float:
        """How far the output is from a recipe's; queries that read nothing are for other checks."""
        reads = self.weights > 0
        if recipe.hidden == 0:  # then every weight is above 0
            reads = reads.tril()
        some = reads.any(-1).all(0)
        expected = attention_by_loops(self.module, self.x, reads, recipe, rotary=self.rotary)
        return difference(self.y[some], expected[some])

    def cause(self) -> str:
        """The known mistakes that give just these numbers, or another scale that does."""
        T, C = self.x.shape
        square = C // self.module.n_head == T
        possible = {what: way for what, way in MISTAKES.items() if way.key_transposed or square}
        return recognised(possible, self.distance) or self._other_scale()

    def _other_scale(self) -> str:
        """The scale of the scores, if another one is all that is wrong.

        log w of two keys differs by the scale times the difference of their dot products with the
        query: the last query's give the scale.
        """
        D = self.x.size(1) // self.module.n_head
        q, k, _ = _heads(self.module, self.x, RIGHT, rotary=self.rotary)
        dots = k[0] @ q[0, -1]
        apart, logs = dots - dots[0], self.weights[0, -1].log() - self.weights[0, -1, 0].log()
        scale = (apart @ logs / (apart @ apart)).item()
        if not self.distance(Recipe(scale=lambda _, __: scale)) <= _FITTED:
            return ""
        return f"the scores are multiplied by {scale:.4g}, not by 1/√D = {1 / math.sqrt(D):.4g}"

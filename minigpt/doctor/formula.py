"""Multi-head attention in plain loops (Vaswani et al. 2017, section 3.2), right and wrong.

`Recipe` names the steps of the computation; one with a step changed is a known mistake. Attention
that differs from the right recipe is compared with the wrong ones, which tells what was done.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minigpt.doctor.finding import EXACT, Finding, Subject, blocks, difference, judged, skipped
from minigpt.model.attention import CausalSelfAttention


@dataclass(frozen=True, slots=True)
class Recipe:
    """How attention is computed: its steps, and the scale of the scores from C and D."""

    scale: Callable[[int, int], float] = lambda _, D: 1 / math.sqrt(D)
    key_transposed: bool = True
    softmax_over_keys: bool = True
    split_transposed: bool = True
    merge_transposed: bool = True
    projected: bool = True


RIGHT = Recipe()

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
}  # fmt: skip


def attention_by_loops(
    module: CausalSelfAttention, x: Tensor, reads: Tensor, recipe: Recipe = RIGHT
) -> Tensor:
    """What a module with these weights has to give for one sequence, (T, C) to (T, C).

    `reads` (H, T, T) says which keys each query reads: whether it may is another question.
    """
    T, C = x.shape
    H, D = module.n_head, C // module.n_head
    projected = _linear(x, module.qkv)
    wide = (projected[:, :C], projected[:, C : 2 * C], projected[:, 2 * C :])
    q, k, v = (
        part.reshape(T, H, D).transpose(0, 1) if recipe.split_transposed else part.reshape(H, T, D)
        for part in wide
    )
    merged = torch.zeros(H, T, D, dtype=x.dtype)
    for h in range(H):
        scores = torch.full((T, T), -math.inf, dtype=x.dtype)
        for t in range(T):
            keys = k[h] if recipe.key_transposed else k[h].T
            dots = keys @ q[h, t] * recipe.scale(C, D)
            scores[t, reads[h, t]] = dots[reads[h, t]]
        axis = -1 if recipe.softmax_over_keys else 0
        powers = (scores - scores.amax(axis, keepdim=True)).exp()
        weights = powers / powers.sum(axis, keepdim=True)
        for t in range(T):
            merged[h, t] = weights[t] @ v[h]
    y = merged.transpose(0, 1) if recipe.merge_transposed else merged
    y = y.reshape(T, C)
    return _linear(y, module.output) if recipe.projected else y


def _linear(x: Tensor, layer: torch.nn.Linear) -> Tensor:
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
    x = torch.randn(1, T, shape.n_embd, generator=torch.Generator().manual_seed(0)).double()
    worst = 0.0
    for number, block in enumerate(blocks(subject.exact)):
        module = block.attention
        weights: list[Tensor] = []
        y = module(x, None, None, weights)[0]
        if difference(y, module(x, None, None, [])[0]):
            return skipped("two passes differ, so neither can be judged")
        reads = weights[0][0] > 0
        seen = reads.any(-1).all(0)  # a query that reads nothing is for the next checks
        off = difference(y[seen], attention_by_loops(module, x[0], reads)[seen])
        if not off <= EXACT:
            return judged(
                f"largest difference, in layer {number}", off, EXACT,
                lambda m=module, r=reads, s=seen, y=y: _recognised(m, x[0], r, s, y),
            )  # fmt: skip
        worst = max(worst, off)
    return judged("largest difference", worst, EXACT)


def _recognised(
    module: CausalSelfAttention, x: Tensor, reads: Tensor, seen: Tensor, y: Tensor
) -> str:
    """The known mistakes that give just these numbers; at some widths two of them do."""
    square = x.size(0) == x.size(1) // module.n_head
    return ", or ".join(
        mistake
        for mistake, recipe in MISTAKES.items()
        if (recipe.key_transposed or square)
        and difference(y[seen], attention_by_loops(module, x, reads, recipe)[seen]) <= EXACT
    )

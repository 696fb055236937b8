"""The whole model written out: embeddings, blocks with their sums and norms, the head.

Attention itself is taken as it is: other checks judge it. As there, what differs from the formula
is compared with known mistakes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minigpt.config import ModelConfig
from minigpt.doctor.finding import (
    EXACT,
    Finding,
    Subject,
    blocks,
    difference,
    hooked,
    judged,
    recognised,
)
from minigpt.doctor.formula import angles_of, linear
from minigpt.model.block import MLP, Block


@dataclass(frozen=True, slots=True)
class Make:
    """How a block is put together."""

    sum_1: bool = True
    sum_2: bool = True
    norm_1: bool = True
    norm_2: bool = True
    activation: str | None = None  # None: that of the settings


RIGHT = Make()

MISTAKES = {
    "the residual sum around attention is missing": Make(sum_1=False),
    "the residual sum around the MLP is missing": Make(sum_2=False),
    "the norm of attention (norm_1) is not used": Make(norm_1=False),
    "the norm of the MLP (norm_2) is not used": Make(norm_2=False),
    "the MLP has no activation: two linear maps are one": Make(activation="none"),
    "the MLP's activation is relu": Make(activation="relu"),
    "the MLP's activation is gelu": Make(activation="gelu"),
    "the MLP's activation is relu2, relu squared": Make(activation="relu2"),
}

NO_SUM = "what enters block 0 is not the sum of token embedding and position"
NOT_EMBEDDED = "what enters block 0 is not the token embedding alone (model.position=rotary)"
NO_NORM = "the logits are not those of the last block's output after the final norm"


@torch.no_grad()
def look_at_composition(subject: Subject) -> Finding:
    """Follow two rows through the model, and compare what leaves each part with its formula."""
    model, tokens = subject.exact, subject.tokens()
    left: list[Tensor] = []

    def note(_block: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        left.extend([output] if left else [inputs[0], output])

    with hooked(block.register_forward_hook(note) for block in blocks(model)):
        logits = model(tokens)
    if len(left) != 1 + len(model.blocks):
        figure = f"{len(left) - 1} of {len(model.blocks)} blocks are run"
        return Finding(status="failed", figure=figure)
    embedded, angles = model.embedding.weight[tokens], angles_of(model.config, tokens.size(1))
    if angles is None:
        embedded = embedded + model.position(torch.arange(tokens.size(1)))
    worst = difference(left[0], embedded)
    if not worst <= EXACT:
        return judged(
            "largest difference of what enters block 0", worst, EXACT,
            lambda: NO_SUM if angles is None else NOT_EMBEDDED,
        )  # fmt: skip
    for number, block in enumerate(blocks(model)):
        before, after = left[number], left[number + 1]
        off = difference(after, block_by_formula(block, before, model.config, angles))
        if not off <= EXACT:
            return judged(
                f"largest difference of what leaves block {number}", off, EXACT,
                lambda b=block, x=before, y=after: recognised(
                    MISTAKES,
                    lambda make: difference(y, block_by_formula(b, x, model.config, angles, make)),
                ),
            )  # fmt: skip
        worst = max(worst, off)
    final = model.norm
    last = layer_norm(left[-1], final) if isinstance(final, nn.LayerNorm) else left[-1]
    off = difference(logits, model.logits(last))
    if not off <= EXACT:
        return judged("largest difference of the logits", off, EXACT, lambda: NO_NORM)
    return judged("largest difference", max(worst, off), EXACT)


def block_by_formula(
    block: Block, x: Tensor, config: ModelConfig, angles: Tensor | None, make: Make = RIGHT
) -> Tensor:
    """What a block gives for x (B, T, C): attention and MLP, each with a norm and a sum."""
    activation = make.activation or config.activation
    pre = config.norm_order == "pre"

    def norm_1(x: Tensor) -> Tensor:
        return layer_norm(x, block.norm_1) if make.norm_1 else x

    def norm_2(x: Tensor) -> Tensor:
        return layer_norm(x, block.norm_2) if make.norm_2 else x

    y = block.attention(norm_1(x) if pre else x, angles=angles)
    y = x + y if make.sum_1 else y
    x = y if pre else norm_1(y)
    y = mlp(norm_2(x) if pre else x, block.mlp, activation)
    y = x + y if make.sum_2 else y
    return y if pre else norm_2(y)


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Each position to mean 0 and variance 1 (Ba et al. 2016), then the learned scale and shift."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    return y if norm.bias is None else y + norm.bias  # pyright: ignore[reportUnnecessaryComparison]


def mlp(x: Tensor, layers: MLP, activation: str) -> Tensor:
    """Up, the activation, down; gelu in its tanh form (Hendrycks and Gimpel 2016, section 2)."""
    x = linear(x, layers.up)
    if activation == "gelu":
        x = 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
    elif activation == "relu":
        x = x * (x > 0)
    elif activation == "relu2":
        x = x**2 * (x > 0)
    return linear(x, layers.down)

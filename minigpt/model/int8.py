"""Weights of 8 bits: a quarter of the memory, and of what a decoding step has to read.

Each row of a weight, and each position's numbers that are multiplied with it, are divided by what
makes the largest of them 127 and rounded. Products are added as integers, exactly, by oneDNN's
kernel (on x86 it needs VNNI); what is lost is the rounding alone. What is computed for a position
depends on no other, so a row stays what it is alone; but a number that lies between two steps may
be rounded to either where another kernel came before, so "the same" means: but for a step.

Shapes: N numbers out, K numbers in, … any before them.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from minigpt.model.gpt import GPT

#: The largest integer of a weight or of an activation; the activations lie around `ZERO`.
LARGEST, ZERO = 127, 128


class Int8Linear(nn.Module):
    """x wᵀ + b with w in 8 bits and x rounded to 8 bits as it comes, (…, K) to (…, N)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Round a weight (N, K)."""
        super().__init__()
        largest = weight.detach().abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny)
        rounded = (weight.detach() * (LARGEST / largest)[:, None]).round().to(torch.int8)
        ops: Any = torch.ops.onednn
        self._weight = ops.qlinear_prepack(rounded, None)
        self._kernel = ops.qlinear_pointwise.default
        self._scales = largest / LARGEST**2
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._top = torch.tensor(float(LARGEST))
        self._middle = torch.tensor(ZERO + 0.5)  # what is cut off afterwards is then rounded
        self._bias = torch.zeros(len(weight)) if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(…, K) to (…, N)."""
        flat = x.reshape(-1, x.size(-1))
        largest = flat.abs().amax(1, keepdim=True)
        rounded = torch.addcmul(self._middle, flat, self._top / largest).to(torch.uint8)
        product = self._kernel(
            rounded, 1.0, ZERO, self._weight, self._scales, self._zeros,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        y = torch.addcmul(self._bias, product, largest)
        return y.view(*x.shape[:-1], y.size(-1))


def round_weights(model: GPT) -> None:
    """Turn a model's linear layers and its head to 8 bits; the table of embeddings stays.

    The model is one in float32 on a CPU that `is_exact`; from then on it can be read, and neither
    trained nor saved.
    """
    for block in model.blocks:
        part = cast("Any", block)
        for owner, names in ((part.attention, ("qkv", "output")), (part.mlp, ("up", "down"))):
            for name in names:
                layer: nn.Linear = getattr(owner, name)
                setattr(owner, name, Int8Linear(layer.weight, layer.bias))
    model.head = Int8Linear(model.embedding.weight, None)


def is_exact() -> bool:
    """Whether the kernel is there and adds the largest products without overflow."""
    if "onednn" not in torch.backends.quantized.supported_engines:
        return False
    ones = torch.ones(8, 256)
    return torch.equal(Int8Linear(ones, None)(ones), torch.full((8, 8), 256.0))

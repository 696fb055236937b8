"""Linear layers for the few rows of a decoding step, which cost what reading their weights costs.

A step has one row for each text that is continued, so a weight is used once or a few times for each
time that it is read. On a CPU in float32 the kernel behind `F.linear` then reads a large matrix
with one thread, and for a handful of rows far below the speed of memory. oneDNN's does better: from
the weights as they lie for one row, and for more from a copy that is packed for it.

Shapes: B rows, N numbers out, K numbers in.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from minigpt.model.int8 import Int8Linear
from minigpt.model.linear import onednn_product, suits_onednn

#: From (B, K) to (B, N).
LinearMap = Callable[[Tensor], Tensor]

#: Rows that a packed copy is made for; it serves any number.
FEW = 8
#: Bytes of a weight that are packed at most.
MOST_PACKED = 1 << 28


def linear_of(layer: nn.Module, rows: int | None) -> LinearMap:
    """What a linear layer does, for so many rows; see `linear`."""
    if isinstance(layer, Int8Linear):
        return layer.forward
    assert isinstance(layer, nn.Linear), layer
    return linear(layer.weight, layer.bias, rows)


def linear(weight: Tensor, bias: Tensor | None, rows: int | None) -> LinearMap:
    """The map x wᵀ + b, of (B, K), by the fastest kernel for so many rows; None is the plain one.

    It computes no gradients. Weights are read as they are at the time of the call, but for those
    that are packed: as they are now.
    """
    if rows is None or not suits_onednn(weight):
        turned = weight.detach().mT  # once; `F.linear` would do it for each call
        if bias is None:
            return lambda x: x @ turned
        return lambda x: torch.addmm(bias, x, turned)
    read = weight.detach() if rows == 1 or weight.nbytes > MOST_PACKED else packed(weight)
    return lambda x: onednn_product(x, read, bias)


def packed(weight: Tensor) -> Tensor:
    """A copy of a weight (N, K) in the order in which oneDNN reads it for a few rows."""
    reorder: Any = torch.ops.mkldnn._reorder_linear_weight.default  # noqa: SLF001  (its only name)
    return cast("Tensor", reorder(weight.detach(), FEW))

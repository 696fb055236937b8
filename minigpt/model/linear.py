"""A linear layer whose large products are oneDNN's, where that is the faster library.

PyTorch multiplies float32 matrices on a CPU with MKL. For a large weight oneDNN is 5 to 40% faster
forward and towards the input, and adds the bias on the way; the weight's own gradient is left to
MKL, which is faster there (bench/NOTES.md).

Shapes: K numbers in, N out.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

#: Numbers of a weight from which oneDNN is faster; it takes 20 µs to begin.
LARGE = 1 << 17
#: Whether this torch has it; asked here, where no compiler is looking on.
ONEDNN = torch.backends.mkldnn.is_available()


class Linear(nn.Linear):
    """`nn.Linear` with the faster kernel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the base class's name)
        """(…, K) to (…, N)."""
        if suits_onednn(self.weight) and input.dtype == torch.float32:
            return cast("Tensor", _Linear.apply(input, self.weight, self.bias))
        return super().forward(input)


def suits_onednn(weight: Tensor) -> bool:
    """Whether a linear layer's weight is one that oneDNN is faster with."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= LARGE
        and ONEDNN
        and not torch.is_autocast_enabled("cpu")
    )


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(…, K) to (…, N): x wᵀ + b. It records no gradient."""
    kernel: Any = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001  (its only name)
    return cast("Tensor", kernel(x, weight, bias, "none", [], ""))


# An operator of its own: a compiler takes oneDNN's for one whose weight is a constant.
@torch.library.custom_op("minigpt::linear", mutates_args=())
def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return onednn_product(x, weight, bias)


@_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del bias
    return x.new_empty(*x.shape[:-1], weight.size(0))


class _Linear(Function):
    """The layer, and its gradients: towards the input by oneDNN too, of the weight by MKL."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(…, K) to (…, N)."""
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable  # whose result torch types as a function of other names
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        """The gradients of input, weight and bias."""
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradients[0].reshape(-1, weight.size(0))
        return (
            _product(gradients[0], weight.mT, None) if of_x else None,
            rows.mT @ x.reshape(-1, weight.size(1)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )

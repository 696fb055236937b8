"""Queries and keys of one size: each head's are divided by their root mean square.

So a score depends on directions alone and cannot outgrow the softmax (Henry et al. 2020; Dehghani
et al. 2023, there with learned weights). `rms_normed` writes it out; `NormedHeads` is the same
with the turning by rotary positions, in fewer passes over memory.

Shapes: B batch, T positions, H heads, D head width.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

#: Added to the mean square, so that a vector of zeros stays one.
EPSILON = 1e-6


def rms_normed(x: Tensor) -> Tensor:
    """Vectors x (…, D) over √(mean x² + ε), in their own type (Zhang and Sennrich 2019)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)


class NormedHeads(Function):
    """Queries and keys normed and, with angles, turned; values as they are: (B, T, H, D) each.

    Of (B, T, 3, H, D), as the one projection gives them. By itself autograd would keep what lies
    between norm and turn and take twice as long. With y = x / r, g its gradient and ⟨⟩ the mean
    over D, that of x is (g - y ⟨g y⟩) / r. Turning changes no product of two vectors that are
    turned alike: so y may be the turned one, if what comes out is turned back.
    """

    @staticmethod
    def forward(ctx: Any, wide: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Norm and turn; see the class."""
        x = wide[:, :, :2].to(torch.promote_types(wide.dtype, torch.float32))
        size = cast("Tensor", torch.linalg.vector_norm(x, dim=-1, keepdim=True))
        scale = size.square_().div_(x.size(-1)).add_(EPSILON).rsqrt_()  # 1 / r
        y = x * scale
        if angles is not None:
            _pairs(y).mul_(_turns(angles))
        y = y.to(wide.dtype)
        ctx.save_for_backward(y, scale, angles)
        return y[:, :, 0], y[:, :, 1], wide[:, :, 2]

    @staticmethod
    @once_differentiable  # whose result torch types as a function of other names
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, None]:
        """The gradient of all three as one, (B, T, 3, H, D)."""
        y, scale, angles = ctx.saved_tensors
        wide = torch.stack(gradients, dim=2)
        place = wide[:, :, :2]
        g = place.to(scale.dtype)  # the place itself, unless that is half precision
        g.addcmul_(y, (g * y).mean(-1, keepdim=True), value=-1).mul_(scale)
        if angles is not None:
            _pairs(g).mul_(_turns(angles).conj())
        if g is not place:
            place.copy_(g)
        return wide, None


def _pairs(x: Tensor) -> Tensor:
    """The pairs of x (…, D) as complex numbers in the same place, (…, D / 2)."""
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


def _turns(angles: Tensor) -> Tensor:
    """Angles (…, T, 1, D / 2, 2) as the complex numbers that pairs (B, T, 2, H, D / 2) turn by."""
    return torch.view_as_complex(angles).unsqueeze(-2)

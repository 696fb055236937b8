"""The optimizers, with weight decay where it belongs.

The matrices of linear layers decay; biases, norms and the embeddings do not. The token embedding
is also the output head (one tensor): it is treated as an embedding, since decay would shrink the
vectors of rare tokens, which get little gradient to grow back.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from minigpt.config import OptimConfig

#: Coefficients of the quintic Newton-Schulz step, and how many steps (Jordan et al. 2024).
_QUINTIC, _STEPS = (3.4445, -4.7750, 2.0315), 5
#: What makes an orthogonal update as large, in root mean square, as AdamW's usually is
#: (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2): one rate serves both.
_UPDATE_RMS = 0.2


def build_optimizer(model: nn.Module, optim: OptimConfig, *, fused: bool) -> torch.optim.AdamW:
    """The optimizer of `optim.kind` over every trainable parameter, each in exactly one group.

    `adamw` is Loshchilov & Hutter 2019; `muon` is `Muon` over the matrices of linear layers and
    AdamW over the rest. `fused` runs AdamW's update as one kernel; it must be off under float16,
    whose gradients are unscaled before they are clipped.
    """
    assert optim.lr is not None
    matrices = [
        layer.weight
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]
    known = {id(weight) for weight in matrices}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    betas = (optim.beta1, optim.beta2)
    if optim.kind == "muon":
        groups[0]["momentum"] = optim.momentum
        return Muon(groups, lr=optim.lr, betas=betas, fused=fused)
    return torch.optim.AdamW(groups, lr=optim.lr, betas=betas, fused=fused)


def optimizer_name(kind: str | None) -> str:
    """An optimizer's name for people, by `optim.kind`."""
    return "Muon and AdamW" if kind == "muon" else "AdamW"


class Muon(torch.optim.AdamW):
    """Momentum whose matrix is made orthogonal before it is added (Jordan et al. 2024, "Muon").

    It is so for the groups that have a `momentum`; the others have AdamW's update. Matrices of one
    shape go through the Newton-Schulz steps together, in the weights' own precision (bfloat16 on a
    GPU): `torch.optim.Muon` takes them one by one, in bfloat16, which few CPUs are fast at.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; a matrix's gradient is used up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if "momentum" in group:
                self._step_matrices(group)
        super().step()
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        of_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is not None:
                of_shape.setdefault(weight.shape, []).append(weight)
        # what a gradient that is no number makes of the update must not reach the weights
        broken: Tensor | None = getattr(self, "found_inf", None)
        for shape, weights in of_shape.items():
            update = orthogonal(torch.stack([self._direction(w, group) for w in weights]))
            update *= -group["lr"] * _UPDATE_RMS * math.sqrt(max(shape))
            if broken is not None:
                update = torch.where(broken.bool(), 0.0, update)
            for weight, step in zip(weights, update, strict=True):
                decay = group["lr"] * group["weight_decay"]
                weight.mul_(1 - decay if broken is None else 1 - decay * (1 - broken)).add_(step)
                weight.grad = None  # so AdamW passes it by

    def _direction(self, weight: Tensor, group: dict[str, Any]) -> Tensor:
        """The momentum after this gradient, looked at one step ahead (Nesterov)."""
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
        state["step"] += 1  # which AdamW looks for when it is loaded
        kept = group["momentum"]
        momentum = state["momentum"].lerp_(weight.grad, 1 - kept)
        return weight.grad.lerp(momentum, kept)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices of (…, m, n), about: singular values in [0.5, 1.5].

    Newton-Schulz steps X ← aX + (bXXᵀ + c(XXᵀ)²)X, whose coefficients trade the exact value 1 for
    reaching its neighbourhood quickly from the smallest singular values.
    """
    a, b, c = _QUINTIC
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    size = cast("Tensor", torch.linalg.matrix_norm(x, keepdim=True))
    x = x / (size + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)

"""What goes on inside a model on real text. It can warn, and is never a failure by itself."""

import copy
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from minigpt.data.batches import Batch
from minigpt.doctor.finding import Finding, Subject, blocks, hooked, skipped
from minigpt.doctor.training_checks import some_rows, surprise
from minigpt.model.attention import attention_mask
from minigpt.training.loss import logits_of
from minigpt.training.validation import entropy_of

#: A head's mean entropy as a share of the most it could be: above, it reads everything alike;
#: below, it reads one position only.
UNIFORM, COLLAPSED = 0.98, 0.02

#: Positions on which a unit that is silent may be called dead.
ENOUGH = 64

#: A unit is dead if it never reaches this share of its layer's root mean square.
DEAD = 0.01

#: Root mean squares from which on single numbers begin to lose their digits.
LARGE_LOGITS, LARGE_ACTIVATIONS = 50.0, 1e3

#: The largest gradient norm of a block over the smallest that is no cause for a look.
GRADIENT_SPREAD = 100.0


def _observed(warnings: list[str], figure: str, **details: object) -> Finding:
    return Finding(
        status="warning" if warnings else "ok",
        figure=figure,
        cause="; ".join(warnings),
        details=details,
    )


def _logits(subject: Subject, attention: list[Tensor] | None = None) -> Tensor:
    """Logits (n, V) of the real positions, in single precision."""
    batch = some_rows(subject)
    return logits_of(subject.model, batch, attention)[batch.real_positions].float()


@torch.no_grad()
def observe_entropy(subject: Subject) -> Finding:
    """The entropy of each head's rows, as a share of ln n for a row that reads n positions."""
    most = _most_entropy(some_rows(subject))
    if not (most > 0).any():
        return skipped("no position reads more than one")
    weights: list[Tensor] = []
    _logits(subject, weights)
    shares: list[list[float]] = []
    for each in weights:
        share = (entropy_of(each) / most[:, None]).transpose(0, 1)[:, most > 0]  # (H, n)
        shares.append(cast("list[float]", share.mean(-1).tolist()))
    uniform = [] if subject.fresh else _heads(shares, lambda share: share > UNIFORM)
    collapsed = _heads(shares, lambda share: share < COLLAPSED)
    warnings = [
        f"{', '.join(heads)} {what}"
        for heads, what in (
            (uniform, "read everything alike"),
            (collapsed, "read one position only"),
        )
        if heads
    ]
    flat = [share for layer in shares for share in layer]
    return _observed(
        warnings,
        f"entropy as a share of the most a row can have: {min(flat):.2f} to {max(flat):.2f}"
        + "; a new model's is near 1" * subject.fresh,
        entropy=shares,
    )


def _most_entropy(batch: Batch) -> Tensor:
    """The entropy of reading all n alike, ln n, for each position (B, T); 0 for padded ones."""
    B, T = batch.inputs.shape
    mask = attention_mask(
        T, T, real=batch.real, documents=batch.documents, device=batch.inputs.device
    )
    if mask is None:
        mask = torch.ones(T, T, dtype=torch.bool, device=batch.inputs.device).tril()
    most = mask.sum(-1).expand(B, 1, T)[:, 0].float().log()
    return most.masked_fill(~batch.real_positions, 0.0)


def _heads(shares: list[list[float]], is_meant: Callable[[float], bool]) -> list[str]:
    return [
        f"layer {layer} head {head}"
        for layer, heads in enumerate(shares)
        for head, share in enumerate(heads)
        if is_meant(share)
    ]


@torch.no_grad()
def observe_norms(subject: Subject) -> Finding:
    """Root mean squares of the residual stream after each block, and of the logits."""
    norms: list[float] = []

    def measure(_block: nn.Module, _inputs: object, output: Tensor) -> None:
        norms.append(_rms(output))

    with hooked(block.register_forward_hook(measure) for block in blocks(subject.model)):
        logit_rms = _rms(_logits(subject))
    warnings: list[str] = []
    if not logit_rms <= LARGE_LOGITS:
        warnings.append(f"logits of {logit_rms:.3g} make the softmax all or nothing")
    if not max(norms) <= LARGE_ACTIVATIONS:
        warnings.append(f"activations of {max(norms):.3g} leave little of the digits")
    return _observed(
        warnings,
        f"activations {min(norms):.3g} to {max(norms):.3g}, logits {logit_rms:.3g}",
        activations=norms,
        logits=logit_rms,
    )


@torch.no_grad()
def observe_dead_units(subject: Subject) -> Finding:
    """Units of each MLP that stay silent on every position of the batch."""
    if subject.batch.n_targets < ENOUGH:
        return skipped(f"{subject.batch.n_targets} positions are too few to call a unit silent")
    dead: list[int] = []

    def measure(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        activation = inputs[0].float()
        loudest = activation.abs().amax(tuple(range(activation.dim() - 1)))
        dead.append(int((loudest <= DEAD * activation.square().mean().sqrt()).sum()))

    layers = [block.mlp.down for block in blocks(subject.model)]
    with hooked(layer.register_forward_pre_hook(measure) for layer in layers):
        _logits(subject)
    units = 4 * subject.model.config.n_embd
    warnings = [
        f"{count} of {units} units of layer {layer} are silent on the whole batch"
        for layer, count in enumerate(dead)
        if count > units // 10
    ]
    return _observed(warnings, f"{sum(dead)} of {units * len(dead):,} units", dead_units=dead)


def observe_gradients(subject: Subject) -> Finding:
    """The norm of the gradient of each block's parameters."""
    model = copy.deepcopy(subject.model)
    with torch.enable_grad():
        batch = some_rows(subject)
        surprise(logits_of(model, batch), batch.targets).backward()
    norms = [
        math.hypot(*(_size(parameter.grad) for parameter in block.parameters()))
        for block in blocks(model)
    ]
    spread = max(norms) / max(min(norms), 1e-30)
    warnings: list[str] = []
    if not spread <= GRADIENT_SPREAD:
        warnings.append(f"the largest is {spread:.3g} times the smallest")
    return _observed(
        warnings, f"between {min(norms):.3g} and {max(norms):.3g} a block", gradients=norms
    )


def _size(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else gradient.square().sum().sqrt().item()


def _rms(tensor: Tensor) -> float:
    return tensor.float().square().mean().sqrt().item()

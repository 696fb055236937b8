"""The next-token loss as a sum, so that no average of averages can arise.

A micro-batch's loss is its sum of negative log-likelihoods divided by the number of target tokens
of the *whole optimizer step*. Micro-batches and processes then only add, and each target token
counts once, however the step's rows are divided.

`summed_loss` is the formula, over logits (B, T, V) that somebody has. Training and validation want
only the number: `batch_loss` gives it without ever holding a large vocabulary's logits whole.

Shapes: B batch, T positions, N = B * T of them, R a part of N, C width, V tokens.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor
from torch.autograd.function import once_differentiable

from minigpt.data.batches import IGNORED, Batch
from minigpt.model.gpt import GPT

#: A batch's hidden states, by a model.
Reader = Callable[[GPT, Batch], Tensor]

#: So many logits are made at once, which a processor's cache holds, ...
_LOGITS = 2**21
#: ... but those of so many positions at least: with fewer the products would wait for the head's
#: weight to come from memory (bench/NOTES.md), and a GPU's many units for work.
_POSITIONS, _POSITIONS_ON_GPU = 256, 4096


def hidden_of(model: GPT, batch: Batch, attention: list[Tensor] | None = None) -> Tensor:
    """Hidden states (B, T, C) of a batch that is where the model is; `GPT.hidden`'s `attention`.

    Padding stands behind a row's tokens, where causality alone hides it from them: kernels are
    faster without a mask. What the padded positions read is of no account, as they have no target.
    """
    return model.hidden(
        batch.inputs,
        positions=batch.positions,
        documents=batch.documents,
        attention=attention,
    )


def logits_of(model: GPT, batch: Batch, attention: list[Tensor] | None = None) -> Tensor:
    """Logits (B, T, V) of a batch; otherwise as `hidden_of`."""
    return model.logits(hidden_of(model, batch, attention))


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the targets' negative log-likelihoods, in nats; at least float32.

    Args:
        logits: (B, T, V).
        targets: (B, T) token ids, `IGNORED` where there is none to predict.
    """
    logits = logits.flatten(0, 1)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def batch_loss(model: GPT, batch: Batch, scale: float = 1.0, read: Reader = hidden_of) -> Tensor:
    """`scale` times the summed loss of a batch that is where the model is; see `head_loss`.

    Its parts one after the other; `read` is `hidden_of`, or what a compiler made of it.
    """
    weight = model.embedding.weight
    losses = [
        head_loss(read(model, part), weight, part.targets, scale) for part in batch.in_parts()
    ]
    return torch.stack(losses).sum()


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
    """`scale` times the `summed_loss` of the logits that a head gives; they are not held whole.

    Args:
        hidden: (B, T, C), what the head reads.
        weight: (V, C), the head's own.
        targets: (B, T) as for `summed_loss`.
        scale: a factor; unlike one that the result is multiplied with, it takes no time.
    """
    if targets.numel() * len(weight) <= _LOGITS:
        return summed_loss(F.linear(hidden, weight), targets) * scale
    if not torch.is_grad_enabled():
        weight = weight.detach()
    function = cast("Any", _HeadLoss)  # whose `apply` has no types
    return function.apply(hidden.flatten(0, 1), weight, targets.flatten(), scale)


class _HeadLoss(torch.autograd.Function):
    """The loss of some positions at a time, and at once what its gradients owe to them.

    The gradient by a position's logits is their softmax, less 1 at the target: known as soon as
    the logits are. It is multiplied into the gradients of hidden states and weight while it is
    there, and only these wait for the backward pass (as in Liger, Hsu et al. 2024).
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, scale: float) -> Tensor:
        """The scaled loss of hidden (N, C), weight (V, C) and targets (N).

        Its products are in autocast's precision where that is on, its sums at least in float32.
        """
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        precision = torch.get_autocast_dtype(device) if autocast else hidden.dtype
        loss = hidden.new_zeros((), dtype=torch.promote_types(precision, torch.float32))
        of_hidden, of_weight = (
            torch.empty_like(each) if wanted else None
            for each, wanted in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        )
        with torch.autocast(device, enabled=False):
            matrix = weight.to(precision)
            for number, part in enumerate(_parts(hidden, weight)):
                x, ids = hidden[part].to(precision), targets[part]
                nats, slope = _nats_and_slope(matrix, x, ids)
                loss += nats
                counted = (ids != IGNORED)[:, None]
                if of_hidden is not None:
                    of_hidden[part] = (slope.mT @ matrix).mul_(counted)
                if of_weight is not None:
                    _add_product(of_weight, slope, x * counted, scale, first=number == 0)
        if of_hidden is not None:
            of_hidden *= scale
        ctx.save_for_backward(of_hidden, of_weight)
        return loss.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator's own signature)
        """The gradients, times that of the loss; in place, for they are large and used once."""
        of_hidden, of_weight = (
            each if each is None else each.mul_(grad_outputs[0]) for each in ctx.saved_tensors
        )
        return of_hidden, of_weight, None, None


def _parts(hidden: Tensor, weight: Tensor) -> list[slice]:
    """Which of N positions go together: as many as are worth a product, and no rest of a few."""
    least = _POSITIONS if hidden.device.type == "cpu" else _POSITIONS_ON_GPU
    least = max(least, _LOGITS // len(weight))
    size = math.ceil(len(hidden) / max(1, len(hidden) // least))
    return [slice(start, start + size) for start in range(0, len(hidden), size)]


def _nats_and_slope(weight: Tensor, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of hidden (R, C), and its gradient by their logits turned round, (V, R).

    An ignored target adds nothing to the loss, but has a gradient here. The logits are made turned
    round, since that product is the faster one where V is large.
    """
    logits = (weight @ hidden.mT).to(torch.promote_types(hidden.dtype, torch.float32))
    ids = targets.clamp(min=0)[None]
    of_target, largest = logits.gather(0, ids)[0], logits.amax(0)
    softmax = torch.softmax(logits, 0, out=logits)
    log_sum = largest - softmax.amax(0).log()  # the largest logit is the log of this and the sum
    nats = (log_sum - of_target).masked_fill(targets == IGNORED, 0).sum()
    slope = softmax.scatter_add_(0, ids, -torch.ones_like(of_target)[None])
    return nats, slope.to(hidden.dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor, scale: float, *, first: bool) -> None:
    """Add `scale` times a (V, R) @ b (R, C) to a sum (V, C), which the first one begins.

    A sum over positions can leave float16's range where the sum of the loss's gradient would not.
    """
    if a.dtype == total.dtype:
        total.addmm_(a, b, beta=0 if first else 1, alpha=scale)
        return
    product = torch.mm(a, b, out_dtype=total.dtype) if a.is_cuda else a @ b
    (total.zero_() if first else total).add_(product, alpha=scale)


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Summed loss over text of `n_bytes` UTF-8 bytes: independent of the tokenizer."""
    return nats / math.log(2) / n_bytes


def perplexity(nats_per_token: float) -> float:
    """The mean loss, exponentiated; infinite where that leaves the range of a float."""
    return math.exp(nats_per_token) if nats_per_token < math.log(1.7e308) else math.inf

"""What has to hold before a model can be trained: its batch, its first loss, its parameters."""

import copy
import dataclasses
import math
from typing import cast

import torch
from torch import Tensor, nn

from minigpt.config import OptimConfig
from minigpt.data.batches import IGNORED, Batch
from minigpt.data.overfit import floor_of
from minigpt.defaults import peak_learning_rate
from minigpt.doctor.finding import EXACT, Finding, Subject, difference, judged, skipped
from minigpt.model.gpt import GPT
from minigpt.training.loss import summed_loss
from minigpt.training.optimizer import build_optimizer

#: Nats that the loss of a new model may be away from ln V: its logits are small, not zero.
FIRST_LOSS_SLACK = 0.5

#: Positions whose loss or activations are looked at: enough for a mean, even on a large model.
POSITIONS = 2048

#: The batch that is overfitted, and the loss above its floor that counts as learned, in nats.
OVERFIT_ROWS, OVERFIT_POSITIONS, OVERFIT_STEPS, OVERFIT_LOSS = 2, 32, 200, 0.1


def look_at_targets(subject: Subject) -> Finding:
    """Each target is the input that follows it, and there is none where a row has ended."""
    inputs, targets = subject.batch.inputs, subject.batch.targets
    real = torch.ones_like(inputs, dtype=torch.bool)
    if subject.batch.real is not None:
        real = subject.batch.real
    followed = real[:, 1:]  # the positions whose next input is in the row too
    n = int(followed.sum())
    right = int((targets[:, :-1] == inputs[:, 1:])[followed].sum())
    ignored = bool((targets[~real] == IGNORED).all())
    passed = right == n and ignored
    figure = f"{right:,} of {n:,} targets are the input that follows"
    if not ignored:
        figure += "; padded positions have targets"
    return Finding(
        status="ok" if passed else "failed",
        figure=figure,
        value=float(n - right),
        bound=0.0,
        cause="" if passed else _shift(inputs, targets, real),
    )


def _shift(inputs: Tensor, targets: Tensor, real: Tensor) -> str:
    if torch.equal(targets[real], inputs[real]):
        return "the targets are the inputs themselves: they are not shifted"
    both = real[:, 2:]
    if torch.equal(targets[:, :-2][both], inputs[:, 2:][both]):
        return "the targets are shifted by two"
    return ""


@torch.no_grad()
def look_at_first_loss(subject: Subject) -> Finding:
    """A model that knows nothing gives each of V tokens about the probability 1/V."""
    if not subject.fresh:
        return skipped("the model is trained")
    uniform = math.log(subject.model.vocab_size)
    loss = mean_loss(subject.model, some_rows(subject.batch)).item()
    return judged(
        f"{loss:.4f} nats a token, ln {subject.model.vocab_size:,} is {uniform:.4f}; apart by",
        abs(loss - uniform),
        FIRST_LOSS_SLACK,
    )


def mean_loss(model: GPT, batch: Batch) -> Tensor:
    """Mean loss in nats a target."""
    here = batch.to(model.embedding.weight.device)
    logits = model(here.inputs, positions=here.positions, real=here.real, documents=here.documents)
    return summed_loss(logits, here.targets) / batch.n_targets


def some_rows(batch: Batch) -> Batch:
    """As many rows as make up about `POSITIONS` positions."""
    return first_part(batch, rows=max(1, POSITIONS // batch.inputs.size(1)))


def first_part(batch: Batch, *, rows: int, positions: int | None = None) -> Batch:
    """The first rows of a batch and of their positions."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:rows, :positions]

    targets = batch.targets[:rows, :positions]
    n_targets = int((targets != IGNORED).sum())
    return dataclasses.replace(
        batch,
        inputs=batch.inputs[:rows, :positions],
        targets=targets,
        real=cut(batch.real),
        documents=cut(batch.documents),
        positions=cut(batch.positions),
        n_targets=n_targets,
        step_targets=n_targets,
    )


@torch.no_grad()
def look_at_parameters(subject: Subject) -> Finding:
    """One matrix for embedding and head, the formula's count, one optimizer group for each.

    And each has a part in the loss.
    """
    model = subject.exact
    hidden = torch.randn(
        4, model.config.n_embd, generator=torch.Generator().manual_seed(0)
    ).double()
    tie = difference(model.logits(hidden), hidden @ model.embedding.weight.T)
    counted, formula = model.parameter_count(), expected_parameters(subject)
    groups = build_optimizer(model, OptimConfig(lr=1e-3), fused=False).param_groups
    decayed, rest = ([id(p) for p in group["params"]] for group in groups)
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    once = sorted(decayed + rest) == sorted(id(p) for p in model.parameters())
    unreached = _without_gradient(subject)
    faults = {
        "the head is not the embedding: its logits are those of other weights": tie > EXACT,
        f"{counted - formula:+,} parameters to the formula's": counted != formula,
        "a parameter is in no group of the optimizer, or in two": not once,
        "weight decay does not reach the linear layers' matrices and only them":
            set(decayed) != linear,
        f"no gradient reaches {', '.join(unreached)}": bool(unreached),
    }  # fmt: skip
    found = [fault for fault, is_there in faults.items() if is_there]
    return Finding(
        status="failed" if found else "ok",
        figure=(
            f"{counted:,} parameters, {formula:,} by the formula; {len(decayed)} tensors with"
            f" weight decay, {len(rest)} without"
        ),
        value=float(len(found)),
        bound=0.0,
        cause="; ".join(found),
    )


def _without_gradient(subject: Subject) -> list[str]:
    """The parameters that a loss does not depend on, by name."""
    tokens = subject.tokens()
    names, parameters = zip(*subject.exact.named_parameters(), strict=True)
    with torch.enable_grad():
        loss = summed_loss(subject.exact(tokens), subject.other_tokens(tokens))
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return [name for name, gradient in zip(names, gradients, strict=True) if not gradient.any()]


def expected_parameters(subject: Subject) -> int:
    """How many numbers a model of this shape has, with one matrix for embedding and head.

    A block has 12 C² weights: queries, keys, values and the output projection (4 C²), and the MLP
    (8 C²); with biases 13 C more numbers with those of its norms, without them 2 C.
    """
    shape, C = subject.model.config, subject.model.config.n_embd
    block = 12 * C * C + (13 if shape.bias else 2) * C
    norm = (2 if shape.bias else 1) * C if shape.norm_order == "pre" else 0
    positions = shape.block_size * C if shape.position == "learned" else 0
    return subject.model.vocab_size * C + positions + shape.n_layer * block + norm


def look_at_overfitting(subject: Subject) -> Finding:
    """Learn a few short rows by heart: what cannot do that cannot learn anything."""
    batch = first_part(subject.batch, rows=OVERFIT_ROWS, positions=OVERFIT_POSITIONS)
    # documents that may not look back open alike, and no model can tell which of them begins
    batch = dataclasses.replace(batch, documents=None, positions=None)
    wanted = floor_of(_rows(batch)) + OVERFIT_LOSS
    model = copy.deepcopy(subject.model)
    optim = OptimConfig(lr=peak_learning_rate(model.config.n_embd), weight_decay=0.0)
    optimizer = build_optimizer(model, optim, fused=True)
    steps, loss = 0, math.inf
    with torch.enable_grad():
        while steps < OVERFIT_STEPS and not loss < wanted:
            optimizer.zero_grad()
            mean = mean_loss(model, batch)
            mean.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss = mean.item()
            steps += 1
    return judged(
        f"loss of {batch.n_targets} targets after {steps} step{'s' * (steps != 1)}", loss, wanted
    )


def _rows(batch: Batch) -> list[list[int]]:
    """The tokens of each row: what is read first, then the targets."""
    real = batch.targets != IGNORED
    return [
        [int(batch.inputs[row, 0]), *cast("list[int]", batch.targets[row][real[row]].tolist())]
        for row in range(len(real))
    ]

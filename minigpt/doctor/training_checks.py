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
from minigpt.training.loss import logits_of, summed_loss
from minigpt.training.optimizer import build_optimizer

#: Nats that the loss of a new model may be away from ln V, besides what its width makes of
#: embeddings with a spread of 0.02: logits with a variance of C 0.02², of which half is added.
FIRST_LOSS_SLACK = 0.3

#: Positions whose loss or activations are looked at: enough for a mean, even on a large model.
POSITIONS = 2048

#: The batch that is overfitted, and the loss above its floor that counts as learned, in nats.
OVERFIT_ROWS, OVERFIT_POSITIONS, OVERFIT_STEPS, OVERFIT_LOSS = 2, 32, 200, 0.1

#: The width from which on a model is sure to learn them.
NARROW = 16


def look_at_targets(subject: Subject) -> Finding:
    """Each target is the input that follows it, and there is none where a row has ended."""
    inputs, targets = subject.batch.inputs, subject.batch.targets
    real = subject.batch.real_positions
    followed = real[:, 1:]  # the positions whose next input is in the row too
    n = int(followed.sum())
    right = int((targets[:, :-1] == inputs[:, 1:])[followed].sum())
    n_targets = int((targets != IGNORED).sum())
    faults = {
        _shift(inputs, targets, real): right < n,
        "padded positions have targets": bool((targets[~real] != IGNORED).any()),
        "real positions have none": bool((targets[real] == IGNORED).any()),
        "documents and positions do not begin anew at each end token":
            not _documents_follow(subject),
        f"the batch counts {subject.batch.n_targets:,} targets and has {n_targets:,}":
            subject.batch.n_targets != n_targets,
    }  # fmt: skip
    found = [fault for fault, is_there in faults.items() if is_there]
    return Finding(
        status="failed" if found else "ok",
        figure=f"{right:,} of {n:,} targets are the input that follows",
        value=float(n - right),
        bound=0.0,
        cause="; ".join(found),
    )


def _documents_follow(subject: Subject) -> bool:
    """Whether documents and positions, where the batch has them, begin anew at each end token."""
    batch, store = subject.batch, subject.store
    if batch.documents is None or batch.positions is None or store is None:
        return True
    opens = batch.inputs == store.end_id
    columns = torch.arange(opens.size(1)).expand_as(opens)
    opened = torch.where(opens, columns, 0).cummax(1).values
    same = batch.documents[:, 1:] == batch.documents[:, :-1]
    return torch.equal(same, ~opens[:, 1:]) and torch.equal(batch.positions, columns - opened)


def _shift(inputs: Tensor, targets: Tensor, real: Tensor) -> str:
    if torch.equal(targets[real], inputs[real]):
        return "the targets are the inputs themselves: they are not shifted"
    both = real[:, 2:]
    if torch.equal(targets[:, :-2][both], inputs[:, 2:][both]):
        return "the targets are shifted by two"
    return "other tokens than those that follow"


@torch.no_grad()
def look_at_first_loss(subject: Subject) -> Finding:
    """A model that knows nothing gives each of V tokens about the probability 1/V."""
    if not subject.fresh:
        return skipped("the model is trained")
    model, batch = subject.model, some_rows(subject)
    uniform = math.log(model.vocab_size)
    logits = logits_of(model, batch).float()
    loss = surprise(logits, batch.targets).item()
    # the head is the embedding, so the token just read is likely again: that is no preference
    level = logits.mean(-1, keepdim=True)
    others = logits.scatter(-1, batch.inputs[..., None], level)
    without = surprise(others, batch.targets).item()
    return judged(
        f"{loss:.4f} nats a token, {without:.4f} if the token just read counts as any, and"
        f" ln {model.vocab_size:,} is {uniform:.4f}; apart by",
        abs(without - uniform),
        FIRST_LOSS_SLACK + 0.02**2 * model.config.n_embd,
    )


def surprise(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of -ln of the targets' probabilities, by the formula: what the loss has to be."""
    counted = targets != IGNORED
    log_probabilities = logits[counted].float().log_softmax(-1)
    return -log_probabilities.gather(-1, targets[counted][:, None]).mean()


def some_rows(subject: Subject) -> Batch:
    """As many of the batch's rows as make up about `POSITIONS` positions, where the model is."""
    rows = max(1, POSITIONS // subject.batch.inputs.size(1))
    return first_part(subject.batch, rows=rows).to(subject.model.device)


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
    """Embedding and head are one, the count is the formula's, each parameter is trained once."""
    model = subject.exact
    counted, formula = model.parameter_count(), expected_parameters(subject)
    faults = _faults_of_head(model)
    if counted != formula:
        faults.append(f"{counted - formula:+,} parameters to the formula's")
    groups = build_optimizer(model, OptimConfig(lr=1e-3), fused=False).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    faults += _faults_of_decay(model, decay)
    if unreached := _without_gradient(subject):
        faults.append(f"no gradient reaches {', '.join(unreached)}")
    return Finding(
        status="failed" if faults else "ok",
        figure=(
            f"{counted:,} parameters, {formula:,} by the formula; {len(decay)} tensors, of which"
            f" {sum(map(bool, decay.values()))} have weight decay"
        ),
        value=float(len(faults)),
        bound=0.0,
        cause="; ".join(faults),
    )


def _faults_of_head(model: GPT) -> list[str]:
    """What is wrong if the logits are not the embedding's, and do not follow a change of it."""
    C, weight = model.config.n_embd, model.embedding.weight
    hidden = torch.randn(4, C, generator=torch.Generator().manual_seed(0)).double()
    logits, expected = model.logits(hidden), hidden @ weight.T
    kept = weight.clone()
    weight.mul_(2)
    follows = difference(model.logits(hidden), 2 * logits) <= EXACT
    weight.copy_(kept)
    if not follows:
        return ["the head is not the embedding: a change of the one does not reach the other"]
    if difference(logits, expected) <= EXACT:
        return []
    scale = ((logits * expected).sum() / expected.square().sum()).item()
    if difference(logits, scale * expected) <= EXACT:
        return [f"the logits are the embedding's times {scale:.4g}"]
    return ["the logits are not the embedding's"]


def _faults_of_decay(model: GPT, decay: dict[int, float]) -> list[str]:
    """What is wrong with the optimizer's groups; `decay` has each parameter's by its id."""
    expected = dict.fromkeys((id(p) for p in model.parameters()), 0.0)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    expected |= {id(layer.weight): OptimConfig().weight_decay for layer in linear}
    if decay.keys() != expected.keys():
        return ["a parameter is in no group of the optimizer"]
    if decay != expected:
        return ["weight decay does not reach the linear layers' matrices and only them"]
    return []


def _without_gradient(subject: Subject) -> list[str]:
    """The parameters that a loss does not depend on, by name."""
    tokens = subject.tokens()
    parameters = dict(subject.exact.named_parameters())
    trained = {name: each for name, each in parameters.items() if each.requires_grad}
    gradients: dict[str, Tensor] = {}
    if trained:
        with torch.enable_grad():
            loss = summed_loss(subject.exact(tokens), subject.other_tokens(tokens))
            found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        gradients = dict(zip(trained, found, strict=True))
    if tokens.size(1) > 1:  # queries and keys of a single position do nothing
        for name in [name for name in trained if name.endswith("qkv.weight")]:
            thirds = zip("qkv", gradients.pop(name).chunk(3), strict=True)
            gradients |= {f"{name} ({third})": gradient for third, gradient in thirds}
    frozen = [name for name in parameters if name not in trained]
    return frozen + [name for name, gradient in gradients.items() if not gradient.any()]


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
    if subject.model.config.n_embd < NARROW:
        return skipped(f"a width below {NARROW} is too narrow to learn by heart")
    batch = first_part(subject.batch, rows=OVERFIT_ROWS, positions=OVERFIT_POSITIONS)
    # documents that may not look back open alike, and no model can tell which of them begins
    batch = dataclasses.replace(batch, documents=None, positions=None)
    wanted, n_targets = floor_of(_rows(batch)) + OVERFIT_LOSS, batch.n_targets
    model = copy.deepcopy(subject.model)
    batch = batch.to(model.device)
    optim = OptimConfig(lr=peak_learning_rate(model.config.n_embd, "adamw"), weight_decay=0.0)
    optimizer = build_optimizer(model, optim, fused=True)
    steps, loss, theirs = 0, math.inf, math.inf
    with torch.enable_grad():
        while steps < OVERFIT_STEPS and not loss < wanted:
            optimizer.zero_grad()
            logits = logits_of(model, batch)
            mean = summed_loss(logits, batch.targets) / batch.n_targets
            mean.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss, theirs = surprise(logits.detach(), batch.targets).item(), mean.item()
            steps += 1
    return judged(
        f"loss of {n_targets} targets after {steps} step{'s' * (steps != 1)}", loss, wanted,
        lambda: "" if abs(loss - theirs) < 1e-3 else
        f"the program's loss is {theirs:.4f}: not that of these targets (minigpt/training/loss.py)",
    )  # fmt: skip


def _rows(batch: Batch) -> list[list[int]]:
    """The tokens of each row: what is read first, then the targets."""
    real = batch.targets != IGNORED
    return [
        [int(batch.inputs[row, 0]), *cast("list[int]", batch.targets[row][real[row]].tolist())]
        for row in range(len(real))
    ]

"""The loss over the validation part, and what attention looks like there."""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from minigpt.data.batches import Batch
from minigpt.model.gpt import GPT
from minigpt.training.loss import batch_loss, hidden_of

#: Weights of attention that are looked at at once: 32 MB, and a few times as much to compute them.
_WEIGHTS = 2**23


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """Summed negative log-likelihood in nats, and how many targets it is over."""

    nats: float
    n_targets: int

    @property
    def per_token(self) -> float:
        """Mean loss in nats: each target counts once, whatever the batches were."""
        return self.nats / self.n_targets


def validation_loss(
    model: GPT,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    arithmetic: Callable[[], AbstractContextManager[object]] = nullcontext,
    add_up: Callable[[torch.Tensor], torch.Tensor] = lambda sums: sums,
) -> ValidationLoss:
    """Token-weighted loss of `model` in evaluation mode over `batches`.

    `arithmetic` opens the precision's context around each forward pass; `add_up` adds a tensor
    over the processes that share the work (one without a batch adds 0 to both sums).
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches:
            here = batch.to(device)
            with arithmetic():
                sums[0] += batch_loss(model, here).double().cpu()
            sums[1] += batch.n_targets
    model.train(was_training)
    total = add_up(sums)
    return ValidationLoss(total[0].item(), round(total[1].item()))


@torch.no_grad()
def attention_statistics(model: GPT, batch: Batch) -> dict[str, float]:
    """Entropy of each layer's attention rows in nats, and the root mean square of the logits.

    Over the real positions of one batch that lies on the model's device. A row that may read n
    keys has an entropy between 0 (one key) and ln n (all alike). The squares of a position's logits
    W h add up to h · WᵀW h, for which there need be no logits.
    """
    was_training = model.training
    model.eval()
    weight = model.embedding.weight.float()
    gram = weight.mT @ weight
    squares = torch.zeros((), dtype=torch.float64)
    sums = torch.zeros(model.config.n_layer, dtype=torch.float64)
    for part in parts_to_look_at(model, batch):
        real, entropies = part.real_positions, Entropies()
        hidden = hidden_of(model, part, entropies)[real].float()
        squares += (hidden @ gram * hidden).sum().cpu()
        sums += torch.stack([of_layer.mean(1)[real].sum() for of_layer in entropies]).cpu()
    model.train(was_training)
    n_real = int(batch.real_positions.sum())
    statistics = {"logit_rms": math.sqrt(squares.item() / (n_real * len(weight)))}
    for layer, summed in enumerate(sums):
        statistics[f"attention_entropy_{layer}"] = summed.item() / n_real
    return statistics


def parts_to_look_at(model: GPT, batch: Batch) -> list[Batch]:
    """The batch by so many rows that the weights of a block, (rows, H, T, T), stay few."""
    n_rows, width = batch.inputs.shape
    together = max(1, _WEIGHTS // (model.config.n_head * width * width))
    firsts = range(0, n_rows, together)
    return [batch.rows(first, first + together) for first in firsts]


class Entropies(list[torch.Tensor]):
    """For `GPT.hidden`'s `attention`: keeps the entropies (B, H, T) of a block's weights alone.

    The weights of all blocks together would be the most that a run ever holds.
    """

    def append(self, weights: torch.Tensor, /) -> None:
        """Take in the weights (B, H, T, S) of the next block."""
        super().append(entropy_of(weights))


def entropy_of(weights: torch.Tensor) -> torch.Tensor:
    """The entropy of each row of attention weights (…, S), in nats, (…)."""
    weights = weights.float()
    return -torch.xlogy(weights, weights).sum(-1)

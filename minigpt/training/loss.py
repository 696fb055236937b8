"""A batch's logits, and the next-token loss as a sum, so that no average of averages can arise.

A micro-batch's loss is its sum of negative log-likelihoods divided by the number of target tokens
of the *whole optimizer step*. Micro-batches and processes then only add, and each target token
counts once, however the step's rows are divided.
"""

import math

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from minigpt.data.batches import IGNORED, Batch
from minigpt.model.gpt import GPT


def logits_of(
    model: GPT, batch: Batch, attention: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """Logits (B, T, V) of a batch that is where the model is; `attention` as in `GPT.hidden`."""
    return model(
        batch.inputs,
        positions=batch.positions,
        real=batch.real,
        documents=batch.documents,
        attention=attention,
    )


def summed_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the targets' negative log-likelihoods, in nats; at least float32.

    Args:
        logits: (B, T, V).
        targets: (B, T) token ids, `IGNORED` where there is none to predict.
    """
    logits = logits.flatten(0, 1)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Summed loss over text of `n_bytes` UTF-8 bytes: independent of the tokenizer."""
    return nats / math.log(2) / n_bytes


def perplexity(nats_per_token: float) -> float:
    """The mean loss, exponentiated; infinite where that leaves the range of a float."""
    return math.exp(nats_per_token) if nats_per_token < math.log(1.7e308) else math.inf

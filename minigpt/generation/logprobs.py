"""How probable a model finds a text, token by token."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from minigpt.generation.sampling import widened
from minigpt.generation.windows import window_start
from minigpt.model.gpt import GPT


@torch.inference_mode()
def token_logprobs(model: GPT, ids: Sequence[int], stride: int) -> list[float]:
    """The log-probability of every token but the first, given those before it, in nats.

    Past the context a token is given what generation would have read at its place: the window that
    moves by `stride` tokens.
    """
    block_size = model.config.block_size
    tokens = torch.tensor(ids, dtype=torch.int64, device=model.device)
    scores: list[float] = []
    while len(scores) + 1 < len(ids):
        first = len(scores) + 1  # the first token without a score
        start = window_start(first, block_size, stride)
        end = min(start + block_size, len(ids) - 1)  # the last one that this window gives a score
        logits = model(tokens[None, start:end])[0, first - 1 - start :]  # (end + 1 - first, V)
        losses = F.cross_entropy(widened(logits), tokens[first : end + 1], reduction="none")
        scores += (-losses).tolist()
    return scores

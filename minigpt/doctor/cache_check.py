"""Reading a row in pieces through the cache, as generation does, against reading it at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minigpt.doctor.finding import EXACT, Finding, Subject, difference, judged, skipped
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep


@torch.no_grad()
def look_at_cache(subject: Subject) -> Finding:
    """Two rows, one padded on the left: a piece of half, one of a few, then single tokens."""
    rows = subject.tokens()[:, : max(1, subject.model.config.block_size - 1)]
    T = rows.size(1)
    if T < 2:
        return skipped("the context is too short to read a row in pieces")
    model = subject.exact
    found = difference(*_both_ways(model, rows, 0, _pieces(T)))
    what = "largest difference to the full forward"
    if not found <= EXACT:
        return judged(what, found, EXACT, lambda: _cause(model, rows))
    padded = difference(*_both_ways(model, rows, (T - 1) // 4, _pieces(T)))
    return judged(
        what, max(found, padded), EXACT,
        lambda: "only with padding: look at how `real` is taken for the cached positions",
    )  # fmt: skip


@torch.no_grad()
def look_at_step(subject: Subject) -> Finding:
    """Token after token through generation's own step, against reading the row at once."""
    rows = subject.tokens()[:, : subject.model.config.block_size]
    if rows.size(1) < 2:
        return skipped("the context is too short for a second token")
    found = difference(*_stepped(subject.exact, rows))
    return judged("largest difference to the full forward", found, EXACT)


def _stepped(model: GPT, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of all but the first token, at once and by generation's own step."""
    cache = KVCache.for_model(model, *rows.shape)
    model(rows[:, :1], cache=cache)
    step = TokenStep(model)
    read = [step(tokens, cache) for tokens in rows[:, 1:].unbind(1)]
    return model(rows)[:, 1:], torch.stack(read, dim=1)


def _pieces(T: int) -> list[int]:
    """Where the pieces of T tokens end."""
    half = T // 2
    return [half, *range(min(T, half + 3), T + 1)]


def _both_ways(
    model: GPT, rows: Tensor, padding: int, ends: Sequence[int], *, say_positions: bool = False
) -> tuple[Tensor, Tensor]:
    """The real logits at once and in pieces that end at `ends`, the second row padded."""
    T = rows.size(1)
    columns = torch.arange(T) - torch.tensor([[0], [padding]])
    positions, real = columns.clamp(min=0), columns >= 0
    masked = padding > 0
    cache = KVCache.for_model(model, len(rows), T)
    read = [
        model(
            rows[:, start:end],
            positions=positions[:, start:end] if masked or say_positions else None,
            real=real[:, :end] if masked else None,
            cache=cache,
        )
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    whole = model(rows, positions=positions, real=real if masked else None)
    return whole[real], torch.cat(read, dim=1)[real]


def _cause(model: GPT, rows: Tensor) -> str:
    cache = KVCache.for_model(model, len(rows), rows.size(1))
    model(rows[:, :1], cache=cache)
    if cache.length != 1:
        return f"the cache is not advanced as it should be: after one token it holds {cache.length}"
    weights: list[Tensor] = []
    model(rows[:, 1:2], cache=cache, attention=weights)
    if not (weights[0] > 0).all():
        return (
            "a new token does not read all that is cached: the mask takes it for the first of the"
            " positions, not for the last (minigpt/model/attention.py)"
        )
    T = rows.size(1)
    if difference(*_both_ways(model, rows, 0, _pieces(T), say_positions=True)) <= EXACT:
        return "the positions of what follows the cached ones are off"
    if difference(*_both_ways(model, rows, 0, range(1, T + 1))) <= EXACT:
        return (
            "single tokens are right, several at once are not: the mask takes them for the first of"
            " the positions, not for the last (minigpt/model/attention.py)"
        )
    return ""

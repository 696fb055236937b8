"""Autoregressive decoding of several prompts side by side, through one key/value cache.

A step is: read what is new (`windows.py`), let the controls change the logits (`controls.py`), draw
a token (`sampling.py`), see which rows have ended. Rows know nothing of each other; each has its
own positions, random numbers, window and end. Shapes: B rows, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from minigpt.generation.continuation import NO_TOKEN, Continuation
from minigpt.generation.controls import Control, Ends, controls_in_use
from minigpt.generation.sampling import Sampling, Uniforms, sample_token, widened
from minigpt.generation.windows import Windows, check_finite
from minigpt.model.gpt import GPT

#: Steps between looks at whether every row has ended: looking waits for a device that is not a CPU.
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 16, "mps": 16}


def ignore_notice(_: str) -> None:
    """For callers who do not show notices."""


def ignore_count(_: int) -> None:
    """For callers who do not show progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What holds for every row of a generation.

    `end_id` ends a row (-1, or another id that is no token: rows do not end), and so do the tokens
    `stop_ids` and the texts `stop`; none of them is part of its text, and none comes before
    `min_new_tokens` tokens. `vocab_size` is the tokenizer's, and no id at or above it is sampled;
    `token_bytes` are its tokens', without which a row has no text and there can be no texts in
    `stop` and `sampling`. `context_stride` None is a quarter of the context; without `use_cache`
    every step is a full forward of the window; with `compile_step` a step is compiled, which takes
    a while and pays where kernels are slow to launch; with `logprobs` the model's log-probability
    of each token is kept.
    """

    end_id: int
    vocab_size: int
    token_bytes: Sequence[bytes] = field(default=(), compare=False, repr=False)
    sampling: Sampling = field(default_factory=Sampling)
    min_new_tokens: int = 0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    context_stride: int | None = None
    use_cache: bool = True
    compile_step: bool = False
    logprobs: bool = False


class Row(NamedTuple):
    """A prompt's tokens, and what its random numbers depend on."""

    ids: Sequence[int]
    seed: int
    sample: int = 0


class Step(NamedTuple):
    """The next token of every row, (B,) int64, and its log-probability, (B,), if that is kept."""

    ids: Tensor
    logprobs: Tensor | None


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    seed: int,
    num_samples: int = 1,
    batch_size: int = 32,
    say: Callable[[str], None] = ignore_notice,
) -> list[Continuation]:
    """Continue every prompt `num_samples` times: a prompt's samples together, in the order given.

    `say` gets the notices, each once.
    """
    rows = [(Row(ids, seed, i), decoding) for ids in prompts for i in range(num_samples)]
    return continue_rows(model, rows, batch_size=batch_size, say=cache(say))


def continue_rows(
    model: GPT,
    rows: Sequence[tuple[Row, Decoding]],
    *,
    batch_size: int,
    say: Callable[[str], None] = ignore_notice,
    done: Callable[[int], object] = ignore_count,
) -> list[Continuation]:
    """Continue every row, at most `batch_size` of them side by side; in the order given.

    Rows of one `Decoding` and of like length run together; this changes no text. `say` gets the
    notices, `done` how many rows were finished after each batch.
    """
    alike: dict[Decoding, list[int]] = {}
    for i, (_, decoding) in enumerate(rows):
        alike.setdefault(decoding, []).append(i)
    results: dict[int, Continuation] = {}
    for decoding, members in alike.items():
        by_length = sorted(members, key=lambda i: len(rows[i][0].ids))
        for first in range(0, len(by_length), batch_size):
            batch = by_length[first : first + batch_size]
            written = _continue_batch(model, [rows[i][0] for i in batch], decoding, say)
            results |= zip(batch, written, strict=True)
            done(len(batch))
    return [results[i] for i in range(len(rows))]


def _continue_batch(
    model: GPT, rows: Sequence[Row], decoding: Decoding, say: Callable[[str], None]
) -> list[Continuation]:
    began = time.perf_counter()
    steps = list(decode(model, rows, decoding, say))
    columns = [_by_row([step.ids for step in steps]), _by_row([step.logprobs for step in steps])]
    seconds = time.perf_counter() - began
    results: list[Continuation] = []
    for row in range(len(rows)):
        result = Continuation(decoding)
        result.seconds = seconds
        for step in range(len(steps)):
            if result.reason:
                break
            result.push(*(column[row][step] for column in columns if column))
        results.append(result)
    return results


def _by_row(columns: Sequence[Tensor | None]) -> list[list[Any]]:
    """What each row has in the columns (B,), on the host; [] if there are none."""
    present = [column for column in columns if column is not None]
    if not present:
        return []
    return cast("list[list[Any]]", torch.stack(present, dim=1).tolist())


def stream(
    model: GPT,
    row: Row,
    decoding: Decoding,
    continuation: Continuation,
    say: Callable[[str], None] = ignore_notice,
) -> Iterator[str]:
    """Fill `continuation`, as `continue_rows` does, token by token; the text that each adds."""
    if continuation.reason:
        return
    for ids, logprobs in decode(model, [row], decoding, cache(say)):
        yield continuation.push(int(ids), None if logprobs is None else float(logprobs))
        if continuation.reason:
            return


@torch.inference_mode()
def decode(
    model: GPT,
    rows: Sequence[Row],
    decoding: Decoding,
    say: Callable[[str], None] = ignore_notice,
) -> Iterator[Step]:
    """The next token of every row, on the model's device, a step at a time.

    It stops after `max_new_tokens`, or when every row has ended; what a row gives after its end
    means nothing. `say` gets a notice each time windows move. Whether all have ended is looked at
    every `STEPS_BETWEEN_LOOKS` steps.
    """
    if model.training:
        raise ValueError("the model is in training mode: its dropout would change the text")
    prompts = [row.ids for row in rows]
    if not all(prompts):
        raise ValueError("a prompt without tokens: nothing to go on from")
    device = model.device
    windows = Windows(model, prompts, decoding, say)
    controls = controls_in_use(decoding, prompts, device)
    ends = Ends(decoding, len(rows), device)
    greedy = decoding.sampling.temperature == 0
    uniforms = None if greedy else Uniforms([(row.seed, row.sample) for row in rows], device)
    told = (*controls, ends)  # what takes note of each token
    look_every = STEPS_BETWEEN_LOOKS[device.type]
    for step in range(1, decoding.max_new_tokens + 1):
        logits = windows.next_logits(ends.ended)
        adjusted = adjust(logits, controls)
        if step <= decoding.min_new_tokens:
            adjusted = ends.forbid(adjusted)
        ids = sample_token(adjusted, decoding.sampling, uniforms and uniforms.next())
        windows.append(ids)
        if adjusted is not logits:  # only then can everything be banned
            ids = ids.masked_fill(adjusted.amax(-1) == -torch.inf, NO_TOKEN)
        for each in told:
            each.append(ids)
        yield Step(ids, logprobs_of(logits, ids) if decoding.logprobs else None)
        if step % look_every == 0:
            if logits.dtype == torch.float16:  # the others have the range of float32
                check_finite(logits)
            if ends.ended.all():
                return


def adjust(logits: Tensor, controls: Sequence[Control]) -> Tensor:
    """The logits (B, V) as the controls leave them; as they are where there are none."""
    if controls:
        logits = widened(logits)
    for control in controls:
        logits = control.adjust(logits)
    return logits


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """The log-probability, (B,), in nats, of the tokens `ids` (B,) by the model's logits (B, V)."""
    return widened(logits).log_softmax(-1).gather(-1, ids.clamp(min=0)[:, None])[:, 0]

"""Autoregressive decoding of several prompts side by side, through one key/value cache.

A batch is padded on the left, so that every row's newest token is in the last column: one prefill,
then a token a step. Rows know nothing of each other; each has its own positions, random numbers,
window and end.

Past the context (`block_size` tokens) a row goes on with a part of its tokens: see `window_start`.
Shapes: B rows, W columns of the widest window, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import cast

import torch
from torch import Tensor

from minigpt.errors import InputError
from minigpt.generation.sampling import Sampling, Uniforms, sample_token
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache

#: Steps between looks at whether every row has ended, where looking waits for the device.
STEPS_BETWEEN_LOOKS = 16


def ignore_notice(_: str) -> None:
    """For callers who do not show notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """What holds for every row of a generation.

    `end_id` ends a row and is not part of its text (-1, or another id that is no token: rows do
    not end); `vocab_size` is the tokenizer's, and no id at or above it is sampled;
    `context_stride` None is a quarter of the context; without `use_cache` every step is a full
    forward of the window.
    """

    end_id: int
    vocab_size: int
    max_new_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    context_stride: int | None = None
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class Continuation:
    """What was generated after a prompt, without the prompt and the end token.

    `reason` is "end" if the model ended the document and "length" if `max_new_tokens` did;
    `seconds` is how long its batch took.
    """

    ids: list[int]
    reason: str
    seconds: float


def stride_of(context_stride: int | None, block_size: int) -> int:
    """How many tokens a window drops at a time; `InputError` if it would drop them all."""
    if context_stride is not None and context_stride > block_size:
        raise InputError(
            f"context_stride={context_stride}: must be at most the model's context,"
            f" {block_size} tokens"
        )
    return context_stride or max(1, block_size // 4)


def window_start(length: int, block_size: int, stride: int) -> int:
    """The first token that a row of `length` tokens still reads.

    0 within the context, then the least multiple of `stride` that leaves at most `block_size`
    tokens: a function of the row's own length only.
    """
    return max(0, -(-(length - block_size) // stride) * stride)


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

    Prompts of like length run side by side, at most `batch_size` rows at a time; this changes no
    text. `say` gets the notices, each once.
    """
    say = cache(say)  # the same notice comes once
    requests = [(prompt, number) for prompt in prompts for number in range(num_samples)]
    by_length = sorted(range(len(requests)), key=lambda i: len(requests[i][0]))
    results: dict[int, Continuation] = {}
    for first in range(0, len(requests), batch_size):
        batch = by_length[first : first + batch_size]
        rows = [requests[i][0] for i in batch]
        uniforms = Uniforms(seed, [requests[i][1] for i in batch], model.device)
        began = time.perf_counter()
        steps = list(decode(model, rows, decoding, uniforms, say))
        columns: list[list[int]] = [[]] * len(rows)
        if steps:
            columns = cast("list[list[int]]", torch.stack(steps, dim=1).tolist())
        seconds = time.perf_counter() - began
        for i, ids in zip(batch, columns, strict=True):
            results[i] = _until_end(ids, decoding.end_id, seconds)
    return [results[i] for i in range(len(requests))]


def _until_end(ids: list[int], end_id: int, seconds: float) -> Continuation:
    if end_id in ids:
        return Continuation(ids[: ids.index(end_id)], "end", seconds)
    return Continuation(ids, "length", seconds)


def stream(
    model: GPT,
    prompt: Sequence[int],
    decoding: Decoding,
    *,
    seed: int,
    sample: int = 0,
    say: Callable[[str], None] = ignore_notice,
) -> Iterator[int]:
    """The tokens that `generate` gives for this sample of one prompt, each as soon as it is there.

    The end token is not among them.
    """
    say = cache(say)  # the same notice comes once
    for ids in decode(model, [prompt], decoding, Uniforms(seed, [sample], model.device), say):
        token = int(ids)
        if token == decoding.end_id:
            return
        yield token


@torch.inference_mode()
def decode(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    uniforms: Uniforms,
    say: Callable[[str], None] = ignore_notice,
) -> Iterator[Tensor]:
    """The next token of every row, (B,) int64 on the model's device, a step at a time.

    It stops after `max_new_tokens`, or when every row has given its end token; what a row gives
    after that means nothing. `say` gets a notice each time windows move. The rows are looked at
    each step on a CPU, and elsewhere every `STEPS_BETWEEN_LOOKS` steps, so that steps do not wait
    for the device.
    """
    if model.training:
        raise ValueError("the model is in training mode: its dropout would change the text")
    if not all(prompts):
        raise ValueError("a prompt without tokens: nothing to go on from")
    rows = Rows(model, prompts, decoding, say)
    look_every = 1 if rows.device.type == "cpu" else STEPS_BETWEEN_LOOKS
    greedy = decoding.sampling.temperature == 0
    for step in range(1, decoding.max_new_tokens + 1):
        logits = rows.next_logits()
        ids = sample_token(logits, decoding.sampling, None if greedy else uniforms.next())
        rows.append(ids)
        yield ids
        if step % look_every == 0 and rows.ended.all():
            return


class Rows:
    """The tokens of a batch and what the model has read of them.

    A row's window sits at the right of the columns. While every window only grows, a step reads
    one more column through the cache; once the widest has filled the context, all windows are
    read anew, because a window that moved has other positions and cached keys hold positions.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        say: Callable[[str], None],
    ) -> None:
        self.device = model.device
        self.ended = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        self._model = model
        self._decoding = decoding
        self._say = say
        self._block_size = model.config.block_size
        self._stride = stride_of(decoding.context_stride, self._block_size)
        self._lengths = [len(prompt) for prompt in prompts]  # grows by what `_new` held
        self._recent = self._columns(prompts)  # (B, <= block_size), the last tokens of each row
        self._new: list[Tensor] = []  # columns (B,) that come after them
        self._cache: KVCache | None = None
        self._real: Tensor | None = None  # (B, block_size), None where nothing is padded
        self._positions: Tensor | None = None  # (B, block_size), likewise
        self._capacity = min(self._block_size, self._recent.shape[1] + decoding.max_new_tokens - 1)

    def _columns(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """The last tokens of each prompt, at most a context of them, padded on the left."""
        rows = [list(prompt[-self._block_size :]) for prompt in prompts]
        width = max(map(len, rows))
        table = [[0] * (width - len(row)) + row for row in rows]  # any token will do: it is masked
        return torch.tensor(table, dtype=torch.int64, device=self.device)

    def append(self, ids: Tensor) -> None:
        """Add a token, (B,), to every row."""
        self._new.append(ids)
        self.ended |= ids == self._decoding.end_id

    def next_logits(self) -> Tensor:
        """Logits of every row's next token, (B, V of the tokenizer)."""
        cache = self._cache
        if cache is None or cache.length == self._block_size:
            logits = self._read_windows()
        else:
            logits = self._model(
                self._new[-1][:, None],
                **self._columns_read(cache.length, cache.length + 1),
                cache=cache,
                last_only=True,
            )
        return logits[:, -1, : self._decoding.vocab_size]

    def _read_windows(self) -> Tensor:
        """Read every row's window from its start; logits (B, 1, V)."""
        self._lengths = [length + len(self._new) for length in self._lengths]
        windows = self._windows()
        width = max(windows)
        new = [column[:, None] for column in self._new]
        self._recent = torch.cat([self._recent, *new], dim=1)[:, -self._block_size :]
        self._new = []
        self._pad([width - window for window in windows])
        self._cache = None
        if self._decoding.use_cache:
            self._cache = KVCache.for_model(self._model, len(windows), self._capacity)
        return self._model(
            self._recent[:, -width:],
            **self._columns_read(0, width),
            cache=self._cache,
            last_only=True,
        )

    def _windows(self) -> list[int]:
        """How many of its last tokens each row reads; 1 for a row that has ended."""
        starts = [window_start(n, self._block_size, self._stride) for n in self._lengths]
        ended = cast("list[bool]", self.ended.tolist())
        past = any(start > 0 and not done for start, done in zip(starts, ended, strict=True))
        if past:
            least = self._block_size + 1 - self._stride
            window = f"{least} to {self._block_size}" if least < self._block_size else f"{least}"
            self._say(
                f"past the context of {self._block_size} tokens: the model goes on from the last"
                f" {window} of them"
            )
        rows = zip(self._lengths, starts, ended, strict=True)
        return [1 if done else length - start for length, start, done in rows]

    def _pad(self, padding: list[int]) -> None:
        """Set positions and key validity for rows padded by so many columns on the left."""
        self._positions = self._real = None
        if any(padding):
            before = torch.tensor(padding, device=self.device)[:, None]
            columns = torch.arange(self._block_size, device=self.device) - before
            self._positions = columns.clamp(min=0)
            self._real = columns >= 0

    def _columns_read(self, first: int, end: int) -> dict[str, Tensor | None]:
        """The model's arguments about columns `first` to `end`, the last ones so far."""
        if self._positions is None or self._real is None:
            return {}
        return {"positions": self._positions[:, first:end], "real": self._real[:, :end]}

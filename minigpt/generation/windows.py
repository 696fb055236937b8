"""What the rows of a batch have the model read: their tokens, through a cache, in moving windows.

One prefill, then a token a step. Each row has its own number of cached positions, so a batch is
never padded in front, and what a row reads depends on that row alone. Past the context
(`block_size` tokens) a row continues with a part of its tokens: see `window_start`.
Shapes: B rows, W columns of the widest window, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from minigpt.errors import InputError
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

if TYPE_CHECKING:
    from minigpt.generation.decode import Decoding


#: Rows whose windows are read anew at a time: they are in memory twice.
ROWS_READ_ANEW = 8


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


def check_finite(logits: Tensor) -> None:
    """Raise `InputError` where the model's arithmetic has left the range of its numbers."""
    if not logits.isfinite().all():
        kind = str(logits.dtype).removeprefix("torch.")
        raise InputError(f"dtype={kind}: the model's numbers leave its range; use another")


class Windows:
    """The tokens of a batch and what the model has read of them.

    A window grows until it has filled the context. Then it moves, and is read anew: at other
    positions its tokens have other keys. The other rows' windows stay as they are.
    """

    def __init__(
        self,
        model: GPT,
        prompts: Sequence[Sequence[int]],
        decoding: "Decoding",
        say: Callable[[str], None],
    ) -> None:
        self._device = model.device
        self._model = model
        self._decoding = decoding
        self._say = say
        self._block_size = model.config.block_size
        self._stride = stride_of(decoding.context_stride, self._block_size)
        self._step = TokenStep(model, len(prompts), compiled=decoding.compile_step)
        self._lengths = [len(prompt) for prompt in prompts]  # without what `_new` holds
        self._recent = self._columns([prompt[-self._block_size :] for prompt in prompts])
        self._new: list[Tensor] = []  # columns (B,) that come after `_recent`
        self._cache: KVCache | None = None
        self._held = [0] * len(prompts)  # cached positions of each row when they were last counted
        self._held_now: Tensor | None = None  # (B,) int64 now; None: of all rows as many
        self._room = 0  # steps for which no window has to move

    def _columns(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows as a table whose last column has the last token of each; any token in front."""
        width = max(map(len, rows))
        table = [[0] * (width - len(row)) + list(row) for row in rows]
        return torch.tensor(table, dtype=torch.int64, device=self._device)

    def append(self, ids: Tensor) -> None:
        """Add a token, (B,), to every row."""
        self._new.append(ids)

    def next_logits(self, ended: Tensor) -> Tensor:
        """Logits of every row's next token, (B, V of the tokenizer).

        What an `ended` row, (B,) bool, gets means nothing: nothing has to be read for it.
        """
        if self._cache is None:
            logits = self._read_windows(ended)
        else:
            newest = self._new[-1]
            if self._room == 0:
                self._move(ended)
            self._room -= 1
            logits = self._step(newest, self._cache, self._held_now)
            if self._held_now is not None:
                self._held_now += 1
        return logits[:, : self._decoding.vocab_size]

    def _read_windows(self, ended: Tensor) -> Tensor:
        """Read every row's window from its start; logits (B, V).

        The windows are padded at their end, where nothing that is real reads it.
        """
        self._gather_new()
        widths = [n - window_start(n, self._block_size, self._stride) for n in self._lengths]
        over = cast("list[bool]", ended.tolist())
        if any(n > self._block_size for n, o in zip(self._lengths, over, strict=True) if not o):
            self._say_what_is_read()
        width = max(widths)
        last = torch.tensor(widths, device=self._device)[:, None] - 1  # (B, 1)
        columns = torch.arange(width, device=self._device).minimum(last)
        from_the_end = self._recent.size(1) - 1 - last  # where each window begins in `_recent`
        tokens = self._recent.gather(1, from_the_end + columns)
        if self._decoding.use_cache:
            capacity = min(self._block_size, width + self._decoding.max_new_tokens - 1)
            self._cache = KVCache.for_model(self._model, len(widths), capacity)
        hidden = self._model.hidden(tokens, cache=self._cache)  # (B, W, C)
        if self._cache is not None:
            self._count(widths)
        logits = self._model.logits(hidden.take_along_dim(last[:, :, None], dim=1)[:, 0])
        check_finite(logits)
        return logits

    def _move(self, ended: Tensor) -> None:
        """Move the windows that are full, and read them anew as far as the newest token."""
        assert self._cache is not None
        grown = self._cache.length - max(self._held)
        self._gather_new()
        full = [row for row, n in enumerate(self._held) if n + grown == self._block_size]
        over = cast("list[bool]", ended.tolist())
        moved = [row for row in full if not over[row]]
        width = self._block_size - self._stride
        if moved:
            self._say_what_is_read()
        for first in range(0, len(moved) if width else 0, ROWS_READ_ANEW):
            rows = moved[first : first + ROWS_READ_ANEW]
            again = KVCache.for_model(self._model, len(rows), width)
            self._model.hidden(self._recent[rows, -width - 1 : -1], cache=again)
            self._cache.keys[:, rows, :, :width] = again.keys
            self._cache.values[:, rows, :, :width] = again.values
        held = [n + grown for n in self._held]
        for row in full:
            held[row] = 0 if over[row] else width
        self._count(held)

    def _count(self, held: list[int]) -> None:
        """Note how many positions of each row are cached."""
        assert self._cache is not None
        self._held = held
        self._held_now = None
        if len(set(held)) > 1:
            self._held_now = torch.tensor(held, device=self._device)
        self._cache.length = max(held)
        self._room = self._block_size - max(held)

    def _gather_new(self) -> None:
        """Put the new columns to the others, of which a context is kept."""
        self._lengths = [length + len(self._new) for length in self._lengths]
        new = [column[:, None] for column in self._new]
        self._recent = torch.cat([self._recent, *new], dim=1)[:, -self._block_size :]
        self._new = []

    def _say_what_is_read(self) -> None:
        least = self._block_size + 1 - self._stride
        window = f"{least} to {self._block_size}" if least < self._block_size else f"{least}"
        self._say(
            f"past the context of {self._block_size} tokens: the model goes on from the last"
            f" {window} of them"
        )

"""What the rows of a batch have the model read: their tokens, through a cache, in moving windows.

A batch is padded on the left, so that every row's newest token is in the last column: one prefill,
then a token a step. Past the context (`block_size` tokens) a row goes on with a part of its tokens:
see `window_start`. Shapes: B rows, W columns of the widest window, V vocabulary.
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


class Windows:
    """The tokens of a batch and what the model has read of them.

    A row's window sits at the right of the columns. While every window only grows, a step reads
    one more column through the cache; once the widest has filled the context, all windows are
    read anew, because a window that moved has other positions and cached keys hold positions.
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
        step = TokenStep(model)
        self._step = torch.compile(step, dynamic=True) if decoding.compile_step else step
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
        return torch.tensor(table, dtype=torch.int64, device=self._device)

    def append(self, ids: Tensor) -> None:
        """Add a token, (B,), to every row."""
        self._new.append(ids)

    def next_logits(self, ended: Tensor) -> Tensor:
        """Logits of every row's next token, (B, V of the tokenizer).

        What an `ended` row, (B,) bool, gets means nothing: nothing has to be read for it.
        """
        cache = self._cache
        if cache is None or cache.length == self._block_size:
            return self._read_windows(ended)[:, : self._decoding.vocab_size]
        positions = real = None
        if self._positions is not None and self._real is not None:
            positions = self._positions[:, cache.length]
            real = self._real[:, : cache.length + 1]
        logits = self._step(self._new[-1], cache, positions=positions, real=real)
        return logits[:, : self._decoding.vocab_size]

    def _read_windows(self, ended: Tensor) -> Tensor:
        """Read every row's window from its start; logits (B, V)."""
        self._lengths = [length + len(self._new) for length in self._lengths]
        windows = self._widths(cast("list[bool]", ended.tolist()))
        width = max(windows)
        new = [column[:, None] for column in self._new]
        self._recent = torch.cat([self._recent, *new], dim=1)[:, -self._block_size :]
        self._new = []
        self._pad([width - window for window in windows])
        self._cache = None
        if self._decoding.use_cache:
            self._cache = KVCache.for_model(self._model, len(windows), self._capacity)
        positions = real = None
        if self._positions is not None and self._real is not None:
            positions, real = self._positions[:, :width], self._real[:, :width]
        return self._model(
            self._recent[:, -width:],
            positions=positions,
            real=real,
            cache=self._cache,
            last_only=True,
        )[:, -1]

    def _widths(self, ended: list[bool]) -> list[int]:
        """How many of its last tokens each row reads; 1 for a row that has ended."""
        starts = [window_start(n, self._block_size, self._stride) for n in self._lengths]
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
            before = torch.tensor(padding, device=self._device)[:, None]
            columns = torch.arange(self._block_size, device=self._device) - before
            self._positions = columns.clamp(min=0)
            self._real = columns >= 0

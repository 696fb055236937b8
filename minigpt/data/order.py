"""The order in which rows are trained on: endless, epoch after epoch, each row once in every epoch.

What stands at a place is a pure function of the seed, and so is what a step trains on.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from minigpt.errors import InputError

Rows: TypeAlias = npt.NDArray[np.int64]

#: Rows that are read together: how many, and how wide.
Part: TypeAlias = tuple[int, int]

#: Positions of padding that a part of a batch may have: about what one more part costs, in the time
#: of positions (bench/NOTES.md). For a GPU it is a guess: its kernels want many positions at once.
_PART_PADDING, _PART_PADDING_ON_GPU = 64, 1024

#: Keeps the draw of the data order apart from other draws by the same seed.
_ORDER_DRAW = 0xDA7A


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, n_rows: int) -> Rows:
    """One epoch's order. The last two are kept, as a step may straddle epochs."""
    return np.random.default_rng([_ORDER_DRAW, seed, epoch]).permutation(n_rows)


def row_indices(
    seed: int, first: int, count: int, epoch_sizes: Sequence[int]
) -> Iterator[tuple[int, Rows]]:
    """Places first … first + count - 1 of the endless training order: (epoch, row numbers) each.

    Epoch e has `epoch_sizes[e % len(epoch_sizes)]` rows, in a permutation of its own. So a place
    is a pure function of the seed, and knows nothing of batches, steps or processes.
    """
    if min(epoch_sizes) < 1:
        raise ValueError("there are no rows to order")
    cycle, place = divmod(first, sum(epoch_sizes))
    epoch = cycle * len(epoch_sizes)
    while count:
        n_rows = epoch_sizes[epoch % len(epoch_sizes)]
        if place < n_rows:
            part = _permutation(seed, epoch, n_rows)[place : place + count].copy()
            yield epoch, part
            count -= len(part)
        epoch, place = epoch + 1, max(0, place - n_rows)


def rows_per_micro_batch(batch_size: int, accumulate: int, world_size: int) -> int:
    """How many of a step's rows a process reads at once; `InputError` if they do not divide."""
    parts = accumulate * world_size
    if batch_size % parts:
        raise InputError(
            f"data.batch_size={batch_size} rows a step cannot be divided by"
            f" trainer.accumulate_grad_batches={accumulate} times {world_size} devices;"
            f" a multiple of {parts} is needed"
        )
    return batch_size // parts


def dealt(rows: Rows, micro_batches: int, world_size: int) -> Rows:
    """A step's rows (n, 2) by micro-step and rank: (micro_batches, world_size, rows each, 2)."""
    return rows.reshape(micro_batches, world_size, -1, 2)


def dealt_by_length(rows: Rows, micro_batches: int, world_size: int) -> Rows:
    """The same, so that the rows of a micro-step are about equally long, the shortest first.

    The ranks of a micro-step get them in turn, so that none has to wait for another's longer ones.
    """
    return by_length(rows).reshape(micro_batches, -1, world_size, 2).swapaxes(1, 2)


def by_length(rows: Rows) -> Rows:
    """Rows (n, 2) with the shortest first; those of equal length stay in order."""
    return rows[np.argsort(rows[:, 1], kind="stable")]


def part_padding(device: str) -> int:
    """Positions of padding that a part of a batch may have on a kind of device."""
    return _PART_PADDING if device == "cpu" else _PART_PADDING_ON_GPU


def alike(widths: Rows, padding: int) -> list[Part]:
    """Rows of rising widths (n,) in parts of like ones, in order.

    A part takes in shorter rows for as long as their padding together is at most `padding`.
    """
    parts: list[Part] = []
    end = len(widths)
    while end:
        width = int(widths[end - 1])
        padded = np.cumsum(width - widths[:end][::-1])  # from the widest row down
        count = int(np.searchsorted(padded, padding, side="right"))
        parts.append((count, width))
        end -= count
    return parts[::-1]

"""The fixed batch of the smoke test, and the loss that no model can go below on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minigpt.data.batches import Rows, spans
from minigpt.data.token_store import TokenStore

#: The largest floor, in nats a target, that the smoke test's rows may have.
LARGEST_FLOOR = 0.001

#: Most rows of the smoke test.
MOST_ROWS = 8


@dataclass(frozen=True, slots=True)
class OverfitRows:
    """Rows (n, 2) as `batches.spans` gives them, their floor in nats a target.

    `whole` is False where no document fits the context and the row is the start of one.
    """

    rows: Rows
    floor: float
    whole: bool


def floor_of(rows: Sequence[Sequence[int]]) -> float:
    """The least mean loss, in nats a target, that any model can have on rows of tokens.

    Rows that are alike up to a place leave the next token open there: the loss is at least the
    entropy of what follows among them. The first token of a row is read, not predicted.
    """
    total = 0.0
    groups = _alike(rows, 0)
    place = 0
    while groups:
        place += 1
        apart: list[list[Sequence[int]]] = []
        for group in groups:
            following = _alike(group, place)
            size = sum(map(len, following))
            total += sum(len(same) * math.log(size / len(same)) for same in following)
            apart += [same for same in following if len(same) > 1]
        groups = apart
    return total / sum(len(row) - 1 for row in rows)


def choose_overfit_rows(store: TokenStore, block_size: int) -> OverfitRows:
    """Rows for the smoke test: the longest different documents that fit the context whole.

    n different rows that open alike have a floor of n·ln n nats together, wherever they part, so
    few and long ones are wanted: as many as keep the floor below `LARGEST_FLOOR`, at least one.
    """
    lengths = np.diff(store.starts)
    fitting = np.flatnonzero(lengths <= block_size)
    if not len(fitting):
        return OverfitRows(spans(store, block_size, "padded")[:1], 0.0, whole=False)
    longest = fitting[np.argsort(-lengths[fitting], kind="stable")]
    chosen: dict[bytes, tuple[int, int]] = {}
    for document in longest:
        start, length = int(store.starts[document]), int(lengths[document])
        chosen.setdefault(store.tokens[start : start + length + 1].tobytes(), (start, length))
        if len(chosen) == MOST_ROWS:
            break
    rows = np.array(list(chosen.values()), dtype=np.int64)
    tokens = [store.tokens[start : start + length + 1].tolist() for start, length in rows]
    count = next(n for n in range(len(rows), 0, -1) if floor_of(tokens[:n]) < LARGEST_FLOOR)
    return OverfitRows(rows[:count], floor_of(tokens[:count]), whole=True)


def _alike(rows: Sequence[Sequence[int]], place: int) -> list[list[Sequence[int]]]:
    """The rows that go as far as `place`, grouped by their token there."""
    groups: dict[int, list[Sequence[int]]] = {}
    for row in rows:
        if len(row) > place:
            groups.setdefault(row[place], []).append(row)
    return list(groups.values())

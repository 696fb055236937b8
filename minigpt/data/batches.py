"""The stored stream to rows of tensors, in training's order or in its own.

A row is a span of the stream: where it starts and how many targets it has. A row of n targets
reads tokens start … start + n - 1 and predicts start + 1 … start + n. What lies beyond a row's n
in its batch is padding, known by length and never by an id.

Rows of one batch may be read in parts of about equal length, which leaves less padding.

Shapes: B rows, T positions of the longest row.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from minigpt.data.order import (
    Part,
    Rows,
    alike,
    by_length,
    dealt,
    dealt_by_length,
    row_indices,
    rows_per_micro_batch,
)
from minigpt.data.token_store import TokenStore
from minigpt.errors import InputError

#: The target of a padded position, which no loss counts.
IGNORED = -100

#: How far the packed windows of successive epochs lie before those of the first, in sixteenths of a
#: window: each halves the largest gap that is left (van der Corput's sequence).
_SHIFTS = (0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15)


@dataclass(slots=True)
class Batch:
    """One micro-batch.

    `inputs` and `targets` (B, T) int64; targets are `IGNORED` beyond a row's length. `real`
    (B, T) bool, True within a row's length; None where every row is full. With the document mask
    `documents` (B, T) int64 numbers the documents within each row and `positions` (B, T) int64
    restarts at each of them; both are None without it. `n_targets` counts the targets of this
    micro-batch, `step_targets` those of its whole optimizer step over all micro-batches and ranks,
    and `step_padding` the positions of that step that are read and have none. `parts` are those
    that it is read in, as (number of rows, width); without any it is read whole.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor | None
    documents: Tensor | None
    positions: Tensor | None
    n_targets: int
    step_targets: int
    step_padding: int = 0
    parts: Sequence[Part] = ()

    @property
    def real_share(self) -> float:
        """The share of real positions among those that the whole step reads."""
        return self.step_targets / (self.step_targets + self.step_padding)

    @property
    def real_positions(self) -> Tensor:
        """`real`, also where every row is full: (B, T) bool."""
        return torch.ones_like(self.inputs, dtype=torch.bool) if self.real is None else self.real

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> "Batch":
        """The same batch with its tensors on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, from which copies to a GPU can overlap."""
        return self._each(Tensor.pin_memory)

    def rows(self, first: int, end: int, width: int | None = None) -> "Batch":
        """Some of its rows and of their positions; the counts stay those of the whole batch."""
        return replace(self._each(lambda tensor: tensor[first:end, :width]), parts=())

    def in_parts(self) -> list["Batch"]:
        """Its `parts` as batches, each as wide as its longest row."""
        parts = self.parts or [(len(self.inputs), self.inputs.size(1))]
        ends = itertools.accumulate(count for count, _ in parts)
        return [
            self.rows(end - count, end, width)
            for (count, width), end in zip(parts, ends, strict=True)
        ]

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {
            part.name: change(value)
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), Tensor)
        }
        return replace(self, **tensors)


def spans(store: TokenStore, block_size: int, layout: str) -> Rows:
    """The rows of a stream: (n, 2) int64, start in the stream and number of targets.

    `packed`: a row every `block_size` tokens; the last may be shorter. `padded`: each document
    from its opening end token to its closing one; a longer one becomes several rows. Rows that
    follow each other share one token, so each token but the stream's first is a target once.
    """
    if layout == "packed":
        return windows(store, block_size, np.arange(n_windows(store, block_size)))
    if layout != "padded":
        raise InputError(f"data.layout={layout}: choose one of packed, padded")
    lengths = np.diff(store.starts)
    n_rows = -(-lengths // block_size)
    document = np.repeat(np.arange(len(lengths)), n_rows)
    first_row = (np.cumsum(n_rows) - n_rows)[document]
    read = (np.arange(len(document)) - first_row) * block_size
    starts = store.starts[document] + read
    return np.stack([starts, np.minimum(block_size, lengths[document] - read)], axis=1)


def n_windows(store: TokenStore, block_size: int, shift: int = 0) -> int:
    """How many rows the packed layout has, see `windows`."""
    return -(-(store.n_targets + shift) // block_size)


def windows(store: TokenStore, block_size: int, numbers: Rows, shift: int = 0) -> Rows:
    """Rows of the packed layout by number, (n,) to (n, 2) as in `spans`.

    All but the first start `shift` (below `block_size`) tokens earlier than they would, so that
    the first is shorter; the last is what is left.
    """
    starts = np.maximum(numbers * block_size - shift, 0)
    ends = np.minimum((numbers + 1) * block_size - shift, store.n_targets)
    return np.stack([starts, ends - starts], axis=1)


def n_rows(store: TokenStore, block_size: int, layout: str) -> int:
    """How many rows `spans` would give."""
    if layout == "packed":
        return n_windows(store, block_size)
    return int((-(-np.diff(store.starts) // block_size)).sum())


def n_long_documents(store: TokenStore, block_size: int) -> int:
    """How many documents the padded layout cuts into several rows."""
    return int((np.diff(store.starts) > block_size).sum())


def make_batch(
    store: TokenStore,
    rows: Rows,
    *,
    document_mask: bool = False,
    step_targets: int | None = None,
    step_padding: int | None = None,
    parts: Sequence[Part] = (),
) -> Batch:
    """The batch of rows (B, 2), padded to its longest row or part; a step of its own by default.

    Raises `ValueError` if a row has no target.
    """
    starts, lengths = rows[:, :1], rows[:, 1:]
    if not lengths.size or lengths.min() < 1:
        raise ValueError("a batch needs rows, and each of them a target")
    width = max([int(lengths.max()), *(width for _, width in parts)])
    steps = np.arange(width + 1)
    # what is read beyond a row's length is overwritten below; the clip stays inside the stream
    block = store.tokens[np.minimum(starts + steps, len(store.tokens) - 1)].astype(np.int64)
    inputs, targets = block[:, :-1].copy(), block[:, 1:].copy()
    real = None
    if lengths.min() < width:
        real = steps[:-1] < lengths
        inputs[~real] = 0
        targets[~real] = IGNORED
    documents = positions = None
    if document_mask:
        boundaries = inputs == store.end_id
        documents = np.cumsum(boundaries, axis=1)
        opened = np.maximum.accumulate(np.where(boundaries, steps[:-1], 0), axis=1)
        positions = steps[:-1] - opened
    n_targets = int(lengths.sum())
    read = _read(lengths.T, parts)
    return Batch(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        real=None if real is None else torch.from_numpy(real),
        documents=None if documents is None else torch.from_numpy(documents),
        positions=None if positions is None else torch.from_numpy(positions),
        n_targets=n_targets,
        step_targets=n_targets if step_targets is None else step_targets,
        step_padding=read - n_targets if step_padding is None else step_padding,
        parts=parts,
    )


class TrainingBatches(Dataset[Batch]):
    """This process's micro-batches by number, from 0 without end: a map-style data set.

    Optimizer step s takes `batch_size` rows of the endless order; they are dealt out over
    (micro-step, rank), so that neither changes which rows a step trains on. Padded rows are dealt
    out by length, and read in parts that have at most `part_padding` positions of padding each;
    None: a micro-batch is read whole.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        block_size: int,
        layout: str,
        batch_size: int,
        seed: int,
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        document_mask: bool = False,
        part_padding: int | None = None,
    ) -> None:
        """Fix what the batches depend on; `InputError` if the rows cannot be dealt out evenly."""
        rows_per_micro_batch(batch_size, accumulate, world_size)
        self.store = store
        self.block_size = block_size
        # a lone window gains nothing from being cut elsewhere
        parts = _SHIFTS if store.n_targets > block_size else _SHIFTS[:1]
        self._shifts = [block_size * part // len(_SHIFTS) for part in parts]
        self._epoch_sizes = [n_windows(store, block_size, shift) for shift in self._shifts]
        self._padded = None
        if layout != "packed":  # documents begin where they do
            self._padded = spans(store, block_size, layout)
            self._epoch_sizes = [len(self._padded)]
        self.batch_size = batch_size
        self.seed = seed
        self.accumulate = accumulate
        self.rank = rank
        self.world_size = world_size
        self.document_mask = document_mask
        self.part_padding = part_padding

    def step_rows(self, step: int) -> Rows:
        """The rows (batch_size, 2) of an optimizer step, over all micro-steps and ranks."""
        first = step * self.batch_size
        order = row_indices(self.seed, first, self.batch_size, self._epoch_sizes)
        return np.concatenate([self._epoch_rows(*part) for part in order])

    def _epoch_rows(self, epoch: int, numbers: Rows) -> Rows:
        if self._padded is not None:
            return self._padded[numbers]
        shift = self._shifts[epoch % len(self._shifts)]
        return windows(self.store, self.block_size, numbers, shift)

    def __getitem__(self, micro_index: int) -> Batch:
        """Micro-batch number `micro_index` of this rank."""
        step, micro_step = divmod(micro_index, self.accumulate)
        deal = dealt if self._padded is None else dealt_by_length
        rows = deal(self.step_rows(step), self.accumulate, self.world_size)
        lengths = rows[..., 1]
        parts = [self._parts(of_micro_step) for of_micro_step in lengths]
        step_targets = int(lengths.sum())
        return make_batch(
            self.store,
            rows[micro_step, self.rank],
            document_mask=self.document_mask,
            step_targets=step_targets,
            step_padding=sum(map(_read, lengths, parts)) - step_targets,
            parts=parts[micro_step],
        )

    def _parts(self, lengths: Rows) -> list[Part]:
        """The parts of a micro-step's rows (world_size, n): the same for all ranks."""
        if self._padded is None or self.part_padding is None:
            return []
        return alike(lengths.max(axis=0), self.part_padding)


def _read(lengths: Rows, parts: Sequence[Part]) -> int:
    """The positions of a micro-step's rows (world_size, n) with their padding."""
    if parts:
        return len(lengths) * sum(count * width for count, width in parts)
    return int(lengths.max(axis=1).sum()) * lengths.shape[1]


def validation_batches(
    store: TokenStore,
    *,
    block_size: int,
    layout: str,
    batch_size: int,
    document_mask: bool = False,
    rank: int = 0,
    world_size: int = 1,
    limit: int | None = None,
    part_padding: int | None = None,
) -> Iterator[Batch]:
    """The rows of a stream once, in order; `limit` counts batches over all ranks.

    Every `world_size`-th batch is this rank's. A rank may get one batch fewer than another, or
    none: which batches there are does not depend on how many processes read them. With
    `part_padding` the rows of a batch are in order of length, and read in parts as in training.
    """
    rows = spans(store, block_size, layout)
    firsts = range(0, len(rows), batch_size)[:limit]
    for first in firsts[rank::world_size]:
        chosen, parts = rows[first : first + batch_size], []
        if part_padding is not None:
            chosen = by_length(chosen)
            parts = alike(chosen[:, 1], part_padding)
        yield make_batch(store, chosen, document_mask=document_mask, parts=parts)

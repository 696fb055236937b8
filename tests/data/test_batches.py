"""Rows and batches: every token a target once, padding known by length."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.batches import (
    IGNORED,
    Batch,
    make_batch,
    n_long_documents,
    spans,
    validation_batches,
)
from minigpt.data.token_store import TokenStore
from minigpt.errors import InputError

END = 0
LAYOUTS = ("packed", "padded")
lengths_of_documents = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def make_store(lengths: list[int], *, distinct: bool = True) -> TokenStore:
    """Documents of these lengths, end tokens 0, every other token different (or random)."""
    stream, starts, fresh = [END], [0], 1
    rng = np.random.default_rng(len(lengths))
    for length in lengths:
        body = range(fresh, fresh + length) if distinct else rng.integers(1, 9, length).tolist()
        stream += [*body, END]
        fresh += length
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=np.uint16), np.array(starts, dtype=np.int64), 0)


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The real part of each row: what is read and what is predicted."""
    rows: list[tuple[list[int], list[int]]] = []
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        n = int((targets != IGNORED).sum())
        assert (targets[n:] == IGNORED).all()
        rows.append((inputs[:n].tolist(), targets[:n].tolist()))
    return rows


@given(lengths_of_documents, st.integers(1, 40), st.sampled_from(LAYOUTS))
@settings(deadline=None, max_examples=200)
def test_every_token_but_the_first_is_a_target_exactly_once(
    lengths: list[int], block_size: int, layout: str
) -> None:
    store = make_store(lengths)
    rows = spans(store, block_size, layout)
    assert rows.dtype == np.int64
    places = [start + 1 + i for start, n in rows.tolist() for i in range(n)]
    assert places == list(range(1, len(store.tokens)))
    assert rows[:, 1].min() >= 1
    assert rows[:, 1].max() <= block_size
    # all that is read lies in the stream, and neighbours within a document share one token
    assert (rows[1:, 0] == rows[:-1].sum(axis=1)).all()


@given(lengths_of_documents, st.integers(1, 40))
@settings(deadline=None, max_examples=100)
def test_padded_rows_stay_inside_a_document(lengths: list[int], block_size: int) -> None:
    store = make_store(lengths)
    rows = spans(store, block_size, "padded")
    openings = [start for start, _ in rows.tolist() if start in store.starts]
    assert openings == store.starts[:-1].tolist()
    for start, n in rows.tolist():
        assert END not in store.tokens[start + 1 : start + n]
    # a document of n tokens has n + 1 targets, its end among them
    assert n_long_documents(store, block_size) == sum(n + 1 > block_size for n in lengths)
    assert len(rows) == sum(-(-(n + 1) // block_size) for n in lengths)


def test_windows_of_a_stream() -> None:
    store = make_store([6])  # 0 1 2 3 4 5 6 0
    assert spans(store, 3, "packed").tolist() == [[0, 3], [3, 3], [6, 1]]
    batch = make_batch(store, spans(store, 3, "packed"))
    assert batch.inputs.tolist() == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
    assert batch.targets.tolist() == [[1, 2, 3], [4, 5, 6], [0, IGNORED, IGNORED]]
    assert batch.real is not None
    assert batch.real.tolist() == [[True] * 3, [True] * 3, [True, False, False]]
    assert (batch.n_targets, batch.step_targets) == (7, 7)


def test_documents_in_rows() -> None:
    store = make_store([2, 5])  # 0 1 2 0 3 4 5 6 7 0
    rows = spans(store, 4, "padded")
    assert rows.tolist() == [[0, 3], [3, 4], [7, 2]]
    batch = make_batch(store, rows)
    assert rows_of(batch) == [
        ([0, 1, 2], [1, 2, 0]),
        ([0, 3, 4, 5], [3, 4, 5, 6]),
        ([6, 7], [7, 0]),
    ]
    # no wider than its longest row
    assert make_batch(store, rows[[0, 2]]).inputs.shape == (2, 3)


@given(lengths_of_documents, st.integers(1, 40), st.sampled_from(LAYOUTS), st.booleans())
@settings(deadline=None, max_examples=100)
def test_a_batch_is_its_rows(
    lengths: list[int], block_size: int, layout: str, document_mask: bool
) -> None:
    store = make_store(lengths)
    rows = spans(store, block_size, layout)
    batch = make_batch(store, rows, document_mask=document_mask)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    for (start, n), (inputs, targets) in zip(rows.tolist(), rows_of(batch), strict=True):
        assert inputs == store.tokens[start : start + n].tolist()
        assert targets == store.tokens[start + 1 : start + n + 1].tolist()
    assert batch.n_targets == int((batch.targets != IGNORED).sum())
    if batch.real is None:
        assert (batch.targets != IGNORED).all()
    else:
        assert torch.equal(batch.real, batch.targets != IGNORED)
        assert not batch.real.all()


@given(lengths_of_documents, st.integers(1, 40))
@settings(deadline=None, max_examples=100)
def test_the_document_mask_restarts_at_every_end_token(lengths: list[int], block_size: int) -> None:
    store = make_store(lengths)
    batch = make_batch(store, spans(store, block_size, "packed"), document_mask=True)
    assert batch.documents is not None
    assert batch.positions is not None
    for row, (inputs, _) in enumerate(rows_of(batch)):
        document = position = 0
        for place, token in enumerate(inputs):
            position = 0 if token == END or place == 0 else position + 1
            document += token == END
            assert batch.documents[row, place] == document
            assert batch.positions[row, place] == position
    assert batch.positions.max() < block_size


def test_the_share_of_real_positions() -> None:
    store = make_store([3, 50, 1])  # 4, 51 and 2 targets
    batch = make_batch(store, spans(store, 64, "padded"))
    assert (batch.step_targets, batch.step_padding) == (57, 3 * 51 - 57)
    assert batch.real_share == 57 / (3 * 51)
    assert make_batch(store, spans(store, 3, "packed")).real_share == 1


def test_a_batch_in_parts() -> None:
    store = make_store([3, 50, 1])
    rows = spans(store, 64, "padded")[[2, 0, 1]]
    batch = make_batch(store, rows, document_mask=True, parts=[(2, 4), (1, 60)])
    assert batch.inputs.shape == (3, 60)
    assert (batch.step_targets, batch.step_padding) == (57, 2 + 9)
    short, long = batch.in_parts()
    assert [part.inputs.shape for part in (short, long)] == [(2, 4), (1, 60)]
    assert rows_of(short) + rows_of(long) == rows_of(make_batch(store, rows))
    for part in (short, long):
        assert part.real is not None
        assert torch.equal(part.real, part.targets != IGNORED)
        assert part.documents is not None
        assert part.documents.shape == part.inputs.shape
        assert not part.parts
    (whole,) = make_batch(store, rows).in_parts()
    assert rows_of(whole) == rows_of(batch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_validation_in_parts_reads_what_it_reads_without(layout: str) -> None:
    store = make_store([5, 1, 9, 30, 2, 2, 7])
    whole, parted = (
        list(
            validation_batches(
                store, block_size=8, layout=layout, batch_size=4, part_padding=part_padding
            )
        )
        for part_padding in (None, 2)
    )
    assert len(whole) == len(parted)
    for mine, reference in zip(parted, whole, strict=True):
        read = [row for part in mine.in_parts() for row in rows_of(part)]
        assert sorted(read) == sorted(rows_of(reference))
        assert mine.n_targets == reference.n_targets
        assert mine.step_padding <= reference.step_padding
        assert mine.step_padding <= 2 * len(mine.parts)


def test_without_a_document_mask_nothing_is_said_of_documents() -> None:
    store = make_store([3, 3])
    batch = make_batch(store, spans(store, 4, "packed"))
    assert batch.documents is None
    assert batch.positions is None
    assert batch.real is None


def test_the_end_token_is_a_target_once_a_document() -> None:
    store = make_store([3, 50, 1])
    for layout in LAYOUTS:
        batch = make_batch(store, spans(store, 8, layout))
        assert int((batch.targets == END).sum()) == 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("limit", [None, 2])
def test_validation_is_the_same_over_any_number_of_processes(
    world_size: int, limit: int | None
) -> None:
    store = make_store([5, 1, 9, 30, 2, 2, 7])

    def batches(rank: int, world_size: int) -> list[Batch]:
        return list(
            validation_batches(
                store,
                block_size=8,
                layout="padded",
                batch_size=3,
                rank=rank,
                world_size=world_size,
                limit=limit,
            )
        )

    alone = [rows for batch in batches(0, 1) for rows in rows_of(batch)]
    shared = [batches(rank, world_size) for rank in range(world_size)]
    together = [
        rows
        for turn in range(max(map(len, shared)))
        for share in shared
        if turn < len(share)
        for rows in rows_of(share[turn])
    ]
    assert together == alone
    if limit is None:
        assert sum(len(targets) for _, targets in alone) == store.n_targets
    else:
        assert len(alone) == 6


def test_a_batch_moves_whole() -> None:
    store = make_store([3, 9])
    parts = [(1, 4), (2, 5)]
    rows = spans(store, 5, "packed")
    batch = make_batch(store, rows, document_mask=True, step_targets=99, parts=parts)
    moved = batch.to("meta")
    rest: list[object] = []
    for part in dataclasses.fields(Batch):
        value = getattr(moved, part.name)
        if isinstance(value, torch.Tensor):
            assert value.is_meta
        else:
            rest.append(value)
    assert rest == [13 + 1, 99, 0, parts]


def test_an_unknown_layout_lists_the_choices() -> None:
    with pytest.raises(InputError, match="packed, padded"):
        spans(make_store([3]), 4, "packd")

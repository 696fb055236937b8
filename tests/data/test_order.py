"""The data's half of laws 5, 6, 7 and 10: which rows a step trains on.

The order is one endless sequence, a pure function of the seed and the place. Accumulation and the
number of processes divide a step's rows and change nothing else.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.batches import TrainingBatches
from minigpt.data.order import alike, by_length, dealt, dealt_by_length, row_indices
from minigpt.data.token_store import TokenStore
from minigpt.errors import InputError

SEEDS = st.integers(0, 2**32 - 1)


def make_store(n_documents: int) -> TokenStore:
    """Documents of differing lengths, each of tokens of its own."""
    rng = np.random.default_rng(n_documents)
    stream, starts = [0], [0]
    for document in range(1, n_documents + 1):
        stream += [document] * int(rng.integers(1, 7)) + [0]
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=np.uint16), np.array(starts, dtype=np.int64), 0)


def make_batches(
    n_documents: int,
    batch_size: int,
    accumulate: int = 1,
    rank: int = 0,
    world_size: int = 1,
    part_padding: int | None = None,
) -> TrainingBatches:
    return TrainingBatches(
        make_store(n_documents),
        block_size=8,
        layout="padded",
        batch_size=batch_size,
        seed=7,
        accumulate=accumulate,
        rank=rank,
        world_size=world_size,
        part_padding=part_padding,
    )


def rows_of(batches: TrainingBatches, micro_index: int) -> list[list[int]]:
    """The targets of each row, part by part as they are read."""
    return [
        row[row >= 0].tolist() for part in batches[micro_index].in_parts() for row in part.targets
    ]


def order(seed: int, first: int, count: int, *epoch_sizes: int) -> list[tuple[int, int]]:
    """(epoch, row) of each place."""
    parts = row_indices(seed, first, count, epoch_sizes)
    return [(epoch, row) for epoch, rows in parts for row in rows.tolist()]


@given(SEEDS, st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(1, 7))
@settings(deadline=None, max_examples=100)
def test_every_row_comes_once_an_epoch(seed: int, sizes: list[int], n_epochs: int) -> None:
    expected = [
        (epoch, row) for epoch in range(n_epochs) for row in range(sizes[epoch % len(sizes)])
    ]
    found = order(seed, 0, len(expected), *sizes)
    assert sorted(found) == expected
    assert [epoch for epoch, _ in found] == sorted(epoch for epoch, _ in found)


@given(
    SEEDS,
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.integers(0, 100),
    st.lists(st.integers(0, 40), max_size=8),
)
@settings(deadline=None, max_examples=100)
def test_the_order_does_not_depend_on_how_it_is_read(
    seed: int, sizes: list[int], first: int, counts: list[int]
) -> None:
    whole = order(seed, first, sum(counts), *sizes)
    parts: list[tuple[int, int]] = []
    for count in counts:
        parts += order(seed, first + len(parts), count, *sizes)
    assert parts == whole
    assert len(whole) == sum(counts)


def test_epochs_and_seeds_differ() -> None:
    n = 100
    orders = {
        tuple(row for _, row in order(seed, epoch * n, n, n))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_order_is_the_one_that_runs_were_made_with() -> None:
    # a change of this order changes every run that is resumed
    rows = [row for _, row in order(1337, 8, 12, 10)]
    assert rows == [6, 5, 4, 9, 6, 7, 3, 1, 2, 5, 0, 8]


def test_reading_the_order_cannot_change_it() -> None:
    before = order(1, 0, 10, 10)
    for _, rows in row_indices(1, 0, 10, [10]):
        rows[:] = 0
    assert order(1, 0, 10, 10) == before


@given(st.integers(1, 90), st.integers(1, 20), st.integers(1, 7), st.integers(0, 40))
@settings(deadline=None, max_examples=100)
def test_every_token_is_a_target_once_an_epoch_wherever_the_windows_lie(
    n_targets: int, block_size: int, batch_size: int, step: int
) -> None:
    store = TokenStore(np.arange(n_targets + 1), np.array([0, n_targets]), 0)
    batches = TrainingBatches(
        store, block_size=block_size, layout="packed", batch_size=batch_size, seed=1
    )
    seen = np.zeros(n_targets + 1, dtype=int)
    for number in range(step + 1):
        targets = batches[number].targets
        seen += np.bincount(targets[targets >= 0].numpy(), minlength=n_targets + 1)
        assert all(0 < length <= block_size for _, length in batches.step_rows(number).tolist())
    # whole epochs lie behind, and one is under way
    assert seen[0] == 0
    assert seen[1:].max() - seen[1:].min() <= 1


def test_windows_lie_elsewhere_in_each_epoch() -> None:
    store = TokenStore(np.arange(65), np.array([0, 64]), 0)
    batches = TrainingBatches(store, block_size=16, layout="packed", batch_size=1, seed=1)
    starts = [int(batches.step_rows(step)[0, 0]) for step in range(4 + 15 * 5)]
    assert sorted(starts[:4]) == [0, 16, 32, 48]
    assert sorted(starts[4:9]) == [0, 8, 24, 40, 56]
    assert sorted(starts[9:14]) == [0, 12, 28, 44, 60]
    assert {*starts} == {*range(64)}
    assert sorted(int(batches.step_rows(79 + step)[0, 0]) for step in range(4)) == [0, 16, 32, 48]


@pytest.mark.parametrize("part_padding", [None, 0, 4])
@pytest.mark.parametrize("n_documents", [1, 5, 12, 40])
@pytest.mark.parametrize(("accumulate", "world_size"), [(2, 1), (1, 2), (3, 2), (2, 6), (12, 1)])
def test_a_step_has_the_same_rows_however_it_is_divided(
    n_documents: int, accumulate: int, world_size: int, part_padding: int | None
) -> None:
    whole = make_batches(n_documents, 12)
    ranks = [
        make_batches(n_documents, 12, accumulate, r, world_size, part_padding)
        for r in range(world_size)
    ]
    for step in range(8):
        micro_indices = range(step * accumulate, (step + 1) * accumulate)
        together = [
            row for index in micro_indices for batches in ranks for row in rows_of(batches, index)
        ]
        assert sorted(together) == sorted(rows_of(whole, step))
        # every share knows the targets of the whole step, without asking the others
        shares = [batches[index] for index in micro_indices for batches in ranks]
        total = whole[step].n_targets
        assert sum(batch.n_targets for batch in shares) == total
        assert {batch.step_targets for batch in shares} == {total}
        # and how much of what the whole step reads is real
        read = sum(part.inputs.numel() for batch in shares for part in batch.in_parts())
        assert {batch.real_share for batch in shares} == {total / read}


def test_rows_are_dealt_out_in_order_or_by_length() -> None:
    rows = np.array([[place, length] for place, length in enumerate([5, 2, 9, 2, 7, 1, 8, 3])])
    assert dealt(rows, 2, 2)[..., 0].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert by_length(rows)[:, 0].tolist() == [5, 1, 3, 7, 0, 4, 6, 2]
    # micro-batches of like lengths, and processes with like work
    assert dealt_by_length(rows, 2, 2)[..., 1].tolist() == [[[1, 2], [2, 3]], [[5, 8], [7, 9]]]


widths = st.lists(st.integers(1, 30), min_size=1, max_size=20).map(sorted)


@given(widths, st.integers(0, 60))
def test_like_rows_are_read_together(rising: list[int], padding: int) -> None:
    first = 0
    for count, width in alike(np.array(rising), padding):
        part = rising[first : first + count]
        assert part[-1] == width
        assert sum(width - each for each in part) <= padding
        if first:  # and the next shorter row would have been one too many
            assert sum(width - each for each in rising[first - 1 : first + count]) > padding
        first += count
    assert first == len(rising)


@pytest.mark.parametrize("n_documents", [5, 40])
def test_all_processes_read_parts_of_the_same_shapes(n_documents: int) -> None:
    """What is exchanged while a part is computed (FSDP) would wait for a part that never comes."""
    ranks = [make_batches(n_documents, 12, 2, rank, 3, 2) for rank in range(3)]
    shapes = [
        [[tuple(part.inputs.shape) for part in each[index].in_parts()] for each in ranks]
        for index in range(40)
    ]
    assert any(len(of_one) > 1 for of_one, *_ in shapes)
    for of_one, *of_others in shapes:
        assert of_others == [of_one, of_one]


def test_batches_straddle_epochs() -> None:
    batches = make_batches(10, 4)
    seen = np.zeros(11, dtype=int)
    for step in range(20):
        rows = rows_of(batches, step)
        assert len(rows) == 4
        np.add.at(seen, [row[0] for row in rows], 1)
        # whole epochs lie behind, and one is under way
        assert seen[1:].max() - seen[1:].min() <= 1
    assert set(seen[1:]) == {8}


def test_a_batch_depends_on_its_number_alone() -> None:
    forwards, backwards = make_batches(10, 4), make_batches(10, 4)
    rows = [rows_of(forwards, step) for step in range(9)]
    assert [rows_of(backwards, step) for step in reversed(range(9))] == rows[::-1]


def test_rows_that_cannot_be_dealt_out_are_refused() -> None:
    with pytest.raises(InputError, match=r"batch_size=10 .*batches=2 times 3 .*multiple of 6"):
        make_batches(10, 10, accumulate=2, world_size=3)

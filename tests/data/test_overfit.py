import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data.overfit import choose_overfit_rows, floor_of
from minigpt.data.token_store import TokenStore

END = 0


def make_store(documents: list[list[int]]) -> TokenStore:
    stream, starts = [END], [0]
    for document in documents:
        stream += [*document, END]
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=np.uint16), np.array(starts, dtype=np.int64), 0)


def best_loss(rows: list[list[int]]) -> float:
    """The mean loss of the model that gives each next token its share after the same prefix."""
    followed: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for row in rows:
        for place in range(1, len(row)):
            followed[tuple(row[:place])][row[place]] += 1
    losses = [
        -math.log(counts[row[place]] / counts.total())
        for row in rows
        for place in range(1, len(row))
        for counts in [followed[tuple(row[:place])]]
    ]
    return sum(losses) / len(losses)


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=6), min_size=1, max_size=8))
@settings(deadline=None, max_examples=200)
def test_the_floor_is_the_loss_of_the_best_model(rows: list[list[int]]) -> None:
    assert floor_of(rows) == pytest.approx(best_loss(rows), abs=1e-12)


def test_floors_worked_out_by_hand() -> None:
    assert floor_of([[0, 1, 2, 3]]) == 0
    assert floor_of([[0, 1, 2], [0, 1, 2]]) == 0
    # different first tokens tell the rows apart before anything is predicted
    assert floor_of([[1, 2, 3], [2, 3, 4]]) == 0
    # wherever two rows part, it costs ln 2 in each
    assert floor_of([[0, 1, 2], [0, 1, 3]]) == pytest.approx(2 * math.log(2) / 4)
    assert floor_of([[0, 1, 2], [0, 3, 2]]) == pytest.approx(2 * math.log(2) / 4)


def test_short_documents_give_one_row() -> None:
    documents = [[1, 2, 3], [1, 2, 4, 5], [2, 3], [9] * 20]
    chosen = choose_overfit_rows(make_store(documents), block_size=8)
    assert chosen.whole
    assert chosen.rows.tolist() == [[4, 5]]  # the longest that fits: 0 1 2 4 5 0
    assert chosen.floor == 0


def test_long_documents_allow_several_rows_below_the_floor() -> None:
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 50, 4000).tolist() for _ in range(12)]
    store = make_store([*documents, documents[0]])
    chosen = choose_overfit_rows(store, block_size=4001)
    tokens = [store.tokens[start : start + n + 1].tolist() for start, n in chosen.rows.tolist()]
    assert len({tuple(row) for row in tokens}) == len(tokens) == 8
    assert all(row[0] == row[-1] == END for row in tokens)
    assert chosen.floor == pytest.approx(math.log(8) / 4001)
    assert chosen.floor < 0.001


def test_one_row_more_would_pass_the_limit() -> None:
    rng = np.random.default_rng(0)
    store = make_store([rng.integers(1, 50, 999).tolist() for _ in range(8)])
    chosen = choose_overfit_rows(store, block_size=1000)
    assert len(chosen.rows) == 2  # ln 2 / 1000 < 0.001 < ln 3 / 1000


def test_where_no_document_fits_the_start_of_one_is_used() -> None:
    chosen = choose_overfit_rows(make_store([[5] * 30, [6] * 40]), block_size=16)
    assert not chosen.whole
    assert chosen.rows.tolist() == [[0, 16]]

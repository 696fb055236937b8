"""Figures of a stream, against counting in plain Python."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.data.look import figures
from minigpt.data.look.figures import (
    QUANTILES,
    Part,
    document_ids,
    in_both,
    most_frequent,
    number_of,
    part_of,
    unseen,
)
from minigpt.data.token_store import TokenStore

V, END = 6, 2

Documents = list[list[int]]
token = st.integers(0, V - 1).filter(lambda i: i != END)
corpus = st.lists(st.lists(token, min_size=1, max_size=5), min_size=1, max_size=30)


def store_of(documents: Documents, dtype: str = "<u2") -> TokenStore:
    stream, starts = [END], [0]
    for ids in documents:
        stream += [*ids, END]
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=dtype), np.array(starts), 3 * len(stream))


def part(documents: Documents, dtype: str = "<u2") -> Part:
    return part_of(store_of(documents, dtype), V, lambda _: None)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_PIECE", 7)
    monkeypatch.setattr(figures, "_OFTEN", 4)


@given(corpus, st.sampled_from(["<u2", "<u4"]))
def test_counts_lengths_and_repeats(documents: Documents, dtype: str) -> None:
    done: list[int] = []
    found = part_of(store_of(documents, dtype), V, done.append)
    assert sum(done) == len(documents)
    counted = Counter(i for ids in documents for i in ids)
    assert found.counts.tolist() == [counted[i] for i in range(V)]
    assert found.n_tokens == sum(map(len, documents))
    assert found.lengths.tolist() == [len(ids) + 1 for ids in documents]
    ordered = sorted(found.lengths.tolist())
    for share, length in zip(QUANTILES, found.quantiles, strict=True):
        at_most = [each for each in ordered if each <= length]
        assert length in ordered
        assert len(at_most) >= share * len(ordered)
        assert sum(each < length for each in ordered) <= share * len(ordered)
    times = Counter(map(tuple, documents))
    assert found.repeats.count == len(documents) - len(times)
    if found.repeats.count:
        most = tuple(documents[found.repeats.document])
        assert found.repeats.times == times[most] == max(times.values())


@given(corpus, corpus)
def test_what_is_on_both_sides_and_what_only_validation_has(
    trained: Documents, held_out: Documents
) -> None:
    train, validation = part(trained), part(held_out)
    both = in_both(train, validation).tolist()
    assert both == [i for i, ids in enumerate(held_out) if ids in trained]
    for number in both[:1]:
        assert number_of(train, number, validation) == trained.index(held_out[number])
    known = {i for ids in trained for i in ids}
    never = Counter(i for ids in held_out for i in ids if i not in known)
    assert unseen(train, validation).tolist() == [never[i] for i in range(V)]


def test_the_same_tokens_in_another_order_or_cut_are_no_repeat() -> None:
    assert part([[0, 1], [1, 0], [0], [1], [0, 1, 1]]).repeats.count == 0
    assert part([[0, 1], [3], [0, 1]]).repeats.count == 1


def test_bytes_per_token_leave_the_ends_out() -> None:
    found = part([[0, 1, 3], [4]])
    assert found.bytes_per_token == found.store.n_bytes / 4


def test_the_most_frequent_come_first_and_none_that_does_not_come() -> None:
    assert most_frequent(np.array([0, 3, 5, 3]), 3) == [2, 1, 3]
    assert most_frequent(np.array([0, 3, 0, 0]), 3) == [1]


def test_a_document_is_shown_without_its_end_and_shortened() -> None:
    store = store_of([[0, 1, 3], [4, 5]])
    assert document_ids(store, 0, 9).tolist() == [0, 1, 3]
    assert document_ids(store, 1, 1).tolist() == [4]

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import DataConfig
from minigpt.data.corpora import Corpus, load_corpus, stories
from minigpt.data.corpora.corpus import Part, Source, whole
from minigpt.data.corpora.split import split_corpus
from minigpt.errors import InputError


def source(where: str, documents: list[str]) -> Source:
    return Source(where, [lambda: map(Part, documents)], (), tuple(documents))


def split(documents: list[str], held_out: list[str] | None = None, **settings: object) -> Corpus:
    return split_corpus(
        DataConfig(corpus="text", **settings),  # type: ignore[arg-type]
        source("data.path=test", documents),
        None if held_out is None else source("data.val_path=test", held_out),
        cache=Path("unused"),
    )


@given(st.integers(1, 200), st.floats(0.01, 0.9))
@settings(deadline=None, max_examples=100)
def test_whole_documents_are_divided_evenly(n: int, fraction: float) -> None:
    documents = [f"document number {i}" for i in range(n)]
    if int(n * fraction) < 1:
        return
    corpus = split(documents, val_fraction=fraction)
    train, validation = list(whole(corpus.train())), list(whole(corpus.validation()))
    assert sorted(train + validation) == sorted(documents)
    assert len(validation) == int(n * fraction)
    assert train
    places = [documents.index(text) for text in validation]
    gaps = [b - a for a, b in zip([-1, *places], [*places, n], strict=False)]
    assert max(gaps) <= 1 / fraction + 1


def test_the_tenth_of_ten_documents_is_held_out() -> None:
    documents = [f"document {i}" for i in range(20)]
    assert list(whole(split(documents).validation())) == ["document 9", "document 19"]


@given(st.lists(st.text("ab\n ", min_size=10).filter(str.strip), min_size=1, max_size=9))
@settings(deadline=None, max_examples=100)
def test_few_documents_are_cut_by_position(documents: list[str]) -> None:
    corpus = split(documents)
    train, validation = list(whole(corpus.train())), list(whole(corpus.validation()))
    assert len(train) == len(validation) == len(documents) == corpus.n_documents
    assert [a + b for a, b in zip(train, validation, strict=True)] == documents


def test_one_document_trains_on_its_first_nine_tenths() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 1005)))
    corpus = split([text])
    assert list(whole(corpus.train())) == [text[:904]]
    assert list(whole(corpus.validation())) == [text[904:]]


def test_blank_documents_are_left_out_and_counted() -> None:
    corpus = split(["a", "", " \n", *"bcdefghij", "\t", "k"])
    assert (corpus.n_documents, corpus.left_out["blank one"]) == (11, 3)
    assert [*whole(corpus.train()), *whole(corpus.validation())] == [*"abcdefghik", "j"]
    assert "11 documents (3 blank ones left out)" in corpus.summary()


def test_the_limit_counts_documents() -> None:
    documents = ["", *(f"document {i}" for i in range(50))]
    corpus = split(documents, max_documents=20)
    assert corpus.n_documents == 20
    assert sorted([*whole(corpus.train()), *whole(corpus.validation())]) == sorted(documents[1:21])


def test_documents_held_out_by_hand_are_the_validation() -> None:
    corpus = split(list("abc"), held_out=["x", " ", "y"], max_documents=2)
    assert list(whole(corpus.train())) == ["a", "b"]
    assert list(whole(corpus.validation())) == ["x", "y"]
    assert (corpus.n_documents, corpus.left_out["blank one"]) == (4, 1)


def test_a_corpus_can_be_read_again() -> None:
    corpus = split([f"document {i}" for i in range(20)])
    assert list(whole(corpus.train())) == list(whole(corpus.train()))


def test_the_identity_follows_the_documents_and_the_split() -> None:
    documents = [f"document {i}" for i in range(30)]
    same = split(documents).identity
    assert split(documents).identity == same
    others = [
        split(["other", *documents[1:]]),
        split(["document 0document 1", *documents[2:]]),
        split(documents[:-1]),
        split(documents, max_documents=29),
        split(documents, val_fraction=0.2),
        split(documents, held_out=["x"]),
        split(documents, held_out=["y"]),
    ]
    identities = [same, *(corpus.identity for corpus in others)]
    assert len(set(identities)) == len(identities)


@pytest.mark.parametrize(
    ("documents", "held_out", "message"),
    [
        ([], None, "data.path=test: no text in it"),
        (["", " \n"], None, "data.path=test: no text in it .2 blank documents"),
        (["a"], None, "too short: 1 document of 1 character, .* at least 10 are needed"),
        (["a", "b"], None, "too short: 2 documents of 2 characters"),
        (["abc"], [" "], "data.val_path=.*no text in it .1 blank document "),
    ],
)
def test_a_part_with_nothing_in_it_is_an_error_with_counts(
    documents: list[str], held_out: list[str] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        split(documents, held_out)


def test_stories_are_the_same_whatever_else_is_set() -> None:
    corpus = load_corpus(DataConfig(max_documents=100))
    again = load_corpus(DataConfig(max_documents=100, batch_size=7, layout="padded"))
    train, validation = list(whole(corpus.train())), list(whole(corpus.validation()))
    assert (len(train), len(validation), corpus.n_documents) == (100, 10, 110)
    assert train == list(whole(again.train()))
    assert corpus.identity == again.identity
    assert not set(train) & set(validation)
    assert corpus.log_probability is not None
    assert corpus.log_probability(validation[0]) < 0


def test_other_stories_are_another_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_corpus(DataConfig(max_documents=100)).identity
    assert load_corpus(DataConfig(max_documents=101)).identity != before
    monkeypatch.setattr(stories, "stories", lambda seed, count: iter([f"{seed} {count}"]))
    assert load_corpus(DataConfig(max_documents=100)).identity != before


def test_an_unknown_corpus_lists_the_choices() -> None:
    with pytest.raises(InputError, match="stories, stdlib, text, jsonl, csv, parquet, hub"):
        load_corpus(DataConfig(corpus="txt"))

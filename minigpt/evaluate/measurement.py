"""One pass over the documents: what is measured, of one model or of two side by side."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigpt.checkpoint import LoadedModel
from minigpt.data.corpora import Corpus
from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.evaluate.config import EvaluateConfig
from minigpt.evaluate.extremes import Extremes
from minigpt.evaluate.figures import Figure, figures, share
from minigpt.evaluate.scoring import Document, Floats, n_targets, scored_documents
from minigpt.training.samples import valid_share

#: Characters from the start of a document that tell which it is.
FIRST_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is measured: the streams that hold the documents in its tokens, its stride."""

    name: str
    loaded: LoadedModel
    stores: Sequence[TokenStore]
    stride: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of each document (`columns`), the figures of it, and what is worth a look.

    `columns` are those of `minigpt.evaluate.figures`, (D,) each; `valid` is the share of samples
    that the corpus could have contained, where it can tell; `tokens_per_second` counts those of all
    models.
    """

    subjects: Sequence[Subject]
    columns: dict[str, Floats]
    figures: dict[str, Figure]
    extremes: Extremes
    valid: Figure | None
    tokens_per_second: float

    def total(self, column: str) -> int:
        """The sum of a column of counts."""
        return round(float(self.columns[column].sum()))

    @property
    def n_documents(self) -> int:
        """Documents that were measured."""
        return len(self.columns["nats"])


def measure(
    subjects: Sequence[Subject],
    corpus: Corpus,
    config: EvaluateConfig,
    *,
    done: Callable[[int], object] = int,
    write: Callable[[dict[str, Any]], object] | None = None,
) -> Measurement:
    """Score every document under each subject (one or two), and make figures of it.

    `done` is told how many tokens were scored, and `write`, if given, what was measured of each
    document. Raises `InputError` where there is nothing to measure.
    """
    first = subjects[0]
    extremes = Extremes(first.loaded.model.vocab_size, config.shown_documents)
    names = ["nats", "tokens", "bytes", "characters"]
    names += ["floor"] * (corpus.log_probability is not None)
    names += ["other_nats", "more_nats", "other_tokens"] * (len(subjects) > 1)
    table = np.zeros((sum(store.n_documents for store in first.stores), len(names)))
    if not len(table):
        raise InputError("there is no document in this part of the data; choose another split")
    same_tokens = True
    began = time.perf_counter()
    for row, documents in zip(table, _side_by_side(subjects, config, done), strict=True):
        one, other = documents[0], documents[1] if len(documents) > 1 else None
        extremes.add(one, other)
        if other is not None:
            same_tokens = same_tokens and np.array_equal(one.ids, other.ids)
        row[:] = _row(one, other, corpus, first.loaded.tokenizer)
        if write is not None:
            write(line_of(one, other, first.loaded.tokenizer))
    seconds = time.perf_counter() - began
    columns = dict(zip(names, np.ascontiguousarray(table.T), strict=True))
    n_scored = columns["tokens"].sum() + columns.get("other_tokens", np.zeros(1)).sum()
    if same_tokens:
        columns.pop("other_tokens", None)
    return Measurement(
        subjects,
        columns,
        figures(
            columns, resamples=config.bootstrap, confidence=config.confidence, seed=config.seed
        ),
        extremes,
        _valid_samples(first, corpus, config),
        float(n_scored) / max(seconds, 1e-9),
    )


def _side_by_side(
    subjects: Sequence[Subject], config: EvaluateConfig, done: Callable[[int], object]
) -> Iterator[tuple[Document, ...]]:
    """Each document as every subject finds it."""
    return zip(
        *(
            scored_documents(
                subject.loaded.model,
                subject.loaded.tokenizer,
                subject.stores,
                stride=subject.stride,
                score_end=config.score_end,
                batch_size=config.batch_size,
                done=done,
            )
            for subject in subjects
        ),
        strict=True,
    )


def _row(
    one: Document, other: Document | None, corpus: Corpus, tokenizer: Tokenizer
) -> list[float]:
    row = [one.nats, one.n_tokens, one.n_bytes, one.n_characters]
    if corpus.log_probability is not None:
        row.append(-corpus.log_probability(tokenizer.decode(one.ids)))
    if other is not None:
        row += [other.nats, other.nats - one.nats, other.n_tokens]
    return row


def line_of(one: Document, other: Document | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """What was measured of a document, as plain data; documents count from 1."""
    enough = one.ids[: 1 + 4 * FIRST_CHARACTERS]  # a character has four bytes at most
    start = " ".join(tokenizer.decode(enough).split())
    line: dict[str, Any] = {
        "document": one.number + 1,
        "tokens": one.n_tokens,
        "bytes": one.n_bytes,
        "characters": one.n_characters,
        "nats": one.nats,
        "nats_per_token": one.nats / one.n_tokens,
        "bits_per_byte": one.bits_per_byte,
        "starts": start[:FIRST_CHARACTERS],
    }
    if other is not None:
        line |= {
            "other_tokens": other.n_tokens,
            "other_nats": other.nats,
            "other_bits_per_byte": other.bits_per_byte,
        }
    return line


def n_scored(subjects: Sequence[Subject], config: EvaluateConfig) -> int:
    """How many tokens there are to score, over all subjects."""
    return sum(n_targets(each.stores, score_end=config.score_end) for each in subjects)


def _valid_samples(subject: Subject, corpus: Corpus, config: EvaluateConfig) -> Figure | None:
    if corpus.log_probability is None or not config.samples:
        return None
    found = valid_share(
        subject.loaded.model,
        subject.loaded.tokenizer,
        corpus.log_probability,
        longest=max(store.longest for store in subject.stores),
        count=config.samples,
        seed=config.seed,
    )
    return share(round(found * config.samples), config.samples, config.confidence)

"""Figures of a prepared corpus, from its token stores alone.

A pass over the tokens in pieces and one over the documents; what is kept is an array of the
vocabulary's size and two numbers a document, so memory does not grow with the documents' length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minigpt.data.token_store import TokenStore

#: Shares of the documents that are no longer than the length told; 0 is the shortest.
QUANTILES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)

#: Tokens that are counted at a time.
_PIECE = 1 << 22

#: Documents after which progress is told.
_OFTEN = 1000

#: Bytes of a digest. Of n different documents some two share one with a chance of n² / 2⁶⁵: of two
#: million, one in ten million.
_DIGEST = 8

Counts: TypeAlias = npt.NDArray[np.int64]
Digests: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Part:
    """One part of a corpus: its stream, how often each token occurs, a digest of each document.

    `counts` (V,) are those of the documents' text, so that of the end token is 0. `digests` (n,)
    are equal where documents are.
    """

    store: TokenStore
    counts: Counts
    digests: Digests

    @property
    def n_tokens(self) -> int:
        """Tokens of the text, ends of documents left out."""
        return self.store.n_targets - self.store.n_documents

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text that a token stands for on average, ends of documents left out."""
        return self.store.n_bytes / self.n_tokens

    @cached_property
    def lengths(self) -> Counts:
        """Tokens of each document, its end included: (n,)."""
        return np.diff(np.asarray(self.store.starts))

    @cached_property
    def quantiles(self) -> list[int]:
        """The lengths that `QUANTILES` of the documents do not exceed."""
        found = np.quantile(self.lengths, QUANTILES, method="inverted_cdf")
        return [int(length) for length in found]

    @cached_property
    def repeats(self) -> "Repeats":
        """Which documents say again, token by token, what an earlier one says."""
        _, first, times = np.unique(self.digests, return_index=True, return_counts=True)
        if len(first) == len(self.digests):
            return Repeats(0, 0, 0)
        most = int(times.argmax())
        return Repeats(len(self.digests) - len(first), int(first[most]), int(times[most]))


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many documents repeat another of their part, and which one is there most often."""

    count: int
    document: int
    times: int


def part_of(store: TokenStore, vocab_size: int, done: Callable[[int], None]) -> Part:
    """Count and digest a stream; `done` is told how many further documents were looked at."""
    return Part(store, token_counts(store, vocab_size), digests(store, done))


def token_counts(store: TokenStore, vocab_size: int) -> Counts:
    """How often each token stands in the documents: (V,), 0 for the end token."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first in range(0, len(store.tokens), _PIECE):
        counts += np.bincount(store.tokens[first : first + _PIECE], minlength=vocab_size)
    counts[store.end_id] = 0
    return counts


def digests(store: TokenStore, done: Callable[[int], None]) -> Digests:
    """A digest of each document's tokens: (n,)."""
    width = store.tokens.itemsize
    # plain bytes are sliced many times as fast as a mapped array
    content = np.ascontiguousarray(store.tokens).data.cast("B")
    found = bytearray(_DIGEST * store.n_documents)
    starts = store.starts * width
    for group in range(0, store.n_documents, _OFTEN):
        places: list[int] = starts[group : group + _OFTEN + 1].tolist()
        for number, (start, end) in enumerate(pairwise(places), group):
            digest = blake2b(content[start + width : end], digest_size=_DIGEST).digest()
            found[_DIGEST * number : _DIGEST * (number + 1)] = digest
        done(len(places) - 1)
    return np.frombuffer(found, dtype=np.uint64)


def in_both(train: Part, validation: Part) -> Counts:
    """The numbers of the validation documents that stand in the training part too, word by word."""
    return np.flatnonzero(np.isin(validation.digests, train.digests))


def number_of(part: Part, document: int, other: Part) -> int:
    """Where a part first has a document of another one, which is there."""
    return int((part.digests == other.digests[document]).argmax())


def document_ids(store: TokenStore, number: int, most: int) -> npt.NDArray[Any]:
    """The first tokens of a document, without its end; no more than `most`."""
    start, end = (int(place) for place in store.starts[number : number + 2])
    return np.array(store.tokens[start + 1 : min(end, start + 1 + most)])


def unseen(train: Part, validation: Part) -> Counts:
    """How often each token stands in the validation part, 0 for those that training has: (V,)."""
    return np.where(train.counts == 0, validation.counts, 0)


def most_frequent(counts: Counts, most: int) -> list[int]:
    """The tokens that occur most often, at most so many, and none that does not occur."""
    order = np.argsort(-counts, kind="stable")[:most]
    return [int(token) for token in order if counts[token]]

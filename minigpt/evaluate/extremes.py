"""What is kept of a measurement to be looked at, in memory that the corpus's size does not change.

The most and the least expected documents, the most surprising places, the loss of each kind of
token, and the documents on which two models differ most.
"""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from minigpt.evaluate.scoring import Document, Floats
from minigpt.generation.logprobs import Scores

#: Tokens of a document that are kept to be shown.
SHOWN_TOKENS = 1500
#: Documents of fewer tokens are shown only where there are no others.
FEW_TOKENS = 20
#: More bits than any byte has.
_BEYOND = 1e9
#: Surprising places that are kept.
PLACES = 20
#: Tokens before and after a place that are shown with it.
BEFORE, AFTER = 30, 8


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a document: its `ids` (n,) and the scores of each.

    It begins with the document's token number `start` (0 is the first that is scored). `n_tokens`
    and `bits_per_byte` are of the whole document.
    """

    number: int
    n_tokens: int
    bits_per_byte: float
    start: int
    ids: npt.NDArray[Any]
    scores: Scores


def excerpt(document: Document, start: int, end: int) -> Excerpt:
    """Tokens start … end - 1 of a document, copied, so that the rest can be forgotten."""
    part = slice(start, end)
    scores = document.scores
    return Excerpt(
        document.number,
        document.n_tokens,
        document.bits_per_byte,
        start,
        np.array(document.ids[1:][part]),
        Scores(
            scores.logprobs[part].copy(),
            scores.guesses[part].copy(),
            scores.guess_logprobs[part].copy(),
        ),
    )


@dataclass(slots=True)
class Largest:
    """The `size` items with the largest keys; of equal ones those that came first."""

    size: int
    _heap: list[tuple[float, int, Any]] = field(default_factory=list[tuple[float, int, Any]])
    _count: int = 0

    def takes(self, key: float) -> bool:
        """Whether an item with this key would be kept now."""
        return len(self._heap) < self.size or (self.size > 0 and key > self._heap[0][0])

    def add(self, key: float, item: Any) -> None:
        """Keep an item that `takes` is true of."""
        self._count += 1
        heapq.heappush(self._heap, (key, -self._count, item))
        if len(self._heap) > self.size:
            heapq.heappop(self._heap)

    def ranked(self) -> list[tuple[float, Any]]:
        """Keys and items, the largest first."""
        return [(key, item) for key, _, item in sorted(self._heap, reverse=True)]


class Extremes:
    """Takes every document once; keeps what the report shows.

    `least` and `most` hold the least and the most expected documents by bits per byte; `places` the
    most surprising tokens, each an `Excerpt` around it and its place in that; `better` and `worse`
    pairs of excerpts where a second model is furthest ahead and furthest behind. `sums` and
    `counts` (V,) are the loss in nats and the occurrences of each token.
    """

    def __init__(self, vocab_size: int, shown: int) -> None:
        self.least, self.most = Largest(shown), Largest(shown)
        self.places = Largest(PLACES)
        self.better, self.worse = Largest(shown), Largest(shown)
        self.sums: Floats = np.zeros(vocab_size)
        self.counts = np.zeros(vocab_size, dtype=np.int64)

    def add(self, document: Document, other: Document | None = None) -> None:
        """Look at a document, and at what the second model makes of it."""
        bits = document.bits_per_byte
        # of a few tokens the surprise is the end's; such documents come last
        last = 0.0 if document.n_tokens >= FEW_TOKENS else _BEYOND
        for kept, key in ((self.least, bits - last), (self.most, -bits - last)):
            if kept.takes(key):
                kept.add(key, excerpt(document, 0, SHOWN_TOKENS))
        losses = -document.scores.logprobs
        np.add.at(self.sums, document.ids[1:], losses)
        np.add.at(self.counts, document.ids[1:], 1)
        for place in np.argsort(-losses, kind="stable")[:PLACES].tolist():
            loss, start = float(losses[place]), max(0, place - BEFORE)
            if not self.places.takes(loss):
                break
            self.places.add(loss, (excerpt(document, start, place + 1 + AFTER), place - start))
        if other is not None:
            ahead = bits - other.bits_per_byte
            for kept, key in ((self.better, ahead), (self.worse, -ahead)):
                if key > 0 and kept.takes(key):
                    pair = excerpt(document, 0, SHOWN_TOKENS), excerpt(other, 0, SHOWN_TOKENS)
                    kept.add(key, pair)

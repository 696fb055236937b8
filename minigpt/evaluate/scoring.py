"""Every document of a corpus, scored: each token once, given the context it had."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.generation.logprobs import Scores, score_texts
from minigpt.model.gpt import GPT

#: Documents are scored together until they have so many tokens.
TOKENS_AT_A_TIME = 1 << 18

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Document:
    """A document and what a model makes of it.

    `ids` (n + 1,) begins with the end token, which is only read, and ends with it where that is
    scored; the `scores` are of the n others. `n_bytes` and `n_characters` are of its text.
    """

    number: int
    ids: npt.NDArray[Any]
    scores: Scores
    n_bytes: int
    n_characters: int

    @property
    def n_tokens(self) -> int:
        """Tokens that are scored."""
        return len(self.ids) - 1

    @property
    def nats(self) -> float:
        """Summed negative log-likelihood."""
        return -float(self.scores.logprobs.sum())

    @property
    def bits_per_byte(self) -> float:
        """The loss in bits over the bytes of the text."""
        return self.nats / np.log(2) / self.n_bytes


def stride_for(stride: int | None, model: GPT) -> int:
    """By how many tokens windows move; `InputError` if that is more than the context."""
    block_size = model.config.block_size
    if stride is not None and stride > block_size:
        raise InputError(
            f"stride={stride}: must be at most the model's context, {block_size} tokens"
        )
    return stride or max(1, block_size // 2)


def n_targets(stores: Sequence[TokenStore], *, score_end: bool) -> int:
    """How many tokens there are to score."""
    ends = 0 if score_end else sum(store.n_documents for store in stores)
    return sum(store.n_targets for store in stores) - ends


def scored_documents(
    model: GPT,
    tokenizer: Tokenizer,
    stores: Sequence[TokenStore],
    *,
    stride: int,
    score_end: bool = True,
    batch_size: int | None = None,
    done: Callable[[int], object] = int,
) -> Iterator[Document]:
    """The documents of some streams in order, each read by itself, with their scores.

    `done` is told how many tokens were scored, now and then.
    """
    sizes = _sizes(tokenizer)
    number = 0
    score = partial(score_texts, model, stride=stride, batch_size=batch_size, done=done)
    for texts in _groups(stores, score_end=score_end):
        for ids, scores in zip(texts, score(texts), strict=True):
            n_bytes, n_characters = sizes[ids].sum(axis=0).tolist()
            yield Document(number, ids, scores, n_bytes, n_characters)
            number += 1


def _groups(stores: Sequence[TokenStore], *, score_end: bool) -> Iterator[list[npt.NDArray[Any]]]:
    """The tokens of documents, from end token to end token, about `TOKENS_AT_A_TIME` at once."""
    group: list[npt.NDArray[Any]] = []
    size = 0
    for store in stores:
        for start, end in zip(store.starts[:-1], store.starts[1:], strict=True):
            group.append(store.tokens[start : end + score_end])
            size += len(group[-1])
            if size >= TOKENS_AT_A_TIME:
                yield group
                group, size = [], 0
    if group:
        yield group


def _sizes(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """Bytes of each token, and how many characters begin in it: (V of the tokenizer, 2)."""
    return np.array(
        [
            (len(token), sum(byte & 0xC0 != 0x80 for byte in token))  # not within a character
            for token in tokenizer.token_bytes
        ],
        dtype=np.int64,
    )

"""How probable a model finds texts, token by token.

A text that is longer than the context is read in windows (`windows_of`); those of several texts
are read side by side, and logits are made at the places that are scored alone. Shapes: B rows,
W columns of the widest window, C width, V vocabulary, n tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.generation.sampling import widened
from minigpt.generation.windows import check_finite, window_start
from minigpt.model.gpt import GPT

#: Token ids (n,) of any integer type.
Ids: TypeAlias = Sequence[int] | npt.NDArray[Any]

#: Bytes that the activations of a forward pass may take, where nothing says how many rows it has.
ROOM_FOR_ACTIVATIONS = 1 << 28
#: More tokens than this in a forward pass bring no more of them a second; a CPU's caches are small.
MOST_TOKENS, MOST_TOKENS_CPU = 1 << 16, 1 << 12
#: Logits that are held at a time.
MOST_LOGITS = 1 << 24


class Window(NamedTuple):
    """A part of text number `text`: tokens start … last - 1 are read, first … last are scored."""

    text: int
    start: int
    first: int
    last: int

    @property
    def width(self) -> int:
        """Tokens that are read."""
        return self.last - self.start


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model makes of every token of a text but the first, given those before it, (n - 1,).

    `logprobs` float64 are the log-probabilities of the tokens, in nats; `guesses` int32 the tokens
    that are the most probable in their places, and `guess_logprobs` float64 how probable.
    """

    logprobs: npt.NDArray[np.float64]
    guesses: npt.NDArray[np.int32]
    guess_logprobs: npt.NDArray[np.float64]


def token_logprobs(model: GPT, ids: Sequence[int], stride: int) -> list[float]:
    """The log-probability of every token but the first, given those before it, in nats.

    Past the context a token is given what generation would have read at its place: the window that
    moves by `stride` tokens.
    """
    (scores,) = score_texts(model, [ids], stride=stride)
    return scores.logprobs.tolist()


def windows_of(n_tokens: int, block_size: int, stride: int, text: int = 0) -> Iterator[Window]:
    """The windows in which a text is read: each token but the first is scored in one of them.

    The first window scores all it can, every later one the `stride` tokens that it has moved by
    (the last one those that are left): they are given more than block_size - stride tokens before
    them, and no token more than `block_size`.
    """
    first = 1
    while first < n_tokens:
        start = window_start(first, block_size, stride)
        last = min(start + block_size, n_tokens - 1)
        yield Window(text, start, first, last)
        first = last + 1


@torch.inference_mode()
def score_texts(
    model: GPT,
    texts: Sequence[Ids],
    *,
    stride: int,
    batch_size: int | None = None,
    done: Callable[[int], object] = int,
) -> list[Scores]:
    """The scores of several texts, in their order; each is read by itself.

    `batch_size` is how many windows are read at a time, None as many as memory has room for;
    `done` is told after each batch how many tokens it has scored. Raises `InputError` where the
    model's numbers leave the range of its arithmetic.
    """
    block_size = model.config.block_size
    scores = [_unscored(max(0, len(ids) - 1)) for ids in texts]
    windows = [
        window
        for number, ids in enumerate(texts)
        for window in windows_of(len(ids), block_size, stride, number)
    ]
    windows.sort(key=lambda window: window.width, reverse=True)  # so that little is padded
    taken = 0
    while taken < len(windows):
        count = batch_size or max(1, _tokens_that_fit(model) // windows[taken].width)
        batch = windows[taken : taken + count]
        taken += count
        found = _score_windows(model, texts, batch)
        place = 0
        for text, _, first, last in batch:
            here = slice(place, place + last + 1 - first)
            scores[text].logprobs[first - 1 : last] = found[0][here]
            scores[text].guess_logprobs[first - 1 : last] = found[1][here]
            scores[text].guesses[first - 1 : last] = found[2][here]
            place = here.stop
        done(place)
    return scores


def _unscored(n: int) -> Scores:
    return Scores(np.zeros(n), np.zeros(n, dtype=np.int32), np.zeros(n))


def _tokens_that_fit(model: GPT) -> int:
    """How many tokens to read at a time: as many as pay and memory has room for."""
    # the residual stream, its norm, and what the MLP widens it to, before and after
    size = 10 * model.config.n_embd * model.embedding.weight.element_size()
    most = MOST_TOKENS_CPU if model.device.type == "cpu" else MOST_TOKENS
    return min(most, ROOM_FOR_ACTIVATIONS // size)


def _score_windows(
    model: GPT, texts: Sequence[Ids], batch: Sequence[Window]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.int32]]:
    """Of all that a batch of windows scores: log-probabilities, and the guesses' and their ids.

    The windows are padded at their end, where nothing that is real reads it.
    """
    width = max(window.width for window in batch)
    tokens = np.zeros((len(batch), width), dtype=np.int64)
    for row, (text, start, _, last) in enumerate(batch):
        tokens[row, : last - start] = texts[text][start:last]
    places = np.concatenate(
        [
            row * width + np.arange(first - 1 - start, last - start)
            for row, (_, start, first, last) in enumerate(batch)
        ]
    )
    targets = np.concatenate([texts[text][first : last + 1] for text, _, first, last in batch])
    read = model.hidden(torch.from_numpy(tokens).to(model.device)).flatten(0, 1)  # (B·W, C)
    places = torch.from_numpy(places).to(model.device)
    targets = torch.from_numpy(targets.astype(np.int64)).to(model.device)
    at_a_time = max(1, MOST_LOGITS // model.vocab_size)
    parts = [
        _score_places(model, read[some], wanted)
        for some, wanted in zip(
            torch.split(places, at_a_time), torch.split(targets, at_a_time), strict=True
        )
    ]
    logprobs, best, guesses = (torch.cat(each) for each in zip(*parts, strict=True))
    check_finite(logprobs)
    return logprobs.double().cpu().numpy(), best.double().cpu().numpy(), guesses.cpu().numpy()


def _score_places(model: GPT, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of targets (n,) after `hidden` (n, C); those of the best tokens, their ids.

    Over the model's whole vocabulary.
    """
    logprobs = widened(model.logits(hidden)).log_softmax(dim=-1)  # (n, V)
    best, guesses = logprobs.max(dim=-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], best, guesses

"""From logits to a token, as pure functions over rows.

The controls of `Sampling` act in the order in which they stand there. The first ones depend on the
tokens so far (`minigpt.generation.controls`); here are the others: `temperature`, `top_k`, `top_p`,
`min_p` and the draw. Each row brings its own uniform number, so a row's token depends on nothing
else in its batch, and no step loops over rows. Shapes: B rows, V tokens of the vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen, in the order in which this happens.

    `logit_bias_ids` has tokens and what is added to their logits, `logit_bias` texts and what is
    added to the logits of the tokens that would complete them. `repetition_penalty` divides the
    positive logits of the tokens so far and multiplies the negative ones; `frequency_penalty` is
    taken from those of the new tokens once for each time they came, `presence_penalty` once.
    `no_repeat_ngram` n bans what would repeat n tokens. `temperature` divides the logits; 0 is
    greedy: the best token, whatever the seed. `top_k` keeps the k best tokens; `top_p` in (0, 1]
    the fewest best of those whose probability, after temperature and `top_k`, reaches p; `min_p`
    those that are at least p times as probable as the best.
    """

    logit_bias_ids: tuple[tuple[int, float], ...] = ()
    logit_bias: tuple[tuple[str, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


def banned(ids: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """The `logit_bias_ids` with which none of these tokens is ever sampled."""
    return tuple((token, -math.inf) for token in ids)


def sample_token(logits: Tensor, sampling: Sampling, uniforms: Tensor | None = None) -> Tensor:
    """A token a row, (B,) int64, from `logits` (B, V).

    `uniforms` (B,) in [0, 1) decide the draw; greedy needs none.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    assert uniforms is not None
    probabilities, ids = candidates(logits, sampling)
    drawn = draw(probabilities, uniforms)
    return drawn if ids is None else ids.gather(-1, drawn[:, None])[:, 0]


def candidates(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """What is sampled from: probabilities (B, K), and the ids (B, K) they are of.

    Without `top_k` K is V, and the ids are None: each is its place. The probabilities are float64
    for float64 logits and float32 for all others.
    """
    logits = with_temperature(widened(logits), sampling.temperature)
    ids = None
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        ids = top_k(logits, sampling.top_k)
        logits = logits.gather(-1, ids)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p:
        logits = keep_min_p(logits, sampling.min_p)
    return logits.softmax(dim=-1), ids


def widened(logits: Tensor) -> Tensor:
    """Logits in an arithmetic to compute with: float64 as they are, all others in float32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature, the best of each row moved to 0 first.

    It stays there, and the others go to -inf at worst, however small the temperature.
    """
    # below the smallest normal number its inverse overflows
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """The ids (B, k) of a row's k best logits, in ascending order; of equal ones the lowest ids."""
    last = logits.topk(k, dim=-1).values[:, -1:]
    better = logits > last
    equal = logits == last  # topk may take any of these, so they are chosen here
    room = k - better.sum(dim=-1, keepdim=True)
    kept = better | (equal & (equal.cumsum(dim=-1) <= room))
    return kept.view(torch.uint8).topk(k, dim=-1).indices.sort(dim=-1).values


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest best logits of a row whose probability reaches `p`, the others -inf.

    At least one is kept; of equal ones the lowest ids come first; `p` 1 keeps all.
    """
    if p >= 1:  # a sum of rounded probabilities could pass 1 before the last token
        return logits
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    reached = ordered.softmax(dim=-1).cumsum(dim=-1)
    # a token is left out when those before it reach p already
    ordered[:, 1:].masked_fill_(reached[:, :-1] >= p, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, ids, ordered)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """The logits of the tokens at least `p` times as probable as the best, the others -inf.

    `p` in (0, 1]; 1 keeps the best, and those that are as good (Nguyen et al. 2024, section 3).
    """
    least = logits.amax(dim=-1, keepdim=True) + math.log(p)
    return logits.masked_fill(logits < least, -torch.inf)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: the token, (B,) int64, at which a row's running sum passes its share.

    `uniforms` (B,) in [0, 1) are the shares of the whole. Only a token of positive probability is
    taken, even where a parallel sum is not monotone.
    """
    running = probabilities.cumsum(dim=-1) * (probabilities > 0)
    below_one = 1 - torch.finfo(running.dtype).eps / 2  # so that a share is less than the whole
    shares = uniforms.to(running.dtype).clamp(max=below_one)[:, None]
    passed = running > shares * running.amax(dim=-1, keepdim=True)
    return passed.view(torch.uint8).argmax(dim=-1)  # argmax gives the first of equals


class Uniforms:
    """The random numbers of a batch: row r's come from a generator of its own (seed, sample).

    So a sample depends only on the seed and on its number among its prompt's samples.
    """

    def __init__(self, rows: Sequence[tuple[int, int]], device: torch.device) -> None:
        self._generators = [np.random.default_rng(row) for row in rows]
        self._device = device
        self._block = torch.empty(0, 0)
        self._next = 0

    def next(self, block: int = 256) -> Tensor:
        """The next number of each row, (B,) in [0, 1); drawn `block` at a time."""
        if self._next == self._block.shape[0]:
            numbers = np.stack([generator.random(block) for generator in self._generators], axis=1)
            # not every device has float64
            wide = self._device.type != "mps"
            self._block = torch.from_numpy(numbers if wide else numbers.astype(np.float32))
            self._block = self._block.to(self._device)
            self._next = 0
        self._next += 1
        return self._block[self._next - 1]

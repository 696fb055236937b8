"""From logits to a token, as pure functions over rows.

The controls act in this order: `temperature`, `top_k`, `top_p`. Each row brings its own uniform
number, so a row's token depends on nothing else in its batch, and no step loops over rows.
Shapes: B rows, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen. `temperature` 0 is greedy: the best token, whatever the seed.

    `top_k` keeps the k best tokens; `top_p` in (0, 1] the fewest best of those whose probability,
    after temperature and `top_k`, reaches p. None keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def sample_token(logits: Tensor, sampling: Sampling, uniforms: Tensor | None = None) -> Tensor:
    """A token a row, (B,) int64, from `logits` (B, V).

    `uniforms` (B,) in [0, 1) decide the draw; greedy needs none.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    assert uniforms is not None
    return draw(probabilities(logits, sampling), uniforms)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """What is sampled from, (B, V): float64 for float64 logits, float32 for all others."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    logits = with_temperature(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    return logits.softmax(dim=-1)


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Logits over the temperature, the best of each row moved to 0 first.

    It stays there, and the others go to -inf at worst, however small the temperature.
    """
    # below the smallest normal number its inverse overflows
    temperature = max(temperature, torch.finfo(logits.dtype).tiny)
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k best logits of a row, the others -inf; of equal ones the lowest ids are kept."""
    if k >= logits.shape[-1]:
        return logits
    last = logits.topk(k, dim=-1).values[:, -1:]
    better = logits > last
    equal = logits == last
    room = k - better.sum(dim=-1, keepdim=True)
    return logits.masked_fill(~(better | (equal & (equal.cumsum(dim=-1) <= room))), -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """The fewest best logits of a row whose probability reaches `p`, the others -inf.

    At least one is kept; of equal ones the lowest ids come first; `p` 1 keeps all.
    """
    if p >= 1:  # a sum of rounded probabilities could pass 1 before the last token
        return logits
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    reached = ordered.softmax(dim=-1).cumsum(dim=-1)
    # a token is left out when those before it reach p already
    left_out = torch.zeros_like(logits, dtype=torch.bool)
    left_out.scatter_(-1, ids[:, 1:], reached[:, :-1] >= p)
    return logits.masked_fill(left_out, -torch.inf)


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: the token, (B,) int64, at which a row's running sum passes its share.

    `uniforms` (B,) in [0, 1] are the shares of the whole. Only a token of positive probability is
    taken, even where a parallel sum is not monotone.
    """
    running = probabilities.cumsum(dim=-1).masked_fill_(probabilities == 0, 0)
    total = running.amax(dim=-1, keepdim=True)
    target = uniforms.to(total.dtype)[:, None] * total
    target = torch.minimum(target, total.nextafter(torch.zeros_like(total)))  # rounding reaches it
    return (running > target).to(torch.uint8).argmax(dim=-1)  # argmax: the first of equals


class Uniforms:
    """The random numbers of a batch: row r's come from a generator of `seed` and `samples[r]`.

    So a sample depends only on the seed and on its number among its prompt's samples.
    """

    def __init__(self, seed: int, samples: Sequence[int], device: torch.device) -> None:
        self._generators = [np.random.default_rng((seed, sample)) for sample in samples]
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

"""The loss is a sum over real targets, in a float that can hold it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.data.batches import IGNORED
from minigpt.training.loss import bits_per_byte, perplexity, summed_loss


@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 9), st.integers(0, 2**31))
def test_equal_to_plain_loops(rows: int, width: int, vocab: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, vocab, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocab, (rows, width), generator=generator)
    padded = torch.rand(rows, width, generator=generator) < 0.3
    expected = 0.0
    for b in range(rows):
        for t in range(width):
            if not padded[b, t]:
                scores = logits[b, t].tolist()
                total = sum(math.exp(score) for score in scores)
                expected -= math.log(math.exp(scores[targets[b, t]]) / total)
    loss = summed_loss(logits, targets.masked_fill(padded, IGNORED))
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 30_000, 4, dtype=dtype)
    loss = summed_loss(logits, torch.zeros(1, 30_000, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(30_000 * math.log(4), rel=1e-5)


def test_the_units() -> None:
    assert bits_per_byte(8 * math.log(2), 4) == pytest.approx(2.0)
    assert perplexity(math.log(50.0)) == pytest.approx(50.0)
    assert perplexity(1e6) == math.inf

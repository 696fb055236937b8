"""Each control against an independent plain implementation, and as a distribution."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.generation.sampling import Sampling, Uniforms, candidates, draw, sample_token
from tests.plain_sampling import plain_probabilities

CPU = torch.device("cpu")


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What is sampled from, by token: (B, V)."""
    kept, ids = candidates(logits, sampling)
    return kept if ids is None else kept.new_zeros(logits.shape).scatter(-1, ids, kept)


# few distinct values, so that ties are common; p away from sums that rounding could decide
@st.composite
def cases(draw_: st.DrawFn) -> tuple[list[float], Sampling]:
    logits = draw_(st.lists(st.sampled_from([-3.0, -0.5, 0.0, 0.7, 2.0]), min_size=1, max_size=9))
    sampling = Sampling(
        temperature=draw_(st.sampled_from([0.3, 1.0, 2.5])),
        top_k=draw_(st.none() | st.integers(1, 12)),
        top_p=draw_(st.none() | st.sampled_from([1e-9, 0.2137, 0.5171, 0.9173, 1.0])),
        min_p=draw_(st.none() | st.sampled_from([0.0, 1e-9, 0.0717, 0.2713, 1.0])),
    )
    return logits, sampling


@settings(deadline=None, max_examples=100)
@given(st.lists(cases(), min_size=1, max_size=3))
def test_probabilities_are_those_of_the_plain_ones(
    rows: list[tuple[list[float], Sampling]],
) -> None:
    for logits, sampling in rows:
        got = probabilities(torch.tensor([logits], dtype=torch.float64), sampling)[0]
        assert got.tolist() == pytest.approx(plain_probabilities(logits, sampling), abs=1e-12)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([[0.25, 0.5, 0.125, 0.125]]).log()

    def kept(p: float) -> list[int]:
        return probabilities(logits, Sampling(top_p=p))[0].nonzero()[:, 0].tolist()

    assert kept(0.01) == [1]
    assert kept(0.4999) == [1]
    assert kept(0.51) == [0, 1]
    assert kept(0.76) == [0, 1, 2]  # of the two equal ones the first
    assert kept(0.9) == [0, 1, 2, 3]


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    both = probabilities(logits, Sampling(top_k=2, top_p=0.5))[0]
    assert both.tolist() == [1, 0, 0, 0]  # 0.4 of 0.7 reaches a half


def test_temperature_acts_before_top_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert probabilities(logits, Sampling(top_p=0.6))[0].count_nonzero() == 1
    assert probabilities(logits, Sampling(temperature=5.0, top_p=0.6))[0].count_nonzero() == 2


def test_min_p_is_a_share_of_the_best_probability() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()

    def kept(p: float) -> list[int]:
        return probabilities(logits, Sampling(min_p=p))[0].nonzero()[:, 0].tolist()

    assert kept(0) == kept(0.249) == [0, 1, 2, 3]
    assert kept(0.251) == [1, 2, 3]
    assert kept(0.76) == [1]
    assert kept(1) == [1]


def test_min_p_one_keeps_all_that_are_as_good_as_the_best() -> None:
    kept = probabilities(torch.tensor([[1.0, 2.0, 2.0, 0.0]]), Sampling(min_p=1.0))
    assert kept.tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_temperature_acts_before_min_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    assert probabilities(logits, Sampling(min_p=0.3))[0].count_nonzero() == 2
    assert probabilities(logits, Sampling(temperature=2.0, min_p=0.3))[0].count_nonzero() == 3


def test_top_k_of_equal_logits_keeps_the_first() -> None:
    kept = probabilities(torch.zeros(2, 6), Sampling(top_k=4))
    assert kept.tolist() == [[0.25] * 4 + [0.0] * 2] * 2


def test_of_many_equal_logits_the_first_are_kept() -> None:
    for sampling in (Sampling(top_k=2500), Sampling(top_p=0.49999)):
        kept = probabilities(torch.zeros(1, 5000, dtype=torch.float64), sampling)[0]
        assert kept.count_nonzero() == 2500
        assert (kept[:2500] > 0).all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5),
        Sampling(temperature=3.0),
        Sampling(top_k=3),
        Sampling(top_p=0.7),
        Sampling(min_p=0.3),
        Sampling(temperature=1.5, top_k=5, top_p=0.8, min_p=0.5),
    ],
)
def test_samples_are_distributed_as_they_should(sampling: Sampling) -> None:
    logits, n = [0.3, -1.0, 1.2, 0.0, 0.3, -4.0, 0.9], 20_000
    uniforms = torch.from_numpy(np.random.default_rng(5).random(n))
    ids = sample_token(torch.tensor(logits).expand(n, -1), sampling, uniforms)
    seen = torch.bincount(ids, minlength=len(logits)).tolist()
    expected = [n * p for p in plain_probabilities(logits, sampling)]
    assert all(count == 0 for count, mean in zip(seen, expected, strict=True) if mean == 0)
    squares = [(c - m) ** 2 / m for c, m in zip(seen, expected, strict=True) if m > 0]
    # 22.46 is the 99.9% point of chi-square with 6 degrees of freedom, the most there are here
    assert sum(squares) < 22.46


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-9, 1e-3])
def test_tiny_temperatures_are_finite_and_take_the_best(
    temperature: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor([[1e4, -1e4, 1e4 + 64, 3.0]]).to(dtype)
    got = probabilities(logits, Sampling(temperature=temperature))
    assert got.tolist() == [[0, 0, 1, 0]]


def test_a_high_temperature_is_uniform() -> None:
    got = probabilities(torch.tensor([[5.0, -5.0, 0.0, 1.0]]), Sampling(temperature=1e4))
    assert got[0].tolist() == pytest.approx([0.25] * 4, abs=1e-3)


def test_greedy_is_the_argmax_and_needs_no_random_number() -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(1))
    greedy = Sampling(temperature=0, top_k=1, top_p=0.1)
    assert sample_token(logits, greedy).tolist() == logits.argmax(-1).tolist()


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any),
    st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, math.nextafter(1, 0)]),
)
def test_draw_inverts_the_running_sum_and_skips_what_has_no_probability(
    weights: list[int], uniform: float
) -> None:
    exact = [Fraction(w, sum(weights)) for w in weights]
    running = [sum(exact[: i + 1], Fraction(0)) for i in range(len(exact))]
    rows = torch.tensor([[w / sum(weights) for w in weights]], dtype=torch.float64)
    token = int(draw(rows, torch.tensor([uniform], dtype=torch.float64)))
    assert weights[token] > 0
    slack = Fraction(1, 10**12)
    assert running[token] - exact[token] - slack <= Fraction(uniform) <= running[token] + slack


def test_a_uniform_that_rounds_to_one_takes_the_last_possible_token() -> None:
    rows = torch.tensor([[0.5, 0.5, 0.0]])
    assert draw(rows, torch.tensor([1.0])).tolist() == [1]
    assert draw(rows, torch.tensor([0.0])).tolist() == [0]


def test_a_row_is_sampled_as_it_would_be_alone() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 20, generator=generator, dtype=torch.float64)
    uniforms = torch.rand(6, generator=generator, dtype=torch.float64)
    sampling = Sampling(temperature=0.8, top_k=9, top_p=0.9)
    alone = [int(sample_token(logits[i : i + 1], sampling, uniforms[i : i + 1])) for i in range(6)]
    assert sample_token(logits, sampling, uniforms).tolist() == alone


def test_random_numbers_depend_on_the_seed_and_the_sample_only() -> None:
    def numbers(seed: int, samples: list[int], block: int) -> list[list[float]]:
        uniforms = Uniforms([(seed, sample) for sample in samples], CPU)
        return [uniforms.next(block).tolist() for _ in range(7)]

    together = numbers(4, [2, 0, 1], 7)
    assert numbers(4, [0], 3) == [[row[1]] for row in together]
    assert numbers(4, [1, 2], 1) == [[row[2], row[0]] for row in together]
    assert len(set(together[0])) == 3
    assert numbers(5, [0], 7) != numbers(4, [0], 7)
    assert all(0 <= number < 1 for row in together for number in row)

"""Figures as sums over sums, and their intervals."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.evaluate import figures as module
from minigpt.evaluate.figures import Figure, figures, resampled_sums, share, verdict


def columns(D: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, 60, size=D).astype(float)
    return {
        "nats": tokens * draw.gamma(4.0, 0.5, size=D),
        "tokens": tokens,
        "bytes": tokens * 4,
        "characters": tokens * 3,
    }


def ends(figure: Figure) -> tuple[float, float]:
    assert figure.low is not None
    assert figure.high is not None
    return figure.low, figure.high


def test_figures_are_sums_over_sums() -> None:
    table = columns(50)
    found = figures(table, resamples=0, confidence=0.95, seed=1)
    nats = math.fsum(table["nats"])
    assert found["nats_per_token"].value == pytest.approx(nats / table["tokens"].sum())
    assert found["perplexity"].value == pytest.approx(math.exp(nats / table["tokens"].sum()))
    assert found["bits_per_byte"].value == pytest.approx(nats / math.log(2) / table["bytes"].sum())
    assert found["bits_per_character"].value == pytest.approx(
        nats / math.log(2) / table["characters"].sum()
    )
    assert all(figure.low is None for figure in found.values())


@settings(max_examples=20)
@given(D=st.integers(1, 30), resamples=st.integers(1, 40), seed=st.integers(0, 99))
def test_resamples_are_those_of_a_plain_loop_over_the_same_draws(
    D: int, resamples: int, seed: int
) -> None:
    table = np.random.default_rng(seed + 1).normal(size=(D, 3))
    draws = np.random.default_rng(seed).integers(D, size=(resamples, D))
    expected = [[sum(table[i, k] for i in drawn) for k in range(3)] for drawn in draws]
    assert resampled_sums(table, resamples, seed) == pytest.approx(np.array(expected), abs=1e-9)


def test_resamples_do_not_depend_on_how_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(1).normal(size=(37, 2))
    together = resampled_sums(table, 100, 5)
    monkeypatch.setattr(module, "ROOM", 37 * 7)
    assert resampled_sums(table, 100, 5) == pytest.approx(together, abs=1e-12)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    # tokens and the loss of each are independent here: the true figure is the mean loss, 2
    covered = 0
    for seed in range(300):
        figure = figures(columns(80, seed), resamples=300, confidence=0.9, seed=seed)
        low, high = ends(figure["nats_per_token"])
        covered += low <= 2.0 <= high
    assert 0.83 <= covered / 300 <= 0.95  # 0.9, less what the percentile method is short of


def test_a_higher_confidence_is_a_wider_interval() -> None:
    narrow, wide = (
        figures(columns(60), resamples=500, confidence=c, seed=1)["bits_per_byte"]
        for c in (0.5, 0.99)
    )
    (low, high), (lowest, highest) = ends(narrow), ends(wide)
    assert lowest < low < narrow.value < high < highest


def test_one_document_has_no_interval() -> None:
    found = figures(columns(1), resamples=100, confidence=0.95, seed=1)
    assert all(figure.low is None and figure.high is None for figure in found.values())


def test_a_difference_is_paired() -> None:
    table = columns(60)
    table["other_nats"] = table["nats"] - 0.01 * table["tokens"]
    table["more_nats"] = table["other_nats"] - table["nats"]
    found = figures(table, resamples=200, confidence=0.95, seed=1)
    difference = found["difference_in_nats_per_token"]
    # the same on every document, so certain, however much the documents differ
    assert difference.value == pytest.approx(-0.01)
    assert np.ptp(ends(difference)) < 1e-9
    assert np.ptp(ends(found["nats_per_token"])) > 0.1
    other = found["other_nats_per_token"].value
    assert other == pytest.approx(found["nats_per_token"].value - 0.01)


def test_other_tokens_are_not_compared_by_the_token() -> None:
    table = columns(20)
    table |= {"other_nats": table["nats"], "more_nats": 0 * table["nats"]}
    table["other_tokens"] = 2 * table["tokens"]
    found = figures(table, resamples=10, confidence=0.95, seed=1)
    assert "difference_in_nats_per_token" not in found
    assert found["other_nats_per_token"].value == found["nats_per_token"].value / 2


def test_the_gap_is_the_loss_less_the_floor() -> None:
    table = columns(20)
    table["floor"] = 0.75 * table["nats"]
    found = figures(table, resamples=50, confidence=0.95, seed=1)
    assert found["gap"].value == pytest.approx(found["nats_per_token"].value / 4)
    assert found["floor"].value == pytest.approx(0.75 * found["nats_per_token"].value)


def test_what_overflows_is_no_number_of_json() -> None:
    table = {name: np.array([2000.0, 2000.0]) for name in ("nats", "tokens", "bytes", "characters")}
    table["tokens"] = np.ones(2)
    found = figures(table, resamples=10, confidence=0.95, seed=1)
    assert found["perplexity"].data() == {"value": None, "low": None, "high": None}


@pytest.mark.parametrize(("part", "whole"), [(0, 20), (20, 20), (7, 20), (150, 200)])
def test_the_interval_of_a_share_solves_wilsons_equation(part: int, whole: int) -> None:
    figure = share(part, whole, 0.95)
    p, z = part / whole, 1.959963984540054
    low, high = ends(figure)
    assert 0 <= low <= p <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:  # |p - bound| is z standard errors as they are at the bound
            assert abs(p - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / whole))


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Figure(-0.03, -0.04, -0.02), "B is better by 0.0300 bits per byte (0.0200 to 0.0400)"),
        (Figure(0.03, 0.02, 0.04), "A is better by 0.0300 bits per byte (0.0200 to 0.0400)"),
        (Figure(0.01, -0.02, 0.04), "no difference that these documents could show"),
        (Figure(0.0, 0.0, 0.0), "the two are equal"),
        (Figure(-0.03), "there is no interval"),
    ],
)
def test_the_verdict(difference: Figure, words: str) -> None:
    assert words in verdict(difference, ("A", "B"))


def test_draws_are_seeded() -> None:
    table = np.array([[random.Random(i).random()] for i in range(9)])
    assert (resampled_sums(table, 9, 1) == resampled_sums(table, 9, 1)).all()
    assert (resampled_sums(table, 9, 1) != resampled_sums(table, 9, 2)).any()

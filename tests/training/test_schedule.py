"""The learning rate over steps: its shape, its range, its corners."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigpt.config import OptimConfig
from minigpt.training.schedule import learning_rate

SCHEDULES = ("cosine", "linear", "wsd", "constant")


def optim(**changes: Any) -> OptimConfig:
    common: dict[str, Any] = {"lr": 1e-3, "warmup_steps": 100, "decay_steps": 2000}
    return OptimConfig(**common | changes)


def test_the_frozen_recipe_warms_up_then_falls_to_a_tenth() -> None:
    recipe = optim(min_lr_ratio=0.1)
    rates = [learning_rate(step, recipe) for step in (0, 99, 100, 1050, 2000, 5000)]
    assert rates == pytest.approx([1e-3 / 101, 1e-3 * 100 / 101, 1e-3, 5.5e-4, 1e-4, 1e-4])


def test_wsd_holds_then_falls_over_the_last_fifth() -> None:
    flat = optim(schedule="wsd", warmup_steps=0, decay_steps=1000, min_lr_ratio=0.0)
    rates = [learning_rate(step, flat) for step in (0, 500, 800, 900, 1000)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3, 5e-4, 0.0])


@given(
    schedule=st.sampled_from(SCHEDULES),
    warmup=st.integers(0, 50),
    decay=st.integers(1, 50),
    floor=st.floats(0.0, 1.0),
    step=st.integers(0, 200),
)
def test_every_rate_is_in_range_and_the_first_is_above_zero(
    schedule: str, warmup: int, decay: int, floor: float, step: int
) -> None:
    config = optim(
        schedule=schedule, warmup_steps=warmup, decay_steps=decay, min_lr_ratio=floor, lr=0.5
    )
    low = 0.0 if step < warmup else 0.5 * floor
    assert low - 1e-12 <= learning_rate(step, config) <= 0.5 + 1e-12
    if warmup or decay > 1 or floor:
        assert learning_rate(0, config) > 0


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_a_run_of_one_step_learns(warmup: int) -> None:
    assert learning_rate(0, optim(warmup_steps=warmup, decay_steps=1)) > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_warm_up_the_rate_never_rises(schedule: str) -> None:
    config = optim(schedule=schedule)
    rates = [learning_rate(step, config) for step in range(100, 2100)]
    assert rates == sorted(rates, reverse=True)

"""The settings that follow from the model and the device."""

import dataclasses
from typing import Any

import pytest

from minigpt.checkpoint import settings_of
from minigpt.config import ModelConfig, OptimConfig, TrainConfig, TrainerConfig, plain
from minigpt.defaults import Device, fill
from minigpt.errors import InputError

CPU = Device("cpu", "CPU", 1, fast_bf16=False)


@pytest.mark.parametrize(
    ("width", "settings", "expected"),
    [
        (128, {}, "muon"),
        (384, {}, "muon"),
        (768, {}, "adamw"),
        (128, {"init_from": "runs/other"}, "adamw"),
        (128, {"optim": OptimConfig(kind="adamw")}, "adamw"),
        (768, {"optim": OptimConfig(kind="muon")}, "muon"),
    ],
)
def test_the_optimizer_follows_from_the_width_and_the_origin(
    width: int, settings: dict[str, Any], expected: str
) -> None:
    config = TrainConfig(model=ModelConfig(n_embd=width), **settings)
    assert fill(config, CPU).optim.kind == expected


@pytest.mark.parametrize(
    ("width", "kind", "rate"),
    [(8, "muon", 4e-3), (384, "muon", 2.3e-3), (1536, "muon", 1.15e-3), (384, "adamw", 1.3e-3)],
)
def test_the_rate_falls_with_the_width_or_for_muon_with_its_root(
    width: int, kind: str, rate: float
) -> None:
    config = TrainConfig(model=ModelConfig(n_embd=width), optim=OptimConfig(kind=kind))
    assert fill(config, CPU).optim.lr == pytest.approx(rate, rel=0.01)
    tuned = dataclasses.replace(config, init_from="runs/other")
    assert fill(tuned, CPU).optim.lr == pytest.approx(rate / 10, rel=0.01)


def test_whole_matrices_cannot_be_had_from_fsdp() -> None:
    trainer = TrainerConfig(strategy="fsdp")
    device = Device("cuda", "GPU", 2, fast_bf16=True)
    assert fill(TrainConfig(trainer=trainer), device).optim.kind == "adamw"
    with pytest.raises(InputError, match=r"optim\.kind=muon"):
        fill(TrainConfig(trainer=trainer, optim=OptimConfig(kind="muon")), device)


def test_a_run_from_before_the_choice_had_adamw() -> None:
    config = plain(fill(TrainConfig(), CPU))
    assert settings_of({"config": config}).optim.kind == "muon"
    del config["optim"]["kind"], config["optim"]["momentum"]
    assert settings_of({"config": config}).optim.kind == "adamw"

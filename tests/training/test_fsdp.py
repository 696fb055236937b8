"""FSDP, where there is a CUDA GPU: the losses of one process, and one kind of checkpoint."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.run_folder import LAST
from minigpt.training.sharding import clip_gradient, whole_model
from tests.conftest import Train

PROJECT = Path(__file__).resolve().parents[2]


def test_without_fsdp_the_gradient_is_clipped_and_the_model_is_itself() -> None:
    wrapped = nn.Module()
    wrapped.model = model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=4, block_size=4), 5)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    norm = clip_gradient(wrapped, model.parameters(), 0.5)
    assert norm.item() == pytest.approx(model.parameter_count() ** 0.5)
    gradients = [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    assert torch.stack(gradients).norm().item() == pytest.approx(0.5, rel=1e-5)
    assert whole_model(wrapped, model) is model


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="FSDP divides a model over CUDA GPUs")
def test_fsdp_trains_as_one_process_and_goes_on_both_ways(train: Train, tmp_path: Path) -> None:
    settings = [each for each in train.settings if not each.startswith("trainer.accelerator")]
    settings += ["trainer.accelerator=gpu", "trainer.precision=32-true", "saving.keep=9",
                 "trainer.max_steps=40", "trainer.val_check_interval=20"]  # fmt: skip
    fsdp = ("trainer.strategy=fsdp", "trainer.devices=2")
    alone = ("trainer.strategy=auto", "trainer.devices=1")

    def losses(name: str, *more: str) -> list[float]:
        command = [sys.executable, str(PROJECT / "train.py"), *settings, *more]
        done = subprocess.run(
            [*command, f"run_dir={tmp_path / name}"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return Train.losses(tmp_path / name)

    def middle(name: str) -> str:
        return f"resume={tmp_path / name / LAST.parent / 'step_00000020.ckpt'}"

    expected = losses("alone", *alone)
    assert losses("fsdp", *fsdp) == pytest.approx(expected, rel=1e-4)
    assert losses("fsdp_alone", *alone, middle("fsdp")) == pytest.approx(expected[20:], rel=1e-4)
    assert losses("alone_fsdp", *fsdp, middle("alone")) == pytest.approx(expected[20:], rel=1e-4)

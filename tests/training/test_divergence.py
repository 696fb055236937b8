"""Numbers that are no numbers end the run, the layer is named, and nothing good is lost."""

import math
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  (Lightning's own name for it)
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from minigpt import defaults
from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.config import OptimConfig, from_plain
from minigpt.model.block import MLP
from minigpt.run_folder import LAST
from minigpt.training import lightning_module
from minigpt.training.divergence import Health, SpikeWatch
from minigpt.training.metrics_file import column, read_metrics
from minigpt.training.schedule import learning_rate
from tests.conftest import Train

COMMON = ("trainer.max_steps=12", "trainer.val_check_interval=4", "saving.every_n_steps=2")


class BadGradient(torch.autograd.Function):
    """The identity, with a gradient that is not a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0] * math.nan


def break_mlp(monkeypatch: pytest.MonkeyPatch, *, after: int, backward: bool) -> None:
    """From a number of training passes on, the second block's MLP gives no numbers."""
    sound, calls = MLP.forward, 0

    def broken(self: MLP, x: Tensor) -> Tensor:
        nonlocal calls
        y = sound(self, x)
        counts = self.training and not isinstance(x, FakeTensor)  # which the plan looks at
        calls += counts
        if counts and calls > after and calls % 2 == 0:  # two blocks: the second one
            return BadGradient.apply(y) if backward else y / 0
        return y

    monkeypatch.setattr(MLP, "forward", broken)


@pytest.mark.parametrize(
    ("backward", "named"),
    [(False, "the output of blocks.1.mlp"), (True, "the gradient of blocks.1.mlp.down.bias")],
    ids=["forward", "backward"],
)
def test_the_run_ends_at_the_step_with_the_layer_named_and_can_go_on(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    backward: bool,
    named: str,
) -> None:
    straight, run = tmp_path / "straight", tmp_path / "run"
    assert train(*COMMON, f"run_dir={straight}") == 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_mlp(monkeypatch, after=2 * 6, backward=backward)  # two blocks a step, six good steps
        assert train(*COMMON, f"run_dir={run}") == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("error: step 7: ")
    assert named in message
    assert "the checkpoints from before stay" in message
    assert [step for step, _ in column(read_metrics(run / "metrics.csv"), "train_loss")][-1] == 6
    saved = read_checkpoint(run / LAST)
    assert saved["global_step"] == 6
    assert all(bool(torch.isfinite(each).all()) for each in saved["state_dict"].values())
    assert train(f"resume={run}") == 0
    assert train.losses(run) == train.losses(straight)


def test_an_update_that_ruins_the_weights_is_told_before_anything_was_saved(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("optim.lr=1e30", "optim.grad_clip=0", "optim.warmup_steps=0")
    assert train(f"run_dir={tmp_path / 'run'}", "trainer.max_steps=50", *settings) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "step 2: " in message
    assert "the output of blocks.0.norm_1" in message
    assert "nothing was saved yet" in message
    assert "optim.lr" in message


def test_weights_stay_as_they_were_however_late_somebody_looks() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    health = Health(torch.device("cpu"))
    states: list[Tensor] = []
    for gradient in (1.0, 2.0, math.inf, 1.0, 1.0):
        weight.grad = torch.full((3,), gradient)
        health.note(weight.grad.norm())
        optimizer.found_inf = health.broken  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()
        states.append(weight.detach().clone())
    assert health.bad_step() == 2  # healthy ones before it
    assert not torch.equal(states[0], states[1])
    assert torch.equal(states[1], states[4])
    assert optimizer.state[weight]["step"] == 2


def test_float16_counts_the_updates_it_leaves_out_and_the_schedule_waits(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = L.Trainer

    def trainer_with_float16_on_a_cpu(**arguments: Any) -> L.Trainer:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
        arguments["plugins"].append(MixedPrecision("16-mixed", "cpu", scaler))
        return real(**arguments | {"precision": None})

    monkeypatch.setattr(L, "Trainer", trainer_with_float16_on_a_cpu)
    monkeypatch.setattr(defaults, "_precision", lambda asked, _: asked)
    run = tmp_path / "run"
    assert train("trainer.precision=16-mixed", "trainer.max_steps=30", f"run_dir={run}") == 0
    rows = read_metrics(run / "metrics.csv")
    skipped = dict(column(rows, "skipped_steps"))
    assert skipped[30] > 0
    assert skipped[1] == 1  # the first scale is far too large
    record = read_checkpoint(run / LAST)[RECORD]
    assert record["skipped_steps"] == skipped[30]
    optim = from_plain(OptimConfig, record["config"]["optim"])
    for step, rate in column(rows, "lr"):
        assert rate == learning_rate(step - 1 - int(skipped.get(step - 1, 0)), optim)
    assert train.losses(run)[-1] < train.losses(run)[0]


def test_a_jump_of_the_loss_is_reported_once(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rate(step: int, optim: OptimConfig) -> float:
        return learning_rate(step, optim) * (300 if step == 30 else 1)

    monkeypatch.setattr(lightning_module, "learning_rate", rate)
    assert train(f"run_dir={tmp_path / 'run'}", "trainer.max_steps=36", "optim.grad_clip=0") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "jumped" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: step 32: the training loss jumped to ")


@given(
    level=st.floats(0.1, 12), scatter=st.floats(0, 0.2), seed=st.integers(0, 999),
    jump=st.floats(0.6, 9),
)  # fmt: skip
def test_scatter_is_no_jump_and_a_jump_is(
    level: float, scatter: float, seed: int, jump: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    noise = (torch.rand(60, generator=generator) * 2 - 1) * scatter
    losses = [level - 0.001 * step + each for step, each in enumerate(noise.tolist())]
    watch = SpikeWatch(losses[:20])
    assert [watch.usual(loss) for loss in losses[20:]] == [None] * 40
    usual = watch.usual(level + 20 * scatter + jump)
    assert usual == pytest.approx(level, abs=scatter + 0.1)
    assert watch.usual(level + 20 * scatter + jump) is None

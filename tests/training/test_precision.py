"""Each precision trains to the same losses within its rounding; an impossible one is refused."""

from pathlib import Path

import pytest
import torch

from minigpt.checkpoint import load_model
from minigpt.config import TrainConfig, TrainerConfig
from minigpt.defaults import Device, fill
from minigpt.errors import InputError
from minigpt.run_folder import LAST
from tests.conftest import Train

CPU = Device("cpu", "CPU", 1, fast_bf16=False)
NEW_GPU = Device("cuda", "new GPU", 1, fast_bf16=True)
OLD_GPU = Device("cuda", "old GPU", 1, fast_bf16=False)
MPS = Device("mps", "Apple GPU", 1, fast_bf16=False)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 2e-2), ("64-true", 1e-5)])
def test_a_run_in_it_has_the_losses_of_float32(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    precision: str,
    tolerance: float,
) -> None:
    runs = [tmp_path / "single", tmp_path / "other"]
    settings = ("data.layout=padded", "trainer.max_steps=30", "trainer.accumulate_grad_batches=2")
    assert train(*settings, f"run_dir={runs[0]}") == 0
    capsys.readouterr()
    assert train(*settings, f"run_dir={runs[1]}", f"trainer.precision={precision}") == 0
    (line,) = (x for x in capsys.readouterr().err.splitlines() if x.startswith("device:"))
    assert line.endswith(precision)
    mine, reference = train.losses(runs[1]), train.losses(runs[0])
    assert mine == pytest.approx(reference, rel=tolerance)
    assert mine != reference
    more = (*settings, "trainer.max_steps=32", "trainer.precision=32-true")
    assert train(f"resume={runs[1]}", *more) == 0
    weights = load_model(runs[1] / LAST).model.state_dict().values()
    assert {each.dtype for each in weights} == {torch.float32}


@pytest.mark.parametrize(
    ("device", "chosen"),
    [(CPU, "32-true"), (NEW_GPU, "bf16-mixed"), (OLD_GPU, "16-mixed"), (MPS, "32-true")],
    ids=lambda value: value.name if isinstance(value, Device) else None,
)
def test_it_is_chosen_for_the_device(device: Device, chosen: str) -> None:
    assert fill(TrainConfig(), device).trainer.precision == chosen


@pytest.mark.parametrize(
    ("device", "asked", "right"),
    [
        (CPU, "16-mixed", "32-true"),
        (MPS, "16-mixed", "32-true"),
        (MPS, "bf16-mixed", "32-true"),
        (MPS, "64-true", "32-true"),
        (OLD_GPU, "bf16-mixed", "16-mixed"),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else None,
)
def test_an_impossible_one_is_refused_in_a_line(device: Device, asked: str, right: str) -> None:
    config = TrainConfig(trainer=TrainerConfig(precision=asked))
    with pytest.raises(InputError) as caught:
        fill(config, device)
    message = str(caught.value)
    assert message.startswith(f"trainer.precision={asked}: ")
    assert device.name in message or "Apple GPU" in message
    assert right in message
    assert "\n" not in message

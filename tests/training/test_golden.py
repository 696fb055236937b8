"""The first steps of a few runs, to the digit: a refactor may not move them."""

from pathlib import Path

import pytest

from tests.conftest import Train

PACKED = (
    2.96082, 2.91277, 2.81735, 2.80465, 2.78431, 2.73405, 2.71522, 2.60742, 2.55250, 2.51562,
    2.37018, 2.44776, 2.47339, 2.40546, 2.37584, 2.41126, 2.31388, 2.32923, 2.24605, 2.35363,
)  # fmt: skip

#: The same by the default optimizer of a small model, Muon.
WITH_MUON = (
    2.96082, 2.92003, 2.82840, 2.80601, 2.80188, 2.78205, 2.77344, 2.67895, 2.65003, 2.63334,
    2.52705, 2.60939, 2.60947, 2.57321, 2.51454, 2.54956, 2.45385, 2.45253, 2.42416, 2.55030,
)  # fmt: skip

#: Padded rows, sines, norms after the sums, dropout, two micro-batches a step.
OTHERWISE = (
    2.93940, 2.89792, 2.84930, 2.79684, 2.73339, 2.69618, 2.69180, 2.67546, 2.54719, 2.60408,
    2.53508, 2.57687, 2.50180, 2.47781, 2.49862, 2.46254, 2.62047, 2.44379, 2.51200, 2.38624,
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "losses"),
    [
        (("optim=adamw",), PACKED),
        ((), WITH_MUON),
        (
            (
                "optim=adamw",
                "data.layout=padded",
                "model.position=sinusoidal",
                "model.norm_order=post",
                "model.dropout=0.1",
                "trainer.accumulate_grad_batches=2",
            ),
            OTHERWISE,
        ),
    ],
)
def test_the_first_steps_are_what_they_were(
    train: Train, tmp_path: Path, settings: tuple[str, ...], losses: tuple[float, ...]
) -> None:
    run = tmp_path / "run"
    recipe = ("seed=1", "optim.min_lr_ratio=0.1", "optim.momentum=0.9")
    assert train(f"run_dir={run}", f"trainer.max_steps={len(losses)}", *recipe, *settings) == 0
    # another CPU's kernels may round otherwise, and twenty steps carry that up to here
    assert train.losses(run) == pytest.approx(losses, abs=1e-4)

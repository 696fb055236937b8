"""The trackers get the run's numbers, and never need an account or a network."""

from pathlib import Path

import pytest

from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.run_folder import LAST
from tests.conftest import Train


def test_tensorboard_gets_what_metrics_csv_gets(train: Train, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingTypeStubs]
        EventAccumulator,
    )

    run = tmp_path / "run"
    assert train("logger=tensorboard", f"run_dir={run}", "trainer.max_steps=4") == 0
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    logged = events.Scalars("train_loss")
    assert [event.step for event in logged] == [1, 2, 3, 4]
    assert [event.value for event in logged] == pytest.approx(train.losses(run), rel=1e-6)
    assert [event.step for event in events.Scalars("val_loss")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_wandb_without_a_key_works_offline_and_says_so(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    run = tmp_path / "run"
    common = ("logger=wandb", "optim.decay_steps=6")
    assert train(*common, f"run_dir={run}", "trainer.max_steps=3") == 0
    assert "W&B works offline" in capsys.readouterr().err
    first = read_checkpoint(run / LAST)[RECORD]["run_id"]
    assert train(*common, f"resume={run}", "trainer.max_steps=6") == 0
    assert read_checkpoint(run / LAST)[RECORD]["run_id"] == first
    assert list((run / "wandb").glob(f"offline-run-*-{first}/*.wandb"))

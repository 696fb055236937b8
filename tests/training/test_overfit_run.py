"""The smoke test: one batch is learned by heart and recited, or the status is 1."""

import json
from pathlib import Path

import pytest

from tests.conftest import Train

WIDE = ("experiment=overfit", "model.n_embd=64", "model.block_size=64", "optim.lr=0.003")


def test_one_batch_is_learned_and_recited(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*WIDE, f"run_dir={tmp_path / 'run'}") == 0
    said = capsys.readouterr().err
    assert "the floor of this batch is 0.00000" in said
    assert "recites the rest of the document" in said
    assert train.losses(tmp_path / "run")[-1] < 0.01
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["val_loss"] < 0.01
    assert summary["floor_loss"] < 0.001
    capsys.readouterr()
    assert train(*WIDE, f"resume={tmp_path / 'run'}") == 0
    assert "nothing to do" in capsys.readouterr().err


def test_a_batch_that_is_not_learned_is_a_failure(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*WIDE, f"run_dir={tmp_path / 'run'}", "trainer.max_steps=3") == 1
    assert "was not learned by heart" in capsys.readouterr().err.splitlines()[-1]

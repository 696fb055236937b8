"""Law 10: the same command with the same seed on the same CPU gives the same run."""

from pathlib import Path
from typing import Any

import torch

from minigpt.checkpoint import read_checkpoint
from minigpt.run_folder import LAST
from minigpt.training.metrics_file import TIMING_FIELDS, read_metrics
from tests.conftest import Train


def run(train: Train, folder: Path, seed: int) -> tuple[dict[str, torch.Tensor], list[Any]]:
    status = train(
        f"run_dir={folder}",
        f"seed={seed}",
        "trainer.max_steps=8",
        "model.dropout=0.3",
        "trainer.accumulate_grad_batches=2",
    )
    assert status == 0
    metrics = [
        [value for name, value in row.items() if name not in TIMING_FIELDS]
        for row in read_metrics(folder / "metrics.csv")
    ]
    return read_checkpoint(folder / LAST)["state_dict"], metrics


def test_the_seed_is_the_run(train: Train, tmp_path: Path) -> None:
    first, first_metrics = run(train, tmp_path / "first", seed=5)
    torch.rand(100)  # what was drawn before a run has no part in it
    second, second_metrics = run(train, tmp_path / "second", seed=5)
    other, other_metrics = run(train, tmp_path / "other", seed=6)
    assert first_metrics == second_metrics
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first_metrics != other_metrics
    assert not torch.equal(first["model.embedding.weight"], other["model.embedding.weight"])

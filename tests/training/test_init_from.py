"""init_from: a new run starts from the weights and the tokenizer of another."""

from pathlib import Path

import pytest

from minigpt.run_folder import LAST
from minigpt.training.metrics_file import column, read_metrics
from tests.conftest import Train


def test_a_new_run_starts_where_another_ended(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(f"run_dir={first}", "trainer.max_steps=40", "model.n_layer=1") == 0
    own = train.only(lambda each: not each.startswith(("model.", "tokenizer")))
    assert own(f"init_from={first}", f"run_dir={second}", "trainer.max_steps=2") == 0
    assert train.losses(second)[0] < train.losses(first)[0] - 0.3
    validation = column(read_metrics(second / "metrics.csv"), "val_loss")
    assert [step for step, _ in validation] == [1, 2]
    assert (second / LAST).is_file()
    capsys.readouterr()
    assert train(f"init_from={first}", "trainer.max_steps=2") == 2
    assert "brings its own" in capsys.readouterr().err

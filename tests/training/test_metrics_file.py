"""metrics.csv: on the disk at once, cut back on a resume."""

from pathlib import Path

import pytest

from minigpt.training.metrics_file import MetricsFile, column, read_metrics
from tests.conftest import Train

FIELDS = ("step", "train_loss", "val_loss")


def test_lines_are_on_the_disk_as_soon_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = MetricsFile(path, FIELDS, last_step=0)
    metrics.append({"step": 10, "train_loss": 0.1 + 0.2})
    metrics.append({"step": 10, "val_loss": 2.5})
    rows = read_metrics(path)
    assert column(rows, "train_loss") == [(10, 0.1 + 0.2)]
    assert column(rows, "val_loss") == [(10, 2.5)]
    metrics.close()


def test_a_resumed_run_keeps_its_past_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = MetricsFile(path, FIELDS, last_step=0)
    for step in (10, 20, 30):
        first.append({"step": step, "train_loss": float(step)})
    first.close()
    with path.open("a", encoding="utf-8") as file:
        file.write("4")  # cut short by a kill
    second = MetricsFile(path, FIELDS, last_step=20)
    second.append({"step": 30, "train_loss": 31.0})
    second.close()
    assert column(read_metrics(path), "train_loss") == [(10, 10.0), (20, 20.0), (30, 31.0)]


def test_an_older_run_goes_on_with_a_column_more(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train_loss\n5,1.0\n", encoding="utf-8")
    metrics = MetricsFile(path, ("step", "train_loss", "real_share", "val_loss"), last_step=5)
    metrics.append({"step": 6, "train_loss": 0.5, "real_share": 0.75})
    metrics.close()
    assert path.read_text(encoding="utf-8").splitlines() == [
        *("step,train_loss,real_share,val_loss", "5,1.0,,", "6,0.5,0.75,")
    ]
    assert column(read_metrics(path), "real_share") == [(6, 0.75)]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_the_share_of_real_positions_is_logged(
    train: Train, tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    settings = ("trainer.max_steps=5", "data.batch_size=12", f"data.layout={layout}")
    assert train(*settings, "trainer.accumulate_grad_batches=2", f"run_dir={run}") == 0
    shares = [share for _, share in column(read_metrics(run / "metrics.csv"), "real_share")]
    assert len(shares) == 5
    assert ("real tokens" in capsys.readouterr().err) == (layout == "padded")
    if layout == "packed":  # where the stream's last window is short
        assert min(shares) > 0.9
        assert shares.count(1.0) >= 3
    else:
        assert all(0.5 < share < 1 for share in shares)


def test_a_new_run_starts_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,train_loss\n5,1.0\n", encoding="utf-8")
    MetricsFile(path, FIELDS, last_step=0).close()
    assert read_metrics(path) == []
    assert read_metrics(tmp_path / "none.csv") == []

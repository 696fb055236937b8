"""A sweep: a run a job, each as if it were alone, and a table of them at the end."""

import json
from pathlib import Path

import pytest

from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.run_folder import LAST, LATEST, latest_run
from minigpt.sweep import Job, sweep_table
from minigpt.training.metrics_file import TIMING_FIELDS, read_metrics
from tests.conftest import Train


def measured(folder: Path) -> list[dict[str, str]]:
    """The lines of a run's metrics without what a clock has told."""
    rows = read_metrics(folder / "metrics.csv")
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in rows]


def table(said: str) -> list[list[str]]:
    """The cells of the table at the end of what was said, its title left out."""
    lines = [line.split() for line in said.splitlines()]
    title = next(i for i in reversed(range(len(lines))) if lines[i][:2] == ["job", "settings"])
    return lines[title + 1 :]


@pytest.fixture
def bare(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """The program in small without a learning rate, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return train.only(lambda each: not each.startswith("optim.lr"))


def test_two_settings_are_two_runs_and_a_table(
    bare: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("trainer.max_steps=6", "model.dropout=0.1", "logger=tensorboard")
    assert bare(*common, "-m", "optim.lr=1e-9,1e-2") == 0
    first, second = table(capsys.readouterr().err)
    sweep = Path(second[5]).parent
    assert sweep.parent == Path("runs")
    assert first[:3] == ["*", "1", "optim.lr=0.01"]
    assert second[:2] == ["0", "optim.lr=1e-09"]
    assert latest_run() == (sweep / "1").resolve()
    assert LATEST.is_symlink()
    for number, row in ((1, first[3:]), (0, second[2:])):
        summary = json.loads((sweep / str(number) / "summary.json").read_text())
        assert row == [
            f"{summary['val_loss']:.4f}", f"{summary['val_bits_per_byte']:.4f}",
            f"{summary['tokens_per_second']:,.0f}", str(sweep / str(number)), "done",
        ]  # fmt: skip
        assert list((sweep / str(number)).rglob("events.out.tfevents*"))
        record = read_checkpoint(sweep / str(number) / LAST)[RECORD]
        assert record["config"]["logger"]["name"] == ("optim.lr=0.01", "optim.lr=1e-09")[1 - number]
    assert bare(*common, "optim.lr=1e-2", "run_dir=alone") == 0
    assert measured(sweep / "1") == measured(Path("alone"))


def test_a_sweep_goes_on_in_its_folders(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    bare = train.only(lambda each: not each.startswith("optim.lr"))
    common = ("optim.decay_steps=6", "trainer.val_check_interval=2", "run_dir=sweep")
    assert bare(*common, "trainer.max_steps=4", "-m", "optim.lr=1e-3,1e-2") == 0
    assert bare(*common, "trainer.max_steps=6", "-m", "optim.lr=1e-3,1e-2") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        "error: run_dir=sweep/0: holds a checkpoint already; add resume=auto to go on with it,"
        " or name another folder"
    )
    again = (*common, "resume=auto", "-m", "optim.lr=1e-3,1e-2,3e-2")
    assert bare(*again, "trainer.max_steps=6") == 0
    said = capsys.readouterr().err
    assert "4 of sweep/0/checkpoints/last.ckpt; trainer.max_steps: 4 -> 6\n" in said
    assert "4 of sweep/1/checkpoints/last.ckpt; trainer.max_steps: 4 -> 6\n" in said
    assert "resume=auto: there is no checkpoint yet; a new run begins" in said
    for number, rate in enumerate((1e-3, 1e-2, 3e-2)):
        contents = read_checkpoint(tmp_path / "sweep" / str(number) / LAST)
        assert contents["global_step"] == 6
        assert contents[RECORD]["config"]["optim"]["lr"] == rate
    assert bare(*again, "trainer.max_steps=6") == 0  # all are at their end: nothing but the table
    rows = table(capsys.readouterr().err)
    assert sorted(row[-1] for row in rows) == ["done"] * 3


def test_one_that_fails_stops_no_other(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ("optim.grad_clip=0", "optim.warmup_steps=0", "trainer.max_steps=20")
    assert train(*bad, f"run_dir={tmp_path}", "-m", "optim.lr=1e30,1e-2") == 1
    good, failed = table(capsys.readouterr().err)
    assert good[:3] == ["*", "1", "optim.lr=0.01"]
    assert failed[:5] == ["0", "optim.lr=1e+30", "-", "-", "-"]
    assert failed[6] == "failed:"
    assert "not finite" in " ".join(failed[7:])


def write(folder: Path, summary: object) -> Path:
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def test_the_best_is_marked_and_first(tmp_path: Path) -> None:
    jobs = [
        Job("a", write(tmp_path / "0", {"val_loss": 1.0, "val_bits_per_byte": 3.0}), 0),
        Job("b", write(tmp_path / "1", {"val_loss": 2.0, "val_bits_per_byte": 2.0}), 0),
        Job("c", tmp_path / "2"),
        Job("d", write(tmp_path / "3", {"val_loss": 0.1, "val_bits_per_byte": 0.1}), 130),
    ]
    rows = table(sweep_table(jobs))
    assert [row[:3] for row in rows[:2]] == [["*", "1", "b"], ["0", "a", "1.0000"]]
    assert [row[:2] for row in rows[2:]] == [["2", "c"], ["3", "d"]]
    # without bits per byte for all of them, by the loss
    jobs.append(Job("e", write(tmp_path / "4", {"val_loss": 1.5, "val_bits_per_byte": None}), 0))
    rows = table(sweep_table(jobs))
    assert [row[:3] for row in rows[:3]] == [
        ["*", "0", "a"], ["4", "e", "1.5000"], ["1", "b", "2.0000"],
    ]  # fmt: skip


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"val_loss": "x"}', '{"val_loss": NaN}'])
def test_a_summary_that_cannot_be_read_leaves_its_numbers_out(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    assert table(sweep_table([Job("a", tmp_path, 0)])) == [
        ["0", "a", "-", "-", "-", str(tmp_path), "done"]
    ]

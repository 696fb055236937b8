"""Checkpoints are written beside training: the state of their step, once, or not at all."""

import os
import resource
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.run_folder import BEST, LAST, numbered_checkpoints
from minigpt.training import saving
from tests.conftest import Train
from tests.laws.test_law_07_resume import assert_same_bits

COMMON = ("trainer.max_steps=8", "trainer.val_check_interval=4", "saving.every_n_steps=2")


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of the checkpoints that are written, as they are."""
    steps: list[int] = []
    sound = saving.write_checkpoint

    def counted(path: Path, contents: dict[str, Any]) -> None:
        steps.append(contents[RECORD]["step"])
        sound(path, contents)

    monkeypatch.setattr(saving, "write_checkpoint", counted)
    return steps


@contextmanager
def files_of_at_most(size: int) -> Generator[None, None, None]:
    """A disk that takes no more bytes in a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_run_and_leaves_what_was_there(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(*COMMON, f"run_dir={run}", "optim.decay_steps=12") == 0
    before = {path: path.read_bytes() for path in run.glob("checkpoints/*")}
    capsys.readouterr()
    with files_of_at_most(20_000):
        assert train(f"resume={run}", "trainer.max_steps=12") == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"error: cannot write the checkpoint {run / 'checkpoints'}")
    assert {path: path.read_bytes() for path in run.glob("checkpoints/*")} == before
    assert not list(run.rglob("*.part"))
    assert train(f"resume={run}", "trainer.max_steps=12") == 0


@pytest.mark.parametrize("name", ["metrics.csv", "samples.txt"])
def test_what_cannot_be_written_beside_checkpoints_is_a_line_too(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to("/dev/full")
    assert train(*COMMON, f"run_dir={run}", "saving.every_n_steps=100") in {1, 2}
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert name in message
    assert "fault of the program" not in message


def test_one_writing_serves_all_names(train: Train, tmp_path: Path, saved: list[int]) -> None:
    run = tmp_path / "run"
    assert train(*COMMON, f"run_dir={run}", "saving.keep=2") == 0
    assert saved == [2, 4, 6, 8]
    assert (run / BEST).samefile(run / LAST)
    assert [path.name for path in numbered_checkpoints(run / "checkpoints")] == [
        "step_00000006.ckpt",
        "step_00000008.ckpt",
    ]


def test_a_file_system_without_links_gets_copies(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    run = tmp_path / "run"
    assert train(*COMMON, f"run_dir={run}") == 0
    assert not (run / BEST).samefile(run / LAST)
    assert (run / BEST).read_bytes() == (run / LAST).read_bytes()


def test_training_goes_on_while_a_file_is_written_and_the_file_has_its_step(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    settings = ("trainer.max_steps=8", "trainer.val_check_interval=100", "saving.keep=9")
    assert train(*settings, "saving.every_n_steps=2", f"run_dir={quick}") == 0
    sound, steps_meanwhile = saving.write_checkpoint, list[int]()

    def waits(path: Path, contents: dict[str, Any]) -> None:
        if contents[RECORD]["step"] == 2:
            deadline = time.monotonic() + 60
            while len(train.losses(slow)) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            steps_meanwhile.append(len(train.losses(slow)))
        sound(path, contents)

    monkeypatch.setattr(saving, "write_checkpoint", waits)
    assert train(*settings, "saving.every_n_steps=2", f"run_dir={slow}") == 0
    assert steps_meanwhile == [4]  # the next save waits for this one
    for mine, reference in zip(
        numbered_checkpoints(slow / "checkpoints"),
        numbered_checkpoints(quick / "checkpoints"),
        strict=True,
    ):
        for part in ("state_dict", "optimizer_states", "global_step"):
            assert_same_bits(read_checkpoint(mine)[part], read_checkpoint(reference)[part])


def test_what_a_kill_left_half_written_is_cleared(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(*COMMON, f"run_dir={run}") == 0
    (run / "checkpoints" / ".last.ckpt.0123.part").write_bytes(b"half")
    (run / ".metrics.csv.0123.part").write_bytes(b"half")
    assert train(f"resume={run}", "trainer.max_steps=9") == 0
    assert not list(run.rglob("*.part"))


def test_minutes_between_checkpoints(train: Train, tmp_path: Path, saved: list[int]) -> None:
    settings = ("trainer.max_steps=6", "trainer.val_check_interval=100")
    assert train(*settings, f"run_dir={tmp_path / 'a'}", "saving.every_minutes=1e-9") == 0
    assert saved == [1, 2, 3, 4, 5, 6]
    saved.clear()
    assert train(*settings, f"run_dir={tmp_path / 'b'}", "saving.every_minutes=60") == 0
    assert saved == [6]
    record = read_checkpoint(tmp_path / "b" / BEST)[RECORD]
    assert record["val_step"] == record["step"] == 6  # intervals beyond the run change no end

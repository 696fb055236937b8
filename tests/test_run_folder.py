"""A run is found again from wherever it lies."""

import shutil
from pathlib import Path

import pytest

from minigpt.errors import InputError
from minigpt.run_folder import (
    BEST,
    LAST,
    LATEST,
    check_run_dir,
    create_run_folder,
    find_checkpoint,
    latest_run,
    point_latest_at,
    run_folder_of,
)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make_run(folder: Path, *names: Path) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_runs_started_in_the_same_second_have_folders_of_their_own() -> None:
    folders = [create_run_folder("") for _ in range(3)]
    assert len({*folders}) == 3
    assert all(folder.is_dir() and folder.parent == Path("runs") for folder in folders)
    assert not set("=,(){}[]:' ") & set("".join(folder.name for folder in folders))


def test_a_folder_means_its_best_for_use_and_its_last_for_resuming() -> None:
    run = make_run(Path("a b=c"), BEST, LAST)
    assert find_checkpoint("a b=c") == run / BEST
    assert find_checkpoint("a b=c", for_resuming=True) == run / LAST
    assert find_checkpoint(str(run / LAST)) == run / LAST
    assert find_checkpoint(str(run / "checkpoints")) == run / BEST


def test_latest_moves_with_the_runs_folder(tmp_path: Path) -> None:
    run = make_run(create_run_folder(""), LAST)
    point_latest_at(run)
    assert find_checkpoint("") == (run / LAST).resolve()
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    assert latest_run() is None
    assert (tmp_path / "moved" / "latest" / LAST).is_file()


@pytest.mark.parametrize("links", [True, False])
def test_latest_with_and_without_symbolic_links(
    links: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not links:

        def refuse(*_: object) -> None:
            raise OSError("no links here")

        monkeypatch.setattr(Path, "symlink_to", refuse)
    inside = make_run(create_run_folder(""), LAST)
    outside = make_run(tmp_path / "elsewhere", LAST)
    for run in (inside, outside, inside):
        point_latest_at(run)
        assert LATEST.is_symlink() == links
        assert latest_run() == run.resolve()
        assert find_checkpoint("runs/latest") == run.resolve() / LAST
    shutil.rmtree(inside)
    assert latest_run() is None


@pytest.mark.parametrize(
    ("place", "says"),
    [("", "train one with"), ("nowhere", "no such"), ("empty", "no checkpoint in this folder")],
)
def test_no_checkpoint_says_how_to_make_one(place: str, says: str) -> None:
    Path("empty").mkdir()
    with pytest.raises(InputError, match=says) as caught:
        find_checkpoint(place)
    assert "train.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_with_a_checkpoint_is_not_taken_for_a_new_run() -> None:
    make_run(Path("taken"), LAST)
    with pytest.raises(InputError, match=r"run_dir=taken: .*resume=auto"):
        check_run_dir("taken")
    Path("file").write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="file is not a folder"):
        check_run_dir("file/below")
    check_run_dir("new/below")
    assert not Path("new").exists()


def test_a_checkpoint_knows_its_run() -> None:
    run = make_run(Path("run"), LAST)
    assert run_folder_of(run / LAST) == run.resolve()
    assert run_folder_of(Path("alone.ckpt")) is None


def test_a_run_elsewhere_does_without_a_pointer_that_cannot_be(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", LAST)
    Path("runs").write_text("a file")
    point_latest_at(run)
    assert latest_run() is None

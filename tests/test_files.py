"""Nothing half-written, and no slow work for a folder that cannot be written to."""

import errno
from pathlib import Path

import pytest

from minigpt.errors import InputError
from minigpt.files import check_folder, written_whole


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "made.txt"
    with written_whole(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_what_was_there_stays_if_the_writing_fails(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "made.txt"
    path.write_bytes(b"old")

    def fail() -> None:
        with written_whole(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_that_are_not_there_afterwards_are_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "made.txt", Path.replace

    def lose(temporary: Path, target: Path) -> Path:
        temporary.write_bytes(b"")
        return replace(temporary, target)

    monkeypatch.setattr(Path, "replace", lose)
    with pytest.raises(OSError, match="0 of 3 bytes"), written_whole(path) as file:
        file.write(b"new")


def test_a_folder_that_can_be_made_is_let_pass_and_not_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", "run_dir=a/b")
    assert not list(tmp_path.iterdir())


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match=r"^run_dir=x: .*file is not a folder"):
            check_folder(tmp_path / place, "run_dir=x")


@pytest.mark.parametrize("name", ["x" * 300, f"x/{'y' * 300}", "to_nothing", "to_itself/below"])
def test_a_folder_that_no_path_leads_to_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "to_nothing").symlink_to(tmp_path / "nothing")
    (tmp_path / "to_itself").symlink_to(tmp_path / "to_itself")
    with pytest.raises(InputError, match=r"^run_dir=x: "):
        check_folder(tmp_path / name, "run_dir=x")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="/proc is not there")
def test_a_file_system_that_takes_no_files_is_refused() -> None:
    with pytest.raises(InputError, match=r"^run_dir=/proc/run: /proc cannot be written to"):
        check_folder(Path("/proc/run"), "run_dir=/proc/run")

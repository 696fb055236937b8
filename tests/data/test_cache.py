"""A text is known by its contents, and a large one is not read again to be known."""

import json
import os
import time
from pathlib import Path

import pytest

from minigpt.data import cache
from minigpt.data.cache import digests_of, keep, recall
from minigpt.errors import InputError


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read, all of them large."""
    names: list[str] = []
    file_digest = cache.hashlib.file_digest

    def noted(file: object, kind: str) -> object:
        names.append(Path(file.name).name)  # type: ignore[attr-defined]
        return file_digest(file, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(cache.hashlib, "file_digest", noted)
    monkeypatch.setattr(cache, "LARGE", 1)
    return names


def redate(path: Path) -> None:
    """Give a file another date."""
    old = time.time() - 100
    os.utime(path, (old, old))


def test_a_file_that_nobody_wrote_to_is_not_read_again(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my.txt"
    file.write_text("one")
    monkeypatch.setattr(cache, "_SETTLED", -1)
    first = digests_of([file], tmp_path / "cache")
    assert digests_of([file], tmp_path / "cache") == first
    assert reads == ["my.txt"]
    times = file.stat()
    # of the same size, with its date put back: yet another text
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests_of([file], tmp_path / "cache") != first
    # moved and dated anew, and yet the same text
    file.write_text("one")
    file = file.rename(tmp_path / "other.txt")
    redate(file)
    assert digests_of([file], tmp_path / "cache") == first


def test_what_was_just_written_may_be_written_again(tmp_path: Path, reads: list[str]) -> None:
    file = tmp_path / "my.txt"
    file.write_text("one")
    digests_of([file], tmp_path / "cache")
    digests_of([file], tmp_path / "cache")
    assert reads == ["my.txt", "my.txt"]


def test_without_a_cache_that_can_be_written_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "my.txt").write_text("one")
    assert len(digests_of([tmp_path / "my.txt"], tmp_path / "file" / "cache")) == 1
    with pytest.raises(InputError, match=r"gone.txt: cannot be read: No such file"):
        digests_of([tmp_path / "gone.txt"], tmp_path)


def test_what_is_known_of_a_large_text_is_kept(tmp_path: Path) -> None:
    keep(tmp_path, "a" * 64, {"n": 1}, n_bytes=10)
    assert recall(tmp_path, "a" * 64) == {}
    keep(tmp_path, "a" * 64, {"n": 1}, n_bytes=10**9)
    assert recall(tmp_path, "a" * 64) == {"n": 1}
    (path,) = (tmp_path / "known").iterdir()
    path.write_text("{damaged")
    assert recall(tmp_path, "a" * 64) == {}


@pytest.mark.parametrize("damage", [5, [1, 2], None])
def test_a_damaged_list_of_files_is_no_obstacle(
    tmp_path: Path, reads: list[str], damage: object
) -> None:
    file = tmp_path / "my.txt"
    file.write_text("one")
    stat = file.stat()
    entry = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    (tmp_path / "files.json").write_text(json.dumps({str(file.resolve()): damage or entry}))
    assert len(digests_of([file], tmp_path)[0]) == 64
    assert reads == ["my.txt"]

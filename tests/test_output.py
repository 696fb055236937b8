"""A line is a line, and a file is written whole or not at all."""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import pytest

from minigpt.errors import InputError, RunError
from minigpt.json_lines import json_line
from minigpt.output import (
    check_output,
    prepare_standard_output,
    write_output,
)


def test_a_json_line_is_one_line_and_readable() -> None:
    values = {"text": "a\nb\r\u2028c\u2029d\x85e\x0b床😀"}
    line = json_line(values)
    assert len(line.splitlines()) == 1
    assert line.endswith("\n")
    assert "床😀" in line
    assert json.loads(line) == values


def test_a_file_gets_the_text_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("what was there before, and longer")
    write_output(str(path), "床\r\na\n")
    assert path.read_bytes() == "床\r\na\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_output(str(tmp_path / "link.txt"), "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_output(str(path), "text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    assert path.is_fifo()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="No space left"):
        write_output(str(path), "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_that_cannot_be_written_is_seen_before_the_work(tmp_path: Path) -> None:
    check_output("")
    check_output(str(tmp_path / "new.txt"))
    with pytest.raises(InputError, match="is a folder"):
        check_output(str(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        check_output(str(tmp_path / "none" / "out.txt"))


def test_standard_output_is_utf8_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    prepare_standard_output()
    write_output("", "床")
    assert raw.getvalue() == "床".encode()


def test_the_name_of_a_stream_gets_what_is_written_after_what_is_there(tmp_path: Path) -> None:
    """`output=/dev/stdout >> log` leaves what the log has."""
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as file:
        write_output(f"/proc/self/fd/{file.fileno()}", "text\n")
    assert log.read_text() == "before\ntext\n"


def test_a_name_as_long_as_a_file_can_have_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    check_output(str(path))
    write_output(str(path), "text")
    assert path.read_text() == "text"


def test_a_link_into_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none" / "file")
    with pytest.raises(InputError, match=r"the folder .*none does not exist"):
        check_output(str(tmp_path / "link"))


def test_a_closed_or_full_standard_output_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(RunError, match="cannot write to standard output: No space left"):
            write_output("", "text")
        monkeypatch.setattr(sys, "stdout", None)
        with pytest.raises(RunError, match="standard output is closed"):
            prepare_standard_output()
        with contextlib.suppress(OSError):
            full.close()

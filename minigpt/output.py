"""How results are shown: text or a line of JSON each, on standard output or in a file."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

from minigpt.errors import InputError, RunError
from minigpt.files import check_folder, written_whole


def prepare_standard_output() -> None:
    """Write UTF-8 as files do; a terminal of another encoding gets ? for what it cannot show.

    Raises `RunError` where it is closed.
    """
    _check_open()
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.isatty():
        sys.stdout.reconfigure(errors="replace")
    else:
        sys.stdout.reconfigure(encoding="utf-8")


def say(notice: str) -> None:
    """Show a notice beside the output, on standard error."""
    sys.stderr.write(notice + "\n")
    sys.stderr.flush()


def check_output(output: str, *, key: str = "output") -> None:
    """See before the work that the file a setting names can be written; "" is standard output."""
    path = Path(output)
    if not output:
        return
    if path.is_dir():
        raise InputError(f"{key}={output}: is a folder; name a file")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise InputError(f"{key}={output}: the folder {folder} does not exist")
    if not path.exists():
        check_folder(folder, f"{key}={output}")
    elif not os.access(path, os.W_OK):
        raise InputError(f"{key}={output}: cannot be written to")


def beginning_of_page(title: str) -> str:
    """How a report begins, by which it is known again."""
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'


def check_replaced(output: str, begins: str, *, key: str, kind: str) -> None:
    """`check_output`, and that a file which is there already begins as its own kind does."""
    check_output(output, key=key)
    path = Path(output)
    if not output or not path.is_file():
        return
    with path.open("rb") as file:
        if file.read(len(begins)) not in (begins.encode(), b""):
            raise InputError(f"{key}={output}: is there already and is no {kind}; name another")


def write_output(output: str, text: str) -> None:
    """Write a text as `opened_output` does."""
    with opened_output(output) as write:
        write(text)


@contextlib.contextmanager
def opened_output(output: str) -> Generator[Callable[[str], object], None, None]:
    """Something that writes to standard output, or to a file which gets all of it or none.

    A device or a pipe gets it as it comes. Raises `RunError` where that cannot be done.
    """
    if not output:
        yield _write_and_flush
        return
    path = Path(output)
    # /dev/stdout may be a link to a file that others write to as well
    as_it_comes = output.startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file())
    whole = Path(os.path.realpath(path))  # a link stays, what it points at is written
    try:
        with path.open("ab") if as_it_comes else written_whole(whole) as file:
            yield lambda text: file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {output}: {error.strerror}") from error


def _check_open() -> None:
    if sys.stdout is None:
        raise RunError("standard output is closed")


def _write_and_flush(text: str) -> None:
    _check_open()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has seen enough
        raise
    except OSError as error:
        raise RunError(f"cannot write to standard output: {error.strerror}") from error

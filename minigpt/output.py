"""How results are shown: text or a line of JSON each, on standard output or in a file."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from minigpt.errors import InputError, RunError
from minigpt.files import check_folder, written_whole

#: Characters that JSON leaves as they are and that some readers take for the end of a line.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def prepare_standard_output() -> None:
    """Write UTF-8 as files do; a terminal of another encoding gets ? for what it cannot show."""
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


def json_line(values: dict[str, Any]) -> str:
    """One JSON object as one line, by any reader's notion of a line."""
    return json.dumps(values, ensure_ascii=False).translate(_LINE_ENDS) + "\n"


def check_output(output: str, *, key: str = "output") -> None:
    """See before the work that the file a setting names can be written; "" is standard output."""
    path = Path(output)
    if not output:
        return
    if path.is_dir():
        raise InputError(f"{key}={output}: is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"{key}={output}: the folder {path.parent} does not exist")
    if not path.exists():
        check_folder(path.parent, f"{key}={output}")
    elif not os.access(path, os.W_OK):
        raise InputError(f"{key}={output}: cannot be written to")


def write_output(output: str, text: str) -> None:
    """Write to standard output, or a file whole or not at all (a device or pipe as it comes)."""
    if not output:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(os.path.realpath(output))  # a link stays, what it points at is written
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(text.encode())
            return
        with written_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {output}: {error.strerror}") from error

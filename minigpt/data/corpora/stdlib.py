"""The source of the running Python's standard library: real text that every machine has."""

import os
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.errors import InputError

#: Installed packages, and tests, whose files are data in odd forms more than code to read.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def sources(config: DataConfig) -> tuple[Source, None]:
    """The standard library, one module a document."""
    del config
    folder = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(_modules(folder)) if _text(path) is not None]
    if not modules:
        raise InputError(f"data=stdlib: {folder} holds no Python source; use another corpus")
    shards = [partial(_document, path) for path in modules]
    return Source(f"data=stdlib ({folder})", shards, modules), None


def _document(path: Path) -> Iterator[Part]:
    text = _text(path)
    if text is not None:
        yield Part(text)


def _modules(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        yield from (Path(place, name) for name in names if name.endswith(".py"))


def _text(path: Path) -> str | None:
    """The source as it stands, or None if it is not UTF-8 or not readable."""
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None

"""The source of the running Python's standard library: real text that every machine has."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Corpus, split_corpus
from minigpt.errors import InputError

#: Installed packages, and tests, whose files are data in odd forms more than code to read.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def load(config: DataConfig) -> Corpus:
    """The corpus of the standard library, one module a document."""
    folder = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(_modules(folder)) if _text(path) is not None]
    if not modules:
        raise InputError(f"data=stdlib: {folder} holds no Python source; use another corpus")

    def documents() -> Iterator[str]:
        return (text for path in modules if (text := _text(path)) is not None)

    return split_corpus("stdlib", f"data=stdlib ({folder})", documents, config)


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

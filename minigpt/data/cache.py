"""Where prepared data is kept, and what is known there of texts that were read before.

A text is known by a digest of its files' contents, so that neither a name nor a date makes it
another. A file is not read again to be digested as long as nothing has written to it: as git does,
its size, its inode and the times of its last change are kept beside the digest.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from minigpt.config import DataConfig
from minigpt.errors import InputError
from minigpt.files import check_folder, written_whole

#: Bytes of a text from which on it is looked up and not read again.
LARGE = 1 << 22
#: Nanoseconds in which a file may be written to twice and show the same time.
_SETTLED = 2_000_000_000

_PROJECT = Path(__file__).resolve().parents[2]


def cache_folder(data: DataConfig) -> Path:
    """Where prepared corpora go: the setting, else the project's data/cache, else the user's."""
    if data.cache_dir:
        try:
            folder = Path(data.cache_dir).expanduser().absolute()
        except RuntimeError as error:
            raise InputError(f"data.cache_dir={data.cache_dir}: {error}") from error
        check_folder(folder, f"data.cache_dir={data.cache_dir}")
        return folder
    if (_PROJECT / "train.py").is_file() and os.access(_PROJECT / "data", os.W_OK):
        return _PROJECT / "data" / "cache"
    return Path.home() / ".cache" / "minigpt"


def digest(parts: object) -> str:
    """A digest of plain values."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def digests_of(files: Sequence[Path], cache: Path) -> list[str]:
    """The digest of each file's contents; `InputError` names one that cannot be read."""
    known = _read(cache / "files.json")
    found = {str(path.resolve()): _digest_of(path, known) for path in files}
    kept = {name: entry for name, entry in found.items() if entry[0] >= LARGE and entry[-1]}
    if any(known.get(name) != entry for name, entry in kept.items()):
        _write(cache / "files.json", known | kept)
    return [found[str(path.resolve())][4] for path in files]


def _digest_of(path: Path, known: dict[str, Any]) -> list[Any]:
    """Size, times, inode and digest of a file, and whether they may be relied on later."""
    try:
        before = path.stat()
        stamp = [before.st_size, before.st_mtime_ns, before.st_ctime_ns, before.st_ino]
        entry = known.get(str(path.resolve()))
        if isinstance(entry, list) and entry[:4] == stamp and len(cast("list[Any]", entry)) == 6:
            return cast("list[Any]", entry)
        with path.open("rb") as file:
            contents = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > _SETTLED
    return [*stamp, contents, settled]


def recall(cache: Path, key: str) -> dict[str, Any]:
    """What `keep` kept of the text that `key` stands for; nothing if it is not known."""
    return _read(cache / "known" / f"{key[:16]}.json")


def keep(cache: Path, key: str, found: dict[str, Any], n_bytes: int) -> None:
    """Keep what was found out about a text, unless it is as quickly found out again."""
    if n_bytes >= LARGE:
        _write(cache / "known" / f"{key[:16]}.json", found)


def _read(path: Path) -> dict[str, Any]:
    try:
        values: object = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _write(path: Path, values: dict[str, Any]) -> None:
    """Keep values for the next time; where that cannot be, they are found out again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(json.dumps(values).encode())

"""Files that are whole or not there, and folders that are known to be usable before slow work."""

import contextlib
import errno
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from minigpt.errors import InputError

#: Of a file or a folder, in bytes, on every common file system.
_LONGEST_NAME = 255


@contextlib.contextmanager
def written_whole(path: Path) -> Generator[BinaryIO, None, None]:
    """Open a file that gets the name `path` once the block has written all of it.

    It is flushed to the disk, renamed, and looked at. Raises `OSError` if that cannot be done;
    what was at `path` before then stays, as it does if the block raises.
    """
    temporary = beside(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    if (seen := path.stat().st_size) != size:
        raise OSError(errno.EIO, f"{seen} of {size} bytes are there")


@contextlib.contextmanager
def locked(
    place: Path, patience: float = math.inf, wait: Callable[[], None] | None = None
) -> Generator[None, None, None]:
    """Keep other processes out of the block, where the system and the file system can lock.

    `place` is a folder, or a file that is made if it is not there. Where another process is in the
    block, `wait` (if given) is called once, and after `patience` seconds `BlockingIOError` is
    raised. A process that ends, in whatever way, has left the block.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    flags = os.O_RDONLY if place.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(place, flags, 0o666)
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                if wait is not None:
                    wait()
                    wait = None
                time.sleep(0.2)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield
    finally:
        os.close(descriptor)


def link_whole(source: Path, path: Path) -> None:
    """Give a file that is whole and will not change a second name; a copy where that cannot be.

    Raises `OSError` if it cannot be written; what was at `path` before then stays.
    """
    temporary = beside(path)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without links
        with source.open("rb") as original, written_whole(path) as copy:
            shutil.copyfileobj(original, copy)
        return
    try:
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:  # a rename to a name of the same file leaves both
        temporary.unlink(missing_ok=True)


def clear_unfinished(folder: Path) -> None:
    """Remove what a kill left half-written in a folder that nobody else writes to."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """A name in the same folder for what is in the making, until it is whole and gets its own."""
    # two machines that share the folder can have processes of the same number
    beginning = os.fsdecode(os.fsencode(path.name)[:150])  # a name may have 255 bytes
    return path.with_name(f".{beginning}.{uuid4().hex}.part")


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; not every system lets a folder be opened, and then it cannot be."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_folder(folder: Path, setting: str) -> None:
    """Raise `InputError`, which `setting` begins, if `folder` can't be made or be written to.

    The nearest folder that exists is tried with a file, which leaves nothing: permission bits do
    not tell of a file system that takes none.
    """
    places = (folder, *folder.absolute().parents)
    if any(len(os.fsencode(place.name)) > _LONGEST_NAME for place in places):
        raise InputError(f"{setting}: a name in it has more than {_LONGEST_NAME} bytes")
    try:
        existing = next(place for place in places if place.exists() or place.is_symlink())
    except OSError as error:
        raise InputError(f"{setting}: cannot be a folder: {error.strerror}") from error
    if not existing.is_dir():
        raise InputError(f"{setting}: {existing} is not a folder")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"{setting}: {existing} cannot be written to: {error.strerror}") from error

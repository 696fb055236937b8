"""Where an export goes: refused before slow work if it cannot, there whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from minigpt.errors import InputError, RunError
from minigpt.files import beside, check_folder
from minigpt.output import check_output

#: The files of an exported folder.
FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
)
#: What tells an export by this program: a line of the front matter, a key near a file's beginning.
CARD_TAG, CARD_KEY = "- minigpt", "minigpt.card"
#: How much of a file is looked at.
_HEAD = 4096


def check_place(to: str, format_name: str, *, overwrite: bool) -> Path:
    """The path to write, every link followed.

    Raises `InputError` if something is there that may not be replaced, or if it cannot be written.
    """
    if not to.isascii() and os.fsencode(to).decode("utf-8", "ignore") != to:
        raise InputError(f"to={to!r}: is not UTF-8, so the model card cannot name it")
    path = Path(os.path.realpath(to))
    try:
        there, is_link = path.exists(), path.is_symlink()
    except OSError as error:
        raise InputError(f"to={to}: cannot be looked at: {error.strerror}") from error
    if is_link:
        raise InputError(f"to={to}: is a link that leads to itself")
    if there and not overwrite:
        raise InputError(
            f"to={to}: exists already; name another place, or add overwrite=true to replace an"
            " earlier export"
        )
    if format_name == "gguf":
        check_output(to, key="to")
    if there:
        (_check_old_file if format_name == "gguf" else _check_old_folder)(to, path)
    if not path.parent.is_dir():
        raise InputError(f"to={to}: the folder {path.parent} does not exist")
    check_folder(path.parent, f"to={to}")
    return path


def _check_old_folder(to: str, folder: Path) -> None:
    """Raise `InputError` unless a folder is empty or holds an earlier export and nothing else."""
    if not folder.is_dir():
        raise InputError(f"to={to}: is a file; format=huggingface writes a folder")
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"to={to}: cannot be read: {error.strerror}") from error
    for path in inside:
        if path.name not in FOLDER_FILES or not path.is_file() or path.is_symlink():
            raise InputError(
                f"to={to}: holds {path.name}, which is of no export; name another folder"
            )
    card = folder / "README.md"
    if inside and (not card.is_file() or f"\n{CARD_TAG}\n".encode() not in _head(to, card)):
        raise InputError(
            f"to={to}: holds {inside[0].name}, and no README.md that an export by this program"
            " writes; name another folder"
        )
    if folder in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"to={to}: holds the folder that you are in; name another folder")


def _check_old_file(to: str, file: Path) -> None:
    """Raise `InputError` unless a file is empty or an earlier export."""
    if not file.is_file():
        raise InputError(f"to={to}: is a device or a pipe; name a file")
    head = _head(to, file)
    if head and not (head.startswith(b"GGUF") and CARD_KEY.encode() in head):
        raise InputError(f"to={to}: is no GGUF file that this program wrote; name another file")


def _head(to: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise InputError(f"to={to}: {path.name} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def built(to: str, format_name: str, *, overwrite: bool) -> Generator[Path, None, None]:
    """A place beside `to` for a file or a folder that gets its name once the block is through.

    What has come to lie there meanwhile is refused as `check_place` does. If the block raises, or
    it cannot be written (`RunError`), what was there stays.
    """
    path = check_place(to, format_name, overwrite=overwrite)
    made = beside(path)
    try:
        yield made
        _give_name(made, check_place(to, format_name, overwrite=overwrite))
    except OSError as error:
        reason = error.strerror or f"is the disk full? {error}"
        raise RunError(f"cannot write {to}: {reason}") from error
    finally:
        _remove(made)


def _give_name(made: Path, path: Path) -> None:
    """Rename, in the place of what is there; a folder takes the place of an empty one only."""
    old = beside(path)
    try:
        if path.is_dir():
            path.rename(old)
        made.replace(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

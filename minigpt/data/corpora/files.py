"""The user's files: which they are, and their text, gzip-compressed or not.

Nothing is translated, line ends least of all. A byte order mark at the start of a file is no part
of its text and is left out.
"""

import codecs
import glob
import gzip
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.errors import InputError
from minigpt.settings import shortened

#: Bytes that are read, and characters of a long document that are handed on, at a time.
CHUNK = 1 << 20
#: As in git: a file with a zero byte near its start is not text.
_LOOK_FOR_ZERO = 8000
_PACKED = ".gz"
#: Characters that are shown of the names of a file's columns.
_LONGEST = 200
_REMEDY = "data.encoding=… sets the encoding"
#: What reading a damaged gzip file raises.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


def file_sources(
    config: DataConfig,
    documents: Callable[[Path], Iterator[Part]],
    form: tuple[str, ...],
    suffixes: tuple[str, ...] = (),
) -> tuple[Source, Source | None]:
    """What `data.path` and `data.val_path` name: to train on, and held out (None: not named).

    A file or what a glob finds is taken whatever it is called. In a folder, searched with its
    subfolders, hidden files are passed over; so are those without one of `suffixes` (and perhaps
    .gz) if any are given, and otherwise those that are not text. What is held out is not trained
    on. `documents` reads a file, and `form` says how. Raises `InputError` for a path that leads to
    no file.
    """
    if not config.path:
        raise InputError(f"data={config.corpus} needs data.path=… (a file, a folder or a glob)")
    sniff = not suffixes and b"\0" not in "a".encode(config.encoding)
    train, n_skipped = _expand("data.path", config.path, suffixes, sniff=sniff)
    held_out = None
    if config.val_path:
        files, skipped = _expand("data.val_path", config.val_path, suffixes, sniff=sniff)
        where = f"data.val_path={', '.join(config.val_path)}"
        held_out = _source(where, documents, files, form, skipped)
    where = f"data.path={', '.join(config.path)}"
    if held_out:
        held = {path.resolve() for path in held_out.files}
        train = [path for path in train if path.resolve() not in held]
        if not train:
            raise InputError(f"{where}: every file is in data.val_path; none is left to train on")
    return _source(where, documents, train, form, n_skipped), held_out


def _source(
    where: str,
    documents: Callable[[Path], Iterator[Part]],
    files: list[Path],
    form: tuple[str, ...],
    n_skipped: int,
) -> Source:
    """Files, each a shard; what their names say of how they are read is part of the form."""
    read_as = tuple(f"{path.suffix == _PACKED} {has_tabs(path)}" for path in files)
    shards = [partial(documents, path) for path in files]
    return Source(where, shards, files, (*form, *read_as), n_skipped)


def no_such(what: str, name: str, there: Iterable[str]) -> str:
    """That there is no field or column of a name, and which there are."""
    listed = shortened(", ".join(there) or "none", _LONGEST)
    return f"no {what} {name!r}; data.field may be one of: {listed}"


def has_tabs(path: Path) -> bool:
    """Whether a table's cells are divided by tabs, by the name of its file."""
    return path.name.removesuffix(_PACKED).lower().endswith(".tsv")


def check_encoding(encoding: str) -> None:
    """Raise `InputError` for an encoding that there is not."""
    try:
        "a".encode(encoding)
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"data.encoding={encoding}: not an encoding of text that Python knows,"
            " such as utf-8, utf-16, latin-1, cp1252, gb18030"
        ) from error


def open_bytes(path: Path) -> BinaryIO:
    """Open a file to read its contents, unpacked if its name ends in .gz."""
    return cast("BinaryIO", gzip.open(path)) if path.suffix == _PACKED else path.open("rb")


def read_chunks(path: Path) -> Iterator[bytes]:
    """The contents of a file, unpacked, about a megabyte at a time.

    Raises `InputError` if it cannot be read or is a damaged gzip file.
    """
    try:
        with open_bytes(path) as file:
            while chunk := file.read(CHUNK):
                yield chunk
    except DAMAGED as error:
        raise InputError(f"{path}: no gzip file, or a damaged one: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_text(path: Path, encoding: str) -> Iterator[str]:
    """The text of a file in parts of about a megabyte.

    Raises `InputError` with the byte offset where it is not in the encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = n_read = 0  # of what the decoder is given next, less what it still holds
    first = True
    try:
        for chunk in read_chunks(path):
            n_read += len(chunk)
            text = decoder.decode(chunk)
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            text.encode()  # half a surrogate pair is no text
            yield text
            offset = n_read - len(decoder.getstate()[0])
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        unpacked = " of what is packed in it" if path.suffix == _PACKED else ""
        raise InputError(
            f"{path}: byte {offset + error.start:,}{unpacked} is not {encoding} ({error.reason});"
            f" {_remedy(error.object[:4]) if offset == 0 else _REMEDY}"
        ) from error
    except UnicodeError as error:  # of encodings that have rules of their own
        raise InputError(f"{path}: is not {encoding}: {error}; {_REMEDY}") from error


def _remedy(begins: bytes) -> str:
    """What would be right for a file that begins so and is not in its encoding."""
    if begins == b"PAR1":
        return "it is a Parquet file: data=parquet"
    if begins.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins as UTF-16 does: data.encoding=utf-16"
    return _REMEDY


def split_text(texts: Iterable[str], separator: str) -> Iterator[Part]:
    """What stands between the separators of a text that comes in parts; a long one in parts too."""
    held = ""
    searched = 0
    for text in texts:
        held += text
        start, at = 0, searched
        while (found := held.find(separator, at)) >= 0:
            yield Part(held[start:found])
            start = at = found + len(separator)
        # what may be the beginning of a separator waits, and a last character, which may be \r
        sure = max(start, len(held) - len(separator))
        if sure - start > CHUNK:
            yield Part(held[start:sure], last=False)
            start = sure
        held = held[start:]
        searched = max(0, len(held) - len(separator) + 1)
    yield Part(held)


def read_lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file, without the line feeds that end them."""
    held = ""
    for text, last in split_text(read_text(path, encoding), "\n"):
        if last:
            yield held + text
            held = ""
        else:
            held += text


def _expand(
    key: str, names: list[str], suffixes: tuple[str, ...], *, sniff: bool
) -> tuple[list[Path], int]:
    """The files behind paths and globs, each once, and how many in folders were passed over."""
    files: dict[Path, Path] = {}
    n_skipped = 0
    for name in names:
        path = Path(name).expanduser()
        found = [path] if path.exists() else _fitting(path)
        if not found:
            raise InputError(f"{key}={name}: no such file or folder, and no file fits it as a glob")
        for one in found:
            inside = list(_walk(one, suffixes)) if one.is_dir() else [one]
            text = [file for file in inside if one == file or not (sniff and _is_binary(file))]
            n_skipped += len(inside) - len(text)
            for file in text:
                files.setdefault(file.resolve(), file)
    if not files:
        wanted = f" that ends in {' or '.join(suffixes)}" if suffixes else " of text"
        raise InputError(f"{key}={', '.join(names)}: the folder holds no file{wanted}")
    return list(files.values()), n_skipped


def _fitting(pattern: Path) -> list[Path]:
    """What a glob finds, in the order of names."""
    # Path.glob takes no absolute pattern
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files of a folder and its subfolders that are not hidden, in the order of their names."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            wanted = name.removesuffix(_PACKED).endswith(suffixes or "")
            path = Path(place, name)
            if wanted and not name.startswith(".") and path.is_file():  # no pipe
                yield path


def _is_binary(path: Path) -> bool:
    return b"\0" in next(read_chunks(path), b"")[:_LOOK_FOR_ZERO]

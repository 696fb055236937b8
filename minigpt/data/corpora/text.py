"""The user's own text: files, folders and globs, characters kept as they are.

Nothing is translated, line ends least of all. A byte order mark at the start of a file is no part
of its text and is left out.
"""

import codecs
import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Corpus, split_corpus
from minigpt.errors import InputError

_CHUNK = 1 << 20

#: As in git: a file with a zero byte near its start is not text.
_LOOK_FOR_ZERO = 8000


@dataclass(frozen=True, slots=True)
class Files:
    """The files to train on and those held out (None: no setting says), and how many are binary."""

    train: list[Path]
    validation: list[Path] | None
    n_skipped: int
    where: str


def load(config: DataConfig) -> Corpus:
    """The corpus of `data.path`; `data.document` says what one document is."""
    files = find_files(config)
    separator = _separator(config, files)

    def documents(paths: list[Path]) -> Iterator[str]:
        return chain.from_iterable(_documents(path, config.encoding, separator) for path in paths)

    held_out = files.validation
    return split_corpus(
        "text",
        files.where,
        lambda: documents(files.train),
        config,
        held_out=None if held_out is None else lambda: documents(held_out),
        n_skipped=files.n_skipped,
    )


def find_files(config: DataConfig, suffixes: tuple[str, ...] = ()) -> Files:
    """The files that `data.path` and `data.val_path` name, each once, in a fixed order.

    A file or what a glob finds is taken whatever it is called. In a folder, searched with its
    subfolders, hidden files and those that are not text are passed over, and those without one of
    `suffixes` if any are given. What is held out is not trained on.

    Raises `InputError` for an unknown encoding and for a path that leads to no file.
    """
    _check_encoding(config.encoding)
    if not config.path:
        raise InputError(f"data={config.corpus} needs data.path=… (a file, a folder or a glob)")
    sniff = b"\0" not in "a".encode(config.encoding)
    where = f"data.path={', '.join(config.path)}"
    train, n_skipped = _expand("data.path", config.path, suffixes, sniff=sniff)
    if not config.val_path:
        return Files(train, None, n_skipped, where)
    validation, n_also_skipped = _expand("data.val_path", config.val_path, suffixes, sniff=sniff)
    train = [path for path in train if path not in set(validation)]
    if not train:
        raise InputError(f"{where}: every file is in data.val_path; none is left to train on")
    return Files(train, validation, n_skipped + n_also_skipped, where)


def read_parts(path: Path, encoding: str) -> Iterator[str]:
    """The text of a file in parts of about a megabyte.

    Raises `InputError` with the byte offset where it is not in the encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = 0  # of what the decoder is given next, less what it still holds
    try:
        with path.open("rb") as file:
            while True:
                chunk = file.read(_CHUNK)
                text = decoder.decode(chunk, final=not chunk)
                if offset == 0:
                    text = text.removeprefix("\ufeff")
                yield text
                if not chunk:
                    return
                offset = file.tell() - len(decoder.getstate()[0])
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: byte {offset + error.start:,} is not {encoding} ({error.reason});"
            " data.encoding=… sets the encoding"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def split_parts(parts: Iterable[str], separator: str) -> Iterator[str]:
    """What stands between the separators of a text that comes in parts."""
    held = ""
    for part in parts:
        search_from = max(0, len(held) - len(separator) + 1)
        held += part
        start = 0
        while (found := held.find(separator, search_from)) >= 0:
            yield held[start:found]
            start = search_from = found + len(separator)
        held = held[start:]
    yield held


def _documents(path: Path, encoding: str, separator: str | None) -> Iterator[str]:
    parts = read_parts(path, encoding)
    if separator is None:
        yield "".join(parts)
    elif separator == "\n":
        # a line may end in \r\n too
        yield from (line.removesuffix("\r") for line in split_parts(parts, separator))
    else:
        yield from split_parts(parts, separator)


def _separator(config: DataConfig, files: Files) -> str | None:
    """What separates documents within a file, None for nothing; it must occur somewhere."""
    match config.document:
        case "file":
            return None
        case "line":
            return "\n"
        case "":
            raise InputError("data.document is empty: choose file, line or a separating text")
        case separator:
            for path in chain(files.train, files.validation or ()):
                if len(list(islice(_documents(path, config.encoding, separator), 2))) > 1:
                    return separator
            raise InputError(
                f"data.document={separator!r}: neither file nor line, and as a separating text it"
                f" occurs nowhere in {files.where}"
            )


def _check_encoding(encoding: str) -> None:
    try:
        "a".encode(encoding)
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError) as error:
        raise InputError(
            f"data.encoding={encoding}: not an encoding of text that Python knows,"
            " such as utf-8, utf-16, latin-1, cp1252, gb18030"
        ) from error


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
            inside = [one] if one.is_file() else list(_walk(one, suffixes))
            text = [file for file in inside if one == file or not (sniff and _is_binary(file))]
            n_skipped += len(inside) - len(text)
            files |= {file.resolve(): file for file in text}
    if not files:
        wanted = f" that ends in {' or '.join(suffixes)}" if suffixes else " of text"
        raise InputError(f"{key}={', '.join(names)}: the folder holds no file{wanted}")
    return list(files), n_skipped


def _fitting(pattern: Path) -> list[Path]:
    """What a glob finds, in the order of names."""
    # Path.glob takes no absolute pattern
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files of a folder and its subfolders that are not hidden, in the order of their names."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.endswith(suffixes or ""):
                yield Path(place, name)


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(_LOOK_FOR_ZERO)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error

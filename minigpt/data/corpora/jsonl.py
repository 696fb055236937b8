"""The user's JSON lines: one object a line, one of its fields the document."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import cast

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Corpus, split_corpus
from minigpt.data.corpora.text import find_files, read_parts, split_parts
from minigpt.errors import InputError

#: The files of a folder that are read.
SUFFIXES = (".jsonl", ".ndjson")


def load(config: DataConfig) -> Corpus:
    """The corpus of the field `data.field` in the files of `data.path`."""
    files = find_files(config, SUFFIXES)

    def documents(paths: list[Path]) -> Iterator[str]:
        return chain.from_iterable(_documents(path, config) for path in paths)

    held_out = files.validation
    return split_corpus(
        "jsonl",
        files.where,
        lambda: documents(files.train),
        config,
        held_out=None if held_out is None else lambda: documents(held_out),
        n_skipped=files.n_skipped,
    )


def _documents(path: Path, config: DataConfig) -> Iterator[str]:
    """The field of each line; `InputError` names the file and the line that has none."""
    lines = split_parts(read_parts(path, config.encoding), "\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _field(line, config.field)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}") from error


def _field(line: str, field: str) -> str:
    """The text in one field of a line of JSON; `ValueError` says what is there instead."""
    try:
        record: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(record, dict):
        raise ValueError(f"a JSON object is needed, this is {_name(record)}")
    fields = cast("dict[str, object]", record)
    if field not in fields:
        there = ", ".join(fields) or "none"
        raise ValueError(f"no field {field!r}; data.field may be one of: {there}")
    text = fields[field]
    if not isinstance(text, str):
        raise ValueError(f"the field {field!r} must be a string, this is {_name(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the field {field!r} has half of a surrogate pair at character {error.start}"
        ) from error
    return text


def _name(value: object) -> str:
    """What JSON calls a value."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"
    }  # fmt: skip
    return names.get(type(value), "an object")

"""The user's JSON lines: one object a line, one of its fields the document."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Corpus, split_corpus
from minigpt.data.corpora.text import find_files, read_parts, split_parts
from minigpt.errors import InputError
from minigpt.json_lines import json_object, json_text

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
    record = json_object(line)
    if field not in record:
        there = ", ".join(record) or "none"
        raise ValueError(f"no field {field!r}; data.field may be one of: {there}")
    return json_text(record, field)

"""The user's JSON lines: one object a line, one of its fields the document."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.data.corpora.files import check_encoding, file_sources, no_such, read_lines
from minigpt.errors import InputError
from minigpt.json_lines import json_object, json_text

#: The files of a folder that are read.
SUFFIXES = (".jsonl", ".ndjson")


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """The field `data.field` in the lines of `data.path` and `data.val_path`."""
    check_encoding(config.encoding)
    documents = partial(_documents, encoding=config.encoding, field=config.field)
    return file_sources(config, documents, (config.encoding, config.field), SUFFIXES)


def _documents(path: Path, encoding: str, field: str) -> Iterator[Part]:
    """The field of each line; `InputError` names the file and the line that has none."""
    for number, line in enumerate(read_lines(path, encoding), 1):
        if line.strip():
            try:
                yield Part(_field(line, field))
            except ValueError as error:
                raise InputError(f"{path}, line {number:,}: {error}") from error


def _field(line: str, field: str) -> str:
    """The text in one field of a line of JSON, which may be null: nothing.

    `ValueError` says what is there instead.
    """
    record = json_object(line)
    if field not in record:
        raise ValueError(no_such("field", field, record))
    return "" if record[field] is None else json_text(record, field)

"""The user's CSV files: one column is the document. A .tsv has tabs where a .csv has commas."""

import csv
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.data.corpora.files import (
    check_encoding,
    file_sources,
    has_tabs,
    no_such,
    read_lines,
)
from minigpt.errors import InputError

#: The files of a folder that are read.
SUFFIXES = (".csv", ".tsv")


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """The column `data.field` of `data.path` and `data.val_path`; the first line names columns."""
    check_encoding(config.encoding)
    documents = partial(_documents, encoding=config.encoding, field=config.field)
    return file_sources(config, documents, (config.encoding, config.field), SUFFIXES)


def _documents(path: Path, encoding: str, field: str) -> Iterator[Part]:
    """The column's cells as they are, quotes taken off; `InputError` names file and line."""
    csv.field_size_limit(sys.maxsize)
    lines = (f"{line}\n" for line in read_lines(path, encoding))
    rows = csv.reader(lines, delimiter="\t" if has_tabs(path) else ",", strict=True)
    begun = 1  # the line at which a row begins, which may have several
    try:
        header = next(rows, list[str]())
        if field not in header:
            cells = "" if len(header) > 1 else "; commas divide cells, and tabs in a .tsv"
            raise InputError(f"{path}: {no_such('column', field, header)}{cells}")
        if header.count(field) > 1:
            raise InputError(f"{path}: {header.count(field)} columns are called {field!r}")
        column = header.index(field)
        begun = rows.line_num + 1
        for row in rows:
            if len(row) == len(header):
                yield Part(row[column])
            elif row:  # no blank line
                raise InputError(
                    f"{path}, line {begun:,}: {len(row)} cells where the first line names"
                    f" {len(header)} columns; a cell with a comma or a quote needs quotes"
                )
            begun = rows.line_num + 1
    except csv.Error as error:
        what = str(error)
        if "new-line" in what:
            what = "a carriage return stands in a cell without quotes, or ends a line by itself"
        raise InputError(f"{path}, line {begun:,}: not CSV: {what}") from error

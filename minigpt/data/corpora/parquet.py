"""The user's Parquet files: one column is the document."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.data.corpora.files import DAMAGED, file_sources, no_such, open_bytes
from minigpt.errors import InputError

#: The files of a folder that are read.
SUFFIXES = (".parquet",)
#: Rows that are held at a time.
_ROWS = 256


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """The column `data.field` of `data.path` and `data.val_path`; an empty cell is blank."""
    return file_sources(config, partial(_documents, field=config.field), (config.field,), SUFFIXES)


def _documents(path: Path, field: str) -> Iterator[Part]:
    """The column's cells; `InputError` names a file that has none or is damaged."""
    try:
        with contextlib.ExitStack() as files:
            file = files.enter_context(open_bytes(path))
            if path.suffix == ".gz":  # a Parquet file is not read in order
                copy = files.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                file = copy
            yield from _cells(path, file, field)
    except (_arrow().ArrowException, OSError, UnicodeDecodeError, *DAMAGED) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: no Parquet file, or a damaged one: {reason}") from error


def _arrow() -> Any:
    """The library, of which no types are known."""
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]  (it has none)

    return pa


def _cells(path: Path, file: IO[bytes], field: str) -> Iterator[Part]:
    from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]  (it has none)

    table: Any = parquet.ParquetFile(file, memory_map=False)
    schema = table.schema_arrow
    if field not in schema.names:
        raise InputError(f"{path}: {no_such('column', field, schema.names)}")
    check_text(f"{path}: the column {field!r}", schema.field(field).type)
    for batch in table.iter_batches(_ROWS, columns=[field], use_threads=False):
        for cell in batch.column(0).to_pylist():
            yield Part(cell or "")


def check_text(what: str, kind: Any) -> None:
    """Raise `InputError`, which `what` begins, unless an Arrow type is text."""
    types = _arrow().types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(inner) or types.is_large_string(inner)):
        raise InputError(f"{what} holds {kind}, and text is needed; data.field=… names another")

"""Data sets of the Hugging Face hub, and folders laid out like them: one column is the document."""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source
from minigpt.data.corpora.files import no_such
from minigpt.data.corpora.parquet import check_text
from minigpt.errors import InputError

#: Rows that are held at a time.
_ROWS = 256
#: Seconds to wait for the hub's first answer.
_PATIENCE = 5.0


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """The column `data.field` of the splits `data.split` and, if one is named, `data.val_split`.

    Raises `InputError` if there is no such data set, configuration, split or column, or the hub
    cannot be reached and the data set was not downloaded before.
    """
    if not config.name:
        raise InputError(
            "data=hub needs data.name=… (owner/name of a data set at Hugging Face, or a folder)"
        )
    held_out = _source(config, "val_split") if config.val_split else None
    return _source(config, "split"), held_out


def _source(config: DataConfig, key: str) -> Source:
    """The split of a setting, as a mapped copy of a hub's data set or as the files of a folder."""
    split: str = getattr(config, key)
    where = f"data.name={config.name} data.{key}={split}"
    form = (config.field, split, config.config)
    local = Path(config.name).expanduser()
    if not local.is_dir() and (local.is_absolute() or config.name.startswith(".")):
        raise InputError(f"data.name={config.name}: no such folder")
    try:
        if local.is_dir():
            dataset = _load(config, str(local), split, revision="", streaming=True)
            builder = _library().load_dataset_builder(str(local), config.config or None)
            files = [Path(name) for name in builder.config.data_files[split]]
        else:
            _work_offline_if_unreachable()
            dataset = _load(
                config, config.name, split, revision=config.revision, streaming=config.streaming
            )
            cached: list[dict[str, str]] = [] if config.streaming else dataset.cache_files
            files = [Path(each["filename"]) for each in cached]
    except Exception as error:  # `datasets` raises of many kinds on the way
        raise InputError(_explained(error, config, where)) from error
    shards = [dataset]
    if config.streaming or local.is_dir():
        count = dataset.num_shards
        shards = [dataset.shard(count, number) for number in range(count)]
    places = files if len(files) == len(shards) else [where] * len(shards)
    documents = [
        partial(_documents, shard, str(place), config.field)
        for shard, place in zip(shards, places, strict=True)
    ]
    if dataset.features is not None:
        _check_column(list(dataset.features), where, config.field)
    return Source(where, documents, files, form)


def _library() -> Any:
    """The library, of which no types are known."""
    import datasets  # pyright: ignore[reportMissingTypeStubs]  (it has none)

    return datasets


def _load(config: DataConfig, name: str, split: str, *, revision: str, streaming: bool) -> Any:
    library = _library()
    if not sys.stderr.isatty():
        library.disable_progress_bars()
    return library.load_dataset(
        name,
        config.config or None,
        split=split,
        revision=revision or None,
        streaming=streaming,
    )


def _work_offline_if_unreachable() -> None:
    """Let the libraries use what was downloaded before: they would ask for half a minute first."""
    import huggingface_hub
    from huggingface_hub import constants

    hub: Any = huggingface_hub  # typed in part
    if constants.HF_HUB_OFFLINE:
        return
    try:
        hub.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # noqa: BLE001  whatever it is, there is no answer
        constants.HF_HUB_OFFLINE = _library().config.HF_HUB_OFFLINE = True


def _check_column(names: list[str], where: str, field: str) -> None:
    if field not in names:
        raise InputError(f"{where}: {no_such('column', field, names)}")


def _documents(dataset: Any, where: str, field: str) -> Iterator[Part]:
    """The column's cells in their order; an empty one is blank."""
    if dataset.features is not None:  # the others need not be read
        dataset = dataset.select_columns([field])
    try:
        for rows in dataset.with_format("arrow").iter(_ROWS):
            _check_column(rows.schema.names, where, field)
            check_text(f"{where}: the column {field!r}", rows.schema.field(field).type)
            for cell in rows.column(field).to_pylist():
                yield Part(cell or "")
    except InputError:
        raise
    except Exception as error:  # the readers of each format raise their own
        raise InputError(f"{where}: cannot be read: {_reason(error)}") from error


def _explained(error: Exception, config: DataConfig, where: str) -> str:
    """One line for what `datasets` raised: what is wrong, and what would be right."""
    known = _library().exceptions
    reason = _reason(error)
    name = f"data.name={config.name}"
    if isinstance(error, known.DatasetNotFoundError):
        return f"{name}: no such public data set at Hugging Face, and no such folder here"
    if isinstance(error, FileNotFoundError):
        return f"{name}: no files of data in it: {reason}"
    if isinstance(error, ConnectionError | OSError):
        return (
            f"{name}: the Hugging Face hub cannot be reached, and the data set was not downloaded"
            " before; give the path of a local copy (data.name=folder), or take another corpus"
            " (data=stories needs none)"
        )
    if "split" in reason.lower():
        return f"{where}: {reason}"
    if "config" in reason.lower():
        return f"{name} data.config={config.config}: {reason}"
    return f"{name}: cannot be read: {reason}"


def _reason(error: BaseException) -> str:
    """The first line of the innermost error's words."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).splitlines()[:1]) or type(error).__name__

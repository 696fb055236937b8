"""The user's own text: a file, a line, or what stands between separators is a document."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from pathlib import Path

from minigpt.config import DataConfig
from minigpt.data.corpora.corpus import Part, Source, counted
from minigpt.data.corpora.files import check_encoding, file_sources, read_text, split_text
from minigpt.errors import InputError

#: Kinds of corpus for files that are called otherwise than texts are.
_OTHERS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet",
}  # fmt: skip


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """The text of `data.path` and `data.val_path`; `data.document` says what one document is."""
    check_encoding(config.encoding)
    if not config.document:
        raise InputError("data.document is empty: choose file, line or a separating text")
    if (meant := _meant(config.document)) is not None:
        raise InputError(
            f"data.document={config.document}: choose file, line or a separating text; did you mean"
            f" {meant}?"
        )
    separator = {"file": None, "line": "\n"}.get(config.document, config.document)
    documents = partial(_documents, encoding=config.encoding, separator=separator)
    train, held_out = file_sources(config, documents, (config.encoding, config.document))
    train = replace(train, note=_note(train.files))
    if config.document not in ("file", "line"):
        shards = chain(train.shards, held_out.shards if held_out else ())
        # the end of the first document, and anything after it
        if not any(len(list(islice(_ends(shard()), 2))) > 1 for shard in shards):
            raise InputError(
                f"data.document={config.document!r}: neither file nor line, and as a separating"
                f" text it occurs nowhere in {train.where}"
                + ("; bash makes a line's end of $'\\n'" if "\\n" in config.document else "")
            )
    return train, held_out


def _note(files: Sequence[Path]) -> str:
    """What is said of files that another kind of corpus is for."""
    kinds = {path.name: _OTHERS.get(Path(path.name.removesuffix(".gz")).suffix) for path in files}
    others = sorted({f"data={kind}" for kind in kinds.values() if kind})
    if not others:
        return ""
    n = sum(kind is not None for kind in kinds.values())
    return f"{counted(n, 'file')} read as plain text might be for {' or '.join(others)}"


def _meant(document: str) -> str | None:
    """The choice that a word is a slip of; one word is hardly what separates documents."""
    if document in ("file", "line"):
        return None
    return next(iter(get_close_matches(document.lower(), ("file", "line"), cutoff=0.75)), None)


def _ends(parts: Iterable[Part]) -> Iterator[bool]:
    return (part.last for part in parts if part.last)


def _documents(path: Path, encoding: str, separator: str | None) -> Iterator[Part]:
    texts = read_text(path, encoding)
    if separator is None:
        yield from _one(texts)
    elif separator == "\n":
        yield from _without_returns(split_text(texts, separator))
    else:
        yield from split_text(texts, separator)


def _without_returns(lines: Iterable[Part]) -> Iterator[Part]:
    r"""Lines that may end in \r\n as well; what ends the text ends no line."""
    held, within = None, False
    for part in lines:
        if held is not None:
            yield Part(held.text.removesuffix("\r") if held.last else held.text, held.last)
            within = not held.last
        held = part
    if held is not None and (held.text or within):
        yield held


def _one(texts: Iterable[str]) -> Iterator[Part]:
    """The parts of one document."""
    held = ""
    for text in filter(None, texts):
        if held:
            yield Part(held, last=False)
        held = text
    yield Part(held)

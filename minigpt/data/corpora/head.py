"""The beginning of a corpus that is streamed: what stands for it before training reads it."""

from collections.abc import Iterator
from functools import partial

from minigpt.config import DataConfig
from minigpt.data.cache import digest
from minigpt.data.corpora.corpus import Corpus, Documents, Part, Source, whole
from minigpt.data.corpora.split import is_held, usable
from minigpt.errors import InputError

#: Characters of text that the tokenizer learns from and that are looked at.
HEAD = 16_000_000
#: Characters to validate on, of documents held out among so many at the beginning.
HELD, LOOKED_THROUGH = 256_000, 64_000_000


def head_of(config: DataConfig, source: Source, held_out: Source | None) -> Corpus:
    """The first documents of a source, and the first ones held out, held in memory.

    Without a part of their own, documents are held out by their text (`is_held`), here and
    wherever the stream comes upon them. Raises `InputError` if either part has none.
    """
    fraction = config.val_fraction
    documents = partial(usable, source.documents, config.max_documents)
    if held_out is not None:
        train = list(_first(documents, HEAD))
        validation = list(_first(partial(usable, held_out.documents, None), HEAD))
    else:
        train, validation = _divided(documents, fraction)
    if not train:
        raise InputError(f"{source.where}: no text in it to train on")
    if not validation:
        raise InputError(
            f"{source.where}: of its first {len(train):,} documents none is held out by"
            f" data.val_fraction={fraction:g}; a larger one holds out more"
            if held_out is None
            else f"{held_out.where}: no text in it"
        )
    return Corpus(
        name=f"{config.corpus}-stream",
        text=digest([train, validation]),
        division=digest([config.max_documents, None if held_out else fraction]),
        train=lambda: map(Part, train),
        validation=lambda: map(Part, validation),
        n_documents=len(train) + len(validation),
        n_bytes=None,
        note=source.note,
        is_head=True,
    )


def _divided(documents: Documents, fraction: float) -> tuple[list[str], list[str]]:
    """The first documents to train on and to validate on, until there are enough of both."""
    parts: tuple[list[str], list[str]] = [], []
    sizes = [0, 0]
    for text in _first(documents, LOOKED_THROUGH):
        held = is_held(text, fraction)
        if held or sizes[0] < HEAD:
            parts[held].append(text)
            sizes[held] += len(text)
        if sizes[0] >= HEAD and sizes[1] >= HELD:
            break
    return parts


def _first(documents: Documents, most: int) -> Iterator[str]:
    """Whole documents, until so many characters have been read."""
    read = 0
    for text in whole(documents()):
        yield text
        read += len(text)
        if read >= most:
            return

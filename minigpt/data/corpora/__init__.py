"""Where documents come from. A corpus is documents (strings) in two parts that share nothing.

Every corpus reads or tells its documents anew each time they are asked for, so that none has to
be held in memory; the parts are fixed by the documents and the settings, never by a seed.
"""

from minigpt.config import DataConfig
from minigpt.data.cache import cache_folder
from minigpt.data.corpora import csv, hub, jsonl, parquet, stdlib, text
from minigpt.data.corpora.corpus import Corpus, Source
from minigpt.data.corpora.head import head_of
from minigpt.data.corpora.split import split_corpus
from minigpt.errors import InputError

__all__ = ["Corpus", "load_corpus", "sources"]

_SOURCES = {
    "stdlib": stdlib.sources,
    "text": text.sources,
    "jsonl": jsonl.sources,
    "csv": csv.sources,
    "parquet": parquet.sources,
    "hub": hub.sources,
}


def load_corpus(config: DataConfig) -> Corpus:
    """Find the documents that the settings name, count them and fix the split.

    Of a corpus that is streamed these are the first ones. Raises `InputError` if they cannot be
    read or leave a part with nothing in it.
    """
    if config.corpus == "stories":
        from minigpt.data.corpora import stories  # the grammar is only built if it is told

        return stories.load(config)
    train, held_out = sources(config)
    if config.streaming:
        return head_of(config, train, held_out)
    return split_corpus(config, train, held_out, cache=cache_folder(config))


def sources(config: DataConfig) -> tuple[Source, Source | None]:
    """What there is to read: to train on, and held out where a setting says what."""
    if config.corpus not in _SOURCES:
        choices = ", ".join(("stories", *_SOURCES))
        raise InputError(f"data.corpus={config.corpus}: choose one of {choices}")
    return _SOURCES[config.corpus](config)

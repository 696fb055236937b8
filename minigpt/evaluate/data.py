"""Which documents a model is looked at with: those of its run, or others that are named."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minigpt.checkpoint import LoadedModel, settings_of
from minigpt.config import DataConfig, TrainConfig, check
from minigpt.data.corpora import Corpus, load_corpus
from minigpt.data.preparation import prepare, prepared_name
from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.settings import set_value, value_of

#: Corpora that come with the program.
BUILT_IN = ("stories", "stdlib")

#: What is said of data that is not the run's own: the two may overlap.
UNKNOWN = "been trained on some of it"

#: Settings that say which text there is.
_SOURCE = ("data.corpus", "data.path", "data.name", "data.config", "data.revision", "data.split")

#: Settings of the data that mean something for one kind of corpus.
_OF_A_CORPUS = (
    "path", "name", "config", "revision", "split", "document", "field", "encoding", "streaming",
)  # fmt: skip


def run_settings(record: dict[str, Any], given: DataConfig, named: frozenset[str]) -> TrainConfig:
    """The settings of a model's run, those of `given` that are `named` put over its data's.

    Where they name another text, what the run held out of its own, and how much of it was read,
    does not hold; where they name another corpus, neither do its files. A model of no run (a
    Hugging Face folder) has what is given.
    """
    if "config" not in record:
        return TrainConfig(data=given)
    saved = settings_of(record)
    chosen = sorted(key for key in named if key.startswith("data."))
    whole = replace(saved, data=given)
    if any(value_of(saved, key) != value_of(whole, key) for key in _SOURCE if key in named):
        saved.data.val_path, saved.data.val_split, saved.data.max_documents = [], "", None
    if "data.corpus" in named and given.corpus != saved.data.corpus:
        for name in _OF_A_CORPUS:
            setattr(saved.data, name, getattr(given, name))
    for key in chosen:
        set_value(saved, key, value_of(whole, key))
    check(saved)
    return saved


def data_is_named(named: frozenset[str]) -> bool:
    """Whether a command line says which text there is."""
    return any(key in named for key in _SOURCE)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which part of a corpus is measured: "validation", "train" or "all", and that in words.

    `corpus` is divided as the settings say, `measured` is the same or left whole.
    """

    data: DataConfig
    part: str
    corpus: Corpus
    measured: Corpus
    words: str


def choose(
    loaded: LoadedModel, given: DataConfig, named: frozenset[str], split: str | None
) -> Choice:
    """The part that `split` names; if None, what the model was not trained on.

    That is the validation part of the run's own data and of a built-in corpus, and every document
    of any other. Raises `InputError` for a model that has no data, where none is named.
    """
    record, is_named = loaded.record, data_is_named(named)
    if "config" not in record and not is_named:
        raise InputError(
            "the model brings no data of its own; name what to measure it on: data=text"
            " data.path=my.txt, or data=stories"
        )
    data = run_settings(record, given, named).data
    try:
        corpus = load_corpus(data)
    except InputError as error:
        if not is_named:
            raise InputError(f"{error}; or name other data: data=text data.path=my.txt") from error
        corpus = load_corpus(replace(data, val_fraction=0.0))  # perhaps too short to be divided
    own = is_own(corpus, loaded)
    held_out = own or data.corpus in BUILT_IN or not is_named
    part = split or ("validation" if held_out else "all")
    words = {
        "validation": "measured on what is held out of it",
        "train": "measured on its training part",
        "all": "measured on all of it",
    }[part]
    if not own:
        words += (
            f"; not the run's own data: the model may have {UNKNOWN}" if "data" in record else ""
        )
    elif part == "all":
        words += ", what the model was trained on included"
    measured = corpus
    if part == "all" and data.corpus != "stories":
        data = replace(data, val_fraction=0.0)  # whole and in their order
        measured = load_corpus(data)
    return Choice(data, part, corpus, measured, words)


def is_own(corpus: Corpus, loaded: LoadedModel) -> bool:
    """Whether these are the documents, and the split, of the model's run."""
    return prepared_name(corpus, loaded.tokenizer) == loaded.record.get("data")


def measured_stores(
    choice: Choice, tokenizer: Tokenizer, say: Callable[[str], None]
) -> list[TokenStore]:
    """The streams that hold the documents of a choice, in order.

    Raises `InputError` for a text that the tokenizer cannot encode.
    """
    prepared = prepare(choice.data, tokenizer, corpus=choice.measured, say=say)
    parts = {"train": [prepared.train], "validation": [prepared.validation]}
    return parts.get(choice.part, [prepared.train, prepared.validation])

"""Which documents a model is looked at with: those of its run, or others that are named."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from minigpt.checkpoint import LoadedModel
from minigpt.config import DataConfig, TrainConfig, check, from_plain
from minigpt.data.corpora import Corpus, load_corpus
from minigpt.data.token_store import TokenStore, prepare, prepared_name
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.settings import set_value, value_of

#: Corpora that come with the program.
BUILT_IN = ("stories", "stdlib")

#: Settings that say which text there is.
_SOURCE = ("data.corpus", "data.path")


def run_settings(record: dict[str, Any], given: DataConfig, named: frozenset[str]) -> TrainConfig:
    """The settings of a model's run, those of `given` that are `named` put over its data's.

    Where they name another text, what the run held out of its own, and how much of it was read,
    does not hold. A model of no run (a Hugging Face folder) has what is given.
    """
    if "config" not in record:
        return TrainConfig(data=given)
    saved = from_plain(TrainConfig, record["config"] | {"resume": ""})
    chosen = sorted(key for key in named if key.startswith("data."))
    whole = replace(saved, data=given)
    if any(value_of(saved, key) != value_of(whole, key) for key in _SOURCE if key in named):
        saved.data.val_path, saved.data.max_documents = [], None
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

    `named` says that the command line named the corpus, not the model's run.
    """

    data: DataConfig
    part: str
    words: str
    named: bool


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
    own = _is_own(data, loaded)
    held_out = own or data.corpus in BUILT_IN or not is_named
    part = split or ("validation" if held_out else "all")
    words = {
        "validation": "measured on what is held out of it",
        "train": "measured on its training part",
        "all": "measured on all of it",
    }[part]
    if "data" in record and not own:
        words += "; not what the model was trained on"
    elif own and part == "all":
        words += ", what the model was trained on included"
    if part == "all" and data.corpus != "stories":
        data = replace(data, val_fraction=0.0)  # whole and in their order
    return Choice(data, part, words, is_named)


def _is_own(data: DataConfig, loaded: LoadedModel) -> bool:
    """Whether these are the documents, and the split, of the model's run."""
    if "data" not in loaded.record:
        return False
    try:
        return prepared_name(load_corpus(data), loaded.tokenizer) == loaded.record["data"]
    except InputError:  # `measured_stores` reads it again and tells
        return False


def measured_stores(
    choice: Choice, tokenizer: Tokenizer, say: Callable[[str], None]
) -> tuple[list[TokenStore], Corpus]:
    """The streams that hold the documents of a choice, in order, and their corpus.

    Raises `InputError` for a text that cannot be read, or that the tokenizer cannot encode.
    """
    try:
        prepared = prepare(choice.data, tokenizer, say=say)
    except InputError as error:
        if choice.named:
            raise
        raise InputError(f"{error}; or name other data: data=text data.path=my.txt") from error
    parts = {"train": [prepared.train], "validation": [prepared.validation]}
    stores = parts.get(choice.part, [prepared.train, prepared.validation])
    return stores, prepared.corpus

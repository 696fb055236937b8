"""Where documents come from. A corpus is documents (strings) in two parts that share nothing.

Every corpus reads or tells its documents anew each time they are asked for, so that none has to
be held in memory; the parts are fixed by the documents and the settings, never by a seed.
"""

import hashlib

from minigpt.config import DataConfig
from minigpt.data.corpora import jsonl, stdlib, text
from minigpt.data.corpora.corpus import Corpus
from minigpt.errors import InputError

__all__ = ["Corpus", "load_corpus"]

_CORPORA = ("stories", "stdlib", "text", "jsonl")

#: The stories are the same for every training seed.
_TRAINING_SEED = 1
_VALIDATION_SEED = 2
_N_STORIES = 50_000
_MOST_VALIDATION_STORIES = 1_000
_N_KNOWN_BY = 100


def load_corpus(config: DataConfig) -> Corpus:
    """Look through the documents that the settings name, count them and fix the split.

    Raises `InputError` if they cannot be read or leave a part with nothing in it.
    """
    if config.corpus in ("stories", "stdlib"):
        for name in ("path", "val_path"):
            if getattr(config, name):
                raise InputError(
                    f"data.{name} is not read by data={config.corpus}: add data=text or data=jsonl"
                )
    match config.corpus:
        case "stories":
            return _stories(config)
        case "stdlib":
            return stdlib.load(config)
        case "text":
            return text.load(config)
        case "jsonl":
            return jsonl.load(config)
        case _:
            raise InputError(f"data.corpus={config.corpus}: choose one of {', '.join(_CORPORA)}")


def _stories(config: DataConfig) -> Corpus:
    """Stories of two fixed seeds: `max_documents` to train on, `val_fraction` as many to hold out.

    No more than 1,000 are held out: enough to know the loss to a tenth of a percent, and quick.
    """
    from minigpt.data.corpora import stories  # the grammar is only built if it is told

    n_train = config.max_documents or _N_STORIES
    n_validation = max(1, min(_MOST_VALIDATION_STORIES, int(n_train * config.val_fraction)))
    settings = (stories.GRAMMAR_VERSION, _TRAINING_SEED, n_train, _VALIDATION_SEED, n_validation)
    # so that prepared tokens do not outlive a grammar that changed and kept its version
    first = hashlib.sha256("".join(stories.stories(_TRAINING_SEED, _N_KNOWN_BY)).encode())
    return Corpus(
        name="stories",
        identity=f"stories {settings} {first.hexdigest()}",
        train=lambda: stories.stories(_TRAINING_SEED, n_train),
        validation=lambda: stories.stories(_VALIDATION_SEED, n_validation),
        n_documents=n_train + n_validation,
        log_probability=stories.log_probability,
    )

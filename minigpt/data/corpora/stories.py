"""The built-in corpus: short English stories from a known grammar.

Because the grammar is known, so is the exact probability of every story, hence the loss that no
model of these stories can beat; and any text can be read back to the choices that tell it, hence
whether a sampled story is one that the grammar could have told. Nothing is downloaded or stored:
story number i is a function of (seed, i).
"""

import math
import random
from collections.abc import Callable, Iterator
from itertools import count as count_from
from itertools import islice

from minigpt.config import DataConfig
from minigpt.data.cache import digest
from minigpt.data.corpora.corpus import Corpus, Part
from minigpt.data.corpora.story_grammar import GRAMMAR_VERSION, Fork, Options, tell

#: The stories are the same for every training seed.
_TRAINING_SEED = 1
_VALIDATION_SEED = 2
_N_STORIES = 50_000
_MOST_VALIDATION_STORIES = 1_000
_N_KNOWN_BY = 100


def load(config: DataConfig) -> Corpus:
    """Stories of two fixed seeds: `max_documents` to train on, `val_fraction` as many to hold out.

    No more than 1,000 are held out: enough to know the loss to a tenth of a percent, and quick.
    """
    n_train = config.max_documents or _N_STORIES
    n_validation = max(1, min(_MOST_VALIDATION_STORIES, int(n_train * config.val_fraction)))
    # so that prepared tokens do not outlive a grammar that changed and kept its version
    first = "".join(stories(_TRAINING_SEED, _N_KNOWN_BY))
    return Corpus(
        name="stories",
        text=digest([GRAMMAR_VERSION, _TRAINING_SEED, _VALIDATION_SEED, first]),
        division=digest([n_train, n_validation]),
        train=lambda: map(Part, stories(_TRAINING_SEED, n_train)),
        validation=lambda: map(Part, stories(_VALIDATION_SEED, n_validation)),
        n_documents=n_train + n_validation,
        n_bytes=None,  # to count them takes as long as to tell them
        log_probability=log_probability,
    )


def stories(seed: int, count: int | None = None) -> Iterator[str]:
    """Yield the first `count` stories of the endless sequence of `seed`, or all of it if None."""
    for number in islice(count_from(), count):
        # A text seed is hashed, so that neighbouring seeds and numbers have nothing in common.
        yield story(random.Random(f"{seed}:{number}"))


def story(rng: random.Random) -> str:
    """Draw a story from the grammar; each further call with `rng` gives an independent one."""
    # Of the generator's methods only this one promises the same numbers in every Python version.
    draw = rng.random

    def choose(options: Options) -> str:
        return options[0] if len(options) == 1 else options[int(draw() * len(options))]

    return "".join(said for _, said in _told_by(choose) or ())


def parse(text: str) -> tuple[str, ...] | None:
    """Find the choices that tell exactly this text, or None if the grammar cannot tell it."""
    told = _read(text)
    return None if told is None else tuple(said for options, said in told if len(options) > 1)


def log_probability(text: str) -> float:
    """Give the log of the probability that `story` returns exactly this text: nats, or -inf.

    Minus its mean over stories, divided by their mean number of targets (tokens and the end), is
    the loss in nats per token that no model can beat.
    """
    told = _read(text)
    return -math.inf if told is None else -sum(math.log(len(options)) for options, _ in told)


def count_stories() -> int:
    """Count the different stories, exactly."""
    return _count_along(())


def _count_along(path: Options) -> int:
    """Count the stories whose first forks went along this path.

    Different choices make different texts, and only a `Fork` changes how many options the later
    choices have: so between the forks one telling stands for all.
    """
    ahead = iter(path)
    branches: Options = ()

    def choose(options: Options) -> str | None:
        nonlocal branches
        if not isinstance(options, Fork):
            return options[0]
        branches = options
        return next(ahead, None)

    told = _told_by(choose)
    if told is None:
        return sum(_count_along((*path, branch)) for branch in branches)
    return math.prod(len(options) for options, _ in told if not isinstance(options, Fork))


_Told = list[tuple[Options, str]]
"""A story from its start: what could have been said at each point, and what was."""


def _told_by(choose: Callable[[Options], str | None]) -> _Told | None:
    """Tell the story in which `choose` says each piece; None as soon as it has nothing to say."""
    told: _Told = []
    telling = tell()
    try:
        asked = next(telling)
        while True:
            options = (asked,) if isinstance(asked, str) else asked
            said = choose(options)
            if said is None:
                return None
            told.append((options, said))
            asked = telling.send(said)
    except StopIteration:
        return told


def _read(text: str) -> _Told | None:
    """Follow the telling of `text`: as options are prefix-free, at most one of them comes next."""
    at = 0

    def choose(options: Options) -> str | None:
        nonlocal at
        for option in options:
            if text.startswith(option, at):
                at += len(option)
                return option
        return None

    told = _told_by(choose)
    return told if at == len(text) else None

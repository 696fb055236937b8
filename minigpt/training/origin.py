"""`init_from`: a new run that begins with the weights and the tokenizer of a trained model."""

import dataclasses
import os
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.config import ModelConfig, TokenizerConfig, TrainConfig
from minigpt.errors import InputError
from minigpt.hub import is_hub_name
from minigpt.model.gpt import GPT
from minigpt.run_folder import LATEST, find_checkpoint, latest_run
from minigpt.settings import value_of

#: What may be told of a model that brings its own settings.
_MAY_BE_TOLD = ("model.block_size", "model.dropout")


def load_origin(
    config: TrainConfig, named: Collection[str], say: Callable[[str], None]
) -> LoadedModel | None:
    """The model and tokenizer that `init_from` names, or None; its record is the other run's.

    `named` are the keys that the command line set. Of the model's only the context and the dropout
    can be told anew. A shorter context keeps the first rows of the positional table; a longer one
    keeps them all, and the rows after them are drawn by `seed` as a new model's: up to the old
    context the model computes what it did. Raises `InputError` for other settings of the model or
    the tokenizer, and as `load_model` does.
    """
    if not config.init_from:
        return None
    for key in sorted(named):
        if key.startswith(("model.", "tokenizer.")) and key not in _MAY_BE_TOLD:
            raise InputError(f"{key}: init_from={config.init_from} brings its own; leave it out")
    loaded = load_model(find_checkpoint(config.init_from))
    told = {
        key.removeprefix("model."): value_of(config, key) for key in _MAY_BE_TOLD if key in named
    }
    changed = dataclasses.replace(loaded.model.config, **told)
    if changed == loaded.model.config:
        return loaded
    old, new = loaded.model.config.block_size, changed.block_size
    if new != old:
        known = ""
        if changed.position == "learned":
            known = f": positions 1 to {min(old, new)} are {config.init_from}'s"
            known += ", the others are new" if new > old else ""
        say(f"context {old} -> {new}{known}")
    return dataclasses.replace(loaded, model=_adapted(loaded.model, changed, config.seed))


def with_settings_of(origin: LoadedModel, config: TrainConfig) -> TrainConfig:
    """The same settings with what a run has from another model, and where that is."""
    kind, size = origin.tokenizer.kind, origin.tokenizer.vocab_size
    tokenizer = TokenizerConfig(kind=kind, vocab_size=size if kind == "bpe" else None)
    place = place_of_origin(config.init_from)
    return dataclasses.replace(
        config, model=origin.model.config, tokenizer=tokenizer, init_from=place
    )


def place_of_origin(init_from: str) -> str:
    """A path from the root, so that it means the same from any folder; a name on the hub as it is.

    "" stays.
    """
    path = Path(init_from)
    if not init_from or (not path.exists() and is_hub_name(init_from)):
        return init_from
    if path == LATEST:  # which will soon be another run
        path = latest_run() or path
    return str(Path(os.path.abspath(path)))  # noqa: PTH100  without `..`, and links as they are


def _adapted(model: GPT, config: ModelConfig, seed: int) -> GPT:
    """The same model with another context or dropout."""
    torch.manual_seed(seed)
    try:
        adapted = GPT(config, model.vocab_size)
    except (RuntimeError, TypeError) as error:  # torch's words for what there is no memory for
        raise InputError(
            f"model.block_size={config.block_size}: there is no memory for so many positions"
        ) from error
    weights = model.state_dict()
    name = "position.weight"
    if name in weights:  # a table that was learned, and not made
        rows = adapted.state_dict()[name].clone()
        known = min(len(rows), len(weights[name]))
        rows[:known] = weights[name][:known]
        weights[name] = rows
    adapted.load_state_dict(weights)
    return adapted

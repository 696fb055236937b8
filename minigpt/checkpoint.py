"""The one file: weights, model config, tokenizer and training state, all plain data.

A checkpoint is a dictionary with Lightning's top-level keys (`state_dict`, `optimizer_states`,
`global_step` …) and, under `RECORD`, our own: what is needed to rebuild the model and to go on
training, without anything else at hand. It is only ever read with `weights_only=True`, so that
loading one cannot run code.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minigpt.config import ModelConfig, from_plain
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError, RunError
from minigpt.files import written_whole
from minigpt.model.gpt import GPT

#: The key of our own data: `model_config`, `vocab_size`, `tokenizer` (JSON text), `config`
#: (every setting), `documents` (of the training part), `step`, `val_loss`, `best_val_loss`, …
RECORD = "minigpt"

#: The Lightning module holds the model as `self.model`, so its state dict has this prefix.
MODEL_PREFIX = "model."


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for use, with its tokenizer and the record of how it came to be."""

    model: GPT
    tokenizer: Tokenizer
    record: dict[str, Any]


def write_checkpoint(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint whole or not at all.

    Raises `RunError` if the file cannot be written; what was at `path` before then stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            torch.save(contents, file)
    # torch reports a full disk as a RuntimeError of its zip writer
    except (OSError, RuntimeError) as error:
        raise RunError(f"cannot write the checkpoint {path}: {error}") from error


def read_checkpoint(path: Path, *, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The contents of a checkpoint of ours, tensors on `device`.

    Raises `InputError` if the file is missing, damaged, or of another program.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint file")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch thinks of a file that is no checkpoint
            contents = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # what is not a pickle can make the unpickler raise anything
        raise InputError(_unreadable(path)) from error
    if not isinstance(contents, dict) or RECORD not in contents:
        raise InputError(f"{path}: not a checkpoint of this program (it has no '{RECORD}' record)")
    return contents  # pyright: ignore[reportUnknownVariableType]


def _unreadable(path: Path) -> str:
    """Say that a file is damaged or foreign, and name its neighbour if that can be used."""
    message = f"{path}: damaged, or not a checkpoint"
    for name in ("last.ckpt", "best.ckpt"):
        other = path.with_name(name)
        if other != path and other.is_file():
            return f"{message}; {other} is beside it"
    return message


def load_model(
    path: Path, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> LoadedModel:
    """Rebuild the model and the tokenizer of a checkpoint, for use: in evaluation mode.

    `dtype` None keeps the dtype of the stored weights. Raises `InputError` as `read_checkpoint`
    does, and if the file's own parts do not fit each other.
    """
    contents = read_checkpoint(path)
    record: dict[str, Any] = contents[RECORD]
    try:
        tokenizer = Tokenizer.from_json(record["tokenizer"])
        model = GPT(from_plain(ModelConfig, record["model_config"]), record["vocab_size"])
        weights = {
            name.removeprefix(MODEL_PREFIX): tensor
            for name, tensor in contents["state_dict"].items()
            if name.startswith(MODEL_PREFIX)
        }
        model.load_state_dict(weights)
    except (KeyError, RuntimeError, TypeError) as error:
        summary = " ".join(str(error).split())
        raise InputError(f"{path}: its parts do not fit each other: {summary}") from error
    if tokenizer.vocab_size != model.vocab_size:
        raise InputError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens"
            f" and the model {model.vocab_size}"
        )
    return LoadedModel(model.to(device=device, dtype=dtype).eval(), tokenizer, record)

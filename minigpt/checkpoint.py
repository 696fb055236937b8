"""The one file: weights, model config, tokenizer and training state, all plain data.

A checkpoint is a dictionary with Lightning's top-level keys (`state_dict`, `optimizer_states`,
`global_step` …) and, under `RECORD`, our own: what is needed to rebuild the model and to go on
training, without anything else at hand. It is only ever read with `weights_only=True`, so that
loading one cannot run code.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from minigpt.config import ModelConfig, TrainConfig, from_plain
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError, RunError
from minigpt.files import written_whole
from minigpt.model.gpt import GPT, state_shapes
from minigpt.model.undrawn import Undrawn
from minigpt.pickles import read_pickled

#: The key of our own data: `model_config`, `vocab_size`, `tokenizer` (JSON text), `config`
#: (every setting), `documents` (of the training part), `step`, `val_loss`, `best_val_loss`, …
RECORD = "minigpt"

#: What every record has: enough to rebuild the model and to use it.
_FOR_USE: dict[str, type] = {
    "model_config": dict,
    "vocab_size": int,
    "tokenizer": str,
    "documents": int,
}

#: Most bytes of a positional table: only a learned one is in the file, which then shows its size.
_LARGEST_TABLE = 1 << 30

#: Of the memory that torch allocates on a CPU, in bytes; how a sum is split depends on it.
_ALIGNMENT = 64

#: The Lightning module holds the model as `self.model`, so its state dict has this prefix.
MODEL_PREFIX = "model."


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for use, with its tokenizer and the record of how it came to be."""

    model: GPT
    tokenizer: Tokenizer
    record: dict[str, Any]

    @property
    def start_of_document(self) -> bool:
        """Whether the model has learned to see the end token in front of a text.

        A run's has where its corpus had several documents; a folder's tokenizer says so itself.
        """
        documents = self.record.get("documents")
        return self.tokenizer.opens_texts if documents is None else documents > 1


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

    The record has what a model needs, `state_dict` holds tensors that the file is large enough
    for. Raises `InputError` if the file is missing, damaged, or of another program.
    """
    contents = _read(path, device)
    if contents is None:
        raise InputError(_unreadable(path))
    record = _record_in(contents)
    if record is None:
        raise InputError(f"{path}: not a checkpoint of this program (it has no '{RECORD}' record)")
    check_record(path, record, _FOR_USE)
    _check_tensors(path, contents.get("state_dict"))
    return contents


def _record_in(contents: Any) -> dict[str, Any] | None:
    """Our record in what a file holds, if that has one."""
    record = cast("dict[str, Any]", contents).get(RECORD) if isinstance(contents, dict) else None
    return cast("dict[str, Any]", record) if isinstance(record, dict) else None


def _read(path: Path, device: str | torch.device = "cpu") -> Any:
    """What is in a file, or None if it is damaged; `InputError` if there is none to be read."""
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint file")
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return read_pickled(path, device)


def _unreadable(path: Path) -> str:
    """Say that a file is damaged or foreign, and name the newest beside it that can be read."""
    message = f"{path}: damaged, or not a checkpoint"
    steps: dict[Path, int] = {}
    for other in path.parent.glob("*.ckpt"):
        record = _record_in(_read(other)) if other != path and other.is_file() else None
        if record is not None:
            step = record.get("step")
            steps[other] = step if isinstance(step, int) else 0
    if not steps:
        return message
    newest = max(sorted(steps), key=lambda other: steps[other])
    return f"{message}; use {newest} beside it, which is whole (step {steps[newest]})"


def check_record(path: Path, record: dict[str, Any], wanted: dict[str, type]) -> None:
    """Raise `InputError` if a part of a checkpoint's record is missing or of another type."""
    for name, kind in wanted.items():
        value = record.get(name)
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or isinstance(value, bool):
            found = "missing" if name not in record else f"of type {type(value).__name__}"
            raise InputError(f"{path}: {name} in its record is {found}, must be {kind.__name__}")
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise InputError(f"{path}: {name} in its record is {value}, must be 0 or more")


def _check_tensors(path: Path, weights: Any) -> None:
    """Raise `InputError` unless `weights` are named tensors of numbers that are in the file."""
    if not isinstance(weights, dict):
        raise InputError(f"{path}: its state_dict is {type(weights).__name__}, must be dict")
    size = 0
    for name, tensor in cast("dict[object, object]", weights).items():
        usable = (
            isinstance(tensor, torch.Tensor)
            and tensor.layout == torch.strided
            and tensor.is_floating_point()
            and not tensor.is_meta
        )
        if not isinstance(name, str) or not usable:
            raise InputError(f"{path}: {name} in its state_dict is no tensor of floating point")
        size += cast("torch.Tensor", tensor).nbytes
    if size > path.stat().st_size:
        raise InputError(f"{path}: its weights claim {size:,} bytes, more than the file has")


def settings_of(record: dict[str, Any]) -> TrainConfig:
    """The settings of the run that a record is of; those that it lacks take their defaults.

    Raises `InputError` for one that does not exist or is out of its range, `LookupError`,
    `TypeError` or `AttributeError` where the record holds no settings.
    """
    # with a run to resume, `check` would leave the settings that depend on each other alone
    saved = record["config"] | {"resume": ""}
    optim = {"kind": "adamw"} | saved.get("optim", {})  # which has not always been a choice
    return from_plain(TrainConfig, saved | {"optim": optim})


def load_model(
    place: Path, *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> LoadedModel:
    """The model and the tokenizer of a checkpoint file or a Hugging Face folder, for use.

    The model is in evaluation mode; `dtype` None is float32. A folder's record is empty. Raises
    `InputError` as `read_checkpoint` and `read_folder` do, and if the parts do not fit each other.
    """
    if not place.is_dir():
        return build_model(place, read_checkpoint(place), device=device, dtype=dtype)
    from minigpt.huggingface import read_folder

    held = read_folder(place)
    model = _with_weights(place, held.config, held.vocab_size, held.weights, dtype)
    return LoadedModel(model.to(device=device), held.tokenizer, {})


def build_model(
    path: Path,
    contents: dict[str, Any],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> LoadedModel:
    """The model in what `read_checkpoint` read from `path`, as `load_model` gives it."""
    record = contents[RECORD]
    weights = {
        name.removeprefix(MODEL_PREFIX): tensor for name, tensor in contents["state_dict"].items()
    }
    try:
        config = from_plain(ModelConfig, record["model_config"])
        tokenizer = Tokenizer.from_json(record["tokenizer"])
    except (InputError, LookupError, TypeError, ValueError, AttributeError) as error:
        summary = " ".join(str(error).split())
        raise InputError(f"{path}: its record cannot be used: {summary}") from error
    vocab_size = record["vocab_size"]
    if tokenizer.vocab_size > vocab_size:  # fewer are a vocabulary that was padded for speed
        raise InputError(
            f"{path}: its tokenizer has {tokenizer.vocab_size} tokens and its model {vocab_size}"
        )
    _check_fit(path, config, vocab_size, weights)
    model = _with_weights(path, config, vocab_size, weights, dtype)
    return LoadedModel(model.to(device=device), tokenizer, record)


def _with_weights(
    place: Path,
    config: ModelConfig,
    vocab_size: int,
    weights: dict[str, torch.Tensor],
    dtype: torch.dtype | None,
) -> GPT:
    """The model that has these weights, of its shapes; `InputError` if one is no finite number."""
    with Undrawn():
        model = GPT(config, vocab_size)
    model.load_state_dict(_alone(weights), assign=True)
    model = model.to(dtype=dtype or torch.float32)
    for name, tensor in model.state_dict().items():
        # the least and the greatest number are both finite only if all are; a NaN would be both
        if not torch.stack(tensor.aminmax()).isfinite().all():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{place}: {name} in its weights is not finite as {kind}")
    return model.eval()


def _alone(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that a model can have for its own: each lies as torch allocates one, by itself.

    What does not is copied: a turned one, part of a larger one, another name of the same memory.
    """
    own: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, given in weights.items():
        tensor = given.detach()
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if not whole or place in taken or place % _ALIGNMENT:
            own[name] = tensor.clone(memory_format=torch.contiguous_format)
        else:
            own[name] = tensor
            taken.add(place)
    return own


def _check_fit(
    path: Path, config: ModelConfig, vocab_size: int, weights: dict[str, torch.Tensor]
) -> None:
    """Raise `InputError` unless the weights are those of the model; takes no memory for one."""
    fault = f"{path}: its parts do not fit each other: "
    made = config.block_size * config.n_embd * 4 if config.position != "learned" else 0
    if config.n_layer > len(weights) or made > _LARGEST_TABLE:
        raise InputError(f"{fault}the model's config is of a larger one than the file holds")
    try:
        expected = state_shapes(config, vocab_size)
    except ValueError as error:
        raise InputError(f"{fault}the model's config is of no possible one") from error
    for name in sorted(expected.keys() | weights.keys()):
        if name not in weights or name not in expected:
            raise InputError(f"{fault}{name} is in only one of its weights and its config")
        shape = tuple(weights[name].shape)
        if shape != expected[name]:
            raise InputError(f"{fault}{name} is {shape}, its config says {expected[name]}")

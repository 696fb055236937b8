"""A GPT-2 as the Hugging Face ecosystem keeps one: a folder of `config.json`, weights, tokenizer.

What such a folder can say and this program's model cannot do is refused, never dropped. Its four
linear maps in a block are `Conv1D`: weights (in, out), the transpose of a linear layer's.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt.config import ModelConfig, from_plain
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_files import read_tokenizer
from minigpt.errors import InputError
from minigpt.model.gpt import state_shapes
from minigpt.pickles import read_pickled

#: `model.activation` in GPT-2's words: the tanh form of GELU is "new" there.
ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "relu2": "relu2"}

#: What LayerNorm adds to the variance, in both.
NORM_EPSILON = 1e-5

#: Our names of a model's parts in GPT-2's; `True` where that holds the matrix transposed.
_PARTS = {
    "embedding": ("transformer.wte", False),
    "position": ("transformer.wpe", False),
    "norm": ("transformer.ln_f", False),
    "norm_1": ("ln_1", False),
    "attention.qkv": ("attn.c_attn", True),
    "attention.output": ("attn.c_proj", True),
    "norm_2": ("ln_2", False),
    "mlp.up": ("mlp.c_fc", True),
    "mlp.down": ("mlp.c_proj", True),
}

#: Sizes in `config.json`: their other names, and what one that is left out is (`GPT2Config`).
_SIZES = {
    "vocab_size": ("vocab_size", 50257),
    "n_positions": ("max_position_embeddings", 1024),
    "n_embd": ("hidden_size", 768),
    "n_layer": ("num_hidden_layers", 12),
    "n_head": ("num_attention_heads", 12),
}
#: No size is as large: what is beyond leaves the range of the numbers that count bytes.
_LARGEST = 1 << 31
_FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

#: Settings that have to have this value, which is also the one where they are left out.
_FIXED = {
    "layer_norm_epsilon": NORM_EPSILON,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
#: The same as pickles, which are read as plain data or not at all.
_PICKLED, _PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a folder holds; the weights by our names."""

    config: ModelConfig
    vocab_size: int
    weights: dict[str, Tensor]
    tokenizer: Tokenizer


def taken_apart(name: str) -> tuple[str | None, str, str]:
    """Layer, part and kind of a parameter: `blocks.3.mlp.up.bias` is ("3", "mlp.up", "bias")."""
    part, _, kind = name.rpartition(".")
    if not part.startswith("blocks."):
        return None, part, kind
    _, layer, part = part.split(".", 2)
    return layer, part, kind


def gpt2_name(name: str) -> tuple[str, bool]:
    """GPT-2's name of a parameter of ours, and whether it is kept transposed there.

    `blocks.3.mlp.up.weight` is `transformer.h.3.mlp.c_fc.weight`, transposed.
    """
    layer, part, kind = taken_apart(name)
    theirs, turned = _PARTS[part]
    place = theirs if layer is None else f"transformer.h.{layer}.{theirs}"
    return f"{place}.{kind}", turned and kind == "weight"


def read_folder(folder: Path) -> ModelFolder:
    """Read a GPT-2, its weights as they are in the files.

    Raises `InputError` for a folder that lacks a file or a tensor, holds one of another shape, or
    is of another architecture.
    """
    path = folder / "config.json"
    described = _read_json(path)
    config = _model_config(path, described)
    vocab_size = _size(path, described, "vocab_size")
    tokenizer = read_tokenizer(folder)
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{folder}: its tokenizer has {tokenizer.vocab_size:,} tokens and its model"
            f" {vocab_size:,}; they are not of one model"
        )
    found = dict(_tensors(folder))
    if config.n_layer > len(found):  # before a model of any size is made of what it says
        raise InputError(
            f"{folder}: its config has {config.n_layer:,} layers and its weights fewer"
        )
    try:
        expected = state_shapes(config, vocab_size)
    except ValueError as error:
        raise InputError(f"{path}: describes no possible model") from error
    weights = _our_weights(folder, expected, found)
    return ModelFolder(config, vocab_size, weights, tokenizer)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path.parent}: a Hugging Face model folder, but it has no {path.name}")
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: not a JSON object")
    return cast("dict[str, Any]", values)


def _model_config(path: Path, described: dict[str, Any]) -> ModelConfig:
    """Our settings for what a `config.json` describes; `InputError` where there are none."""
    kind = described.get("model_type")
    if kind != "gpt2":
        raise InputError(f"{path}: model_type is {json.dumps(kind)}; what can be read is: gpt2")
    for name, needed in _FIXED.items():
        if (given := described.get(name, needed)) != needed:
            raise InputError(
                f"{path}: {name} is {json.dumps(given)}; only {json.dumps(needed)} can be read"
            )
    n_embd = _size(path, described, "n_embd")
    if described.get("n_inner") not in (None, 4 * n_embd):
        raise InputError(
            f"{path}: n_inner is {described['n_inner']}; only {4 * n_embd} (4 n_embd) can be read"
        )
    theirs = {name: ours for ours, name in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu"}
    activation = described.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in theirs:
        known = ", ".join(theirs)
        raise InputError(
            f"{path}: activation_function is {json.dumps(activation)}; what can be read is: {known}"
        )
    values = {
        "n_layer": _size(path, described, "n_layer"),
        "n_head": _size(path, described, "n_head"),
        "n_embd": n_embd,
        "block_size": _size(path, described, "n_positions"),
        "dropout": _dropout(path, described),
        "activation": theirs[activation],
    }
    try:
        return from_plain(ModelConfig, values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _size(path: Path, described: dict[str, Any], name: str) -> int:
    alias, left_out = _SIZES[name]
    size = described.get(name, described.get(alias, left_out))
    whole = isinstance(size, int) and not isinstance(size, bool)
    if not whole or not 1 <= size < _LARGEST:
        raise InputError(
            f"{path}: {name} is {json.dumps(size)}; must be a whole number above 0 and below 2^31"
        )
    if described.get(alias, size) != size:
        raise InputError(f"{path}: {name} is {size} and {alias}, its other name, is another")
    return size


def _dropout(path: Path, described: dict[str, Any]) -> float:
    share = described.get("resid_pdrop", 0.1)
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if not number or not 0 <= share <= 0.99:
        raise InputError(
            f"{path}: resid_pdrop is {json.dumps(share)}; must be a number from 0 to 0.99"
        )
    return float(share)


def _our_weights(
    folder: Path, expected: dict[str, tuple[int, ...]], found: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors that were found by our names, the right way round.

    Raises `InputError` where one is missing, has another shape, or has no place in the model.
    """
    weights: dict[str, Tensor] = {}
    for ours, shape in expected.items():
        name, turned = gpt2_name(ours)
        if name not in found:
            raise InputError(f"{folder}: its weights have no {name}")
        tensor = found.pop(name)
        wanted = shape[::-1] if turned else shape
        if tensor.dtype not in _FLOATING or tuple(tensor.shape) != wanted:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(
                f"{folder}: {name} is {tuple(tensor.shape)} of {kind}; by its config it has to be"
                f" {wanted} of 16 to 64 bits of floating point"
            )
        weights[ours] = tensor.T if turned else tensor
    head = found.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, weights["embedding.weight"]):
        raise InputError(
            f"{folder}: lm_head.weight is not the embedding; only a head that is tied to it can"
            " be read"
        )
    if found:
        raise InputError(f"{folder}: {min(found)} among its weights is of no plain GPT-2")
    return weights


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a folder by GPT-2's name, without masks that older versions saved."""
    for path in _weight_files(folder):
        for name, tensor in _read_file(path):
            # the model without its head, as the hub's own `gpt2` is saved, has no such prefix
            whole = name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
            if not whole.endswith((".attn.bias", ".attn.masked_bias")):
                yield whole, tensor


def _weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights, all there."""
    for whole, index in ((WHOLE, INDEX), (_PICKLED, _PICKLED_INDEX)):
        if (folder / whole).is_file():
            return [folder / whole]
        if (folder / index).is_file():
            return _shards(folder / index)
    raise InputError(
        f"{folder}: a Hugging Face model folder, but it has no {WHOLE}, {INDEX} or {_PICKLED}"
    )


def _shards(index: Path) -> list[Path]:
    places: object = _read_json(index).get("weight_map")
    names = list(cast("dict[str, object]", places).values()) if isinstance(places, dict) else []
    beside = [name for name in names if isinstance(name, str) and name and name == Path(name).name]
    if not names or len(beside) < len(names):
        raise InputError(f"{index}: has no weight_map from tensors to the files beside it")
    shards = [index.with_name(name) for name in sorted(set(beside))]
    for shard in shards:
        if not shard.is_file():
            raise InputError(f"{index.parent}: the shard {shard.name} is missing")
    return shards


def _read_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    if path.name.startswith("pytorch_model"):
        yield from _unpickled(path).items()
        return
    try:
        opened: Any = safe_open(path, framework="pt")  # untyped
        with opened as file:
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: damaged, or not safetensors: {error}") from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    """Tensors in torch's own format; code in it is not run, such a file is refused."""
    contents: object = read_pickled(path, unzipped=True)
    tensors = cast("dict[object, object]", contents) if isinstance(contents, dict) else {}
    if not tensors or not all(map(_is_plain, tensors, tensors.values())):
        raise InputError(
            f"{path}: damaged, or not plain tensors, which is all that is read of a pickle; use"
            " safetensors"
        )
    return cast("dict[str, Tensor]", tensors)


def _is_plain(name: object, tensor: object) -> bool:
    whole = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
    return whole and isinstance(name, str)

"""A folder that `transformers` loads with no code of ours, its tokenizer too.

`minigpt.huggingface` reads such a folder back.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import tokenizers
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch
from torch import Tensor

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_files import opening
from minigpt.errors import InputError, RunError
from minigpt.export.card import FRONT
from minigpt.export.check import ReadBack
from minigpt.huggingface import ACTIVATIONS, NORM_EPSILON, WHOLE, gpt2_name
from minigpt.model.gpt import GPT

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def write(folder: Path, loaded: LoadedModel, model: GPT, *, card: str, dtype: str) -> None:
    """Write a plain GPT-2, the tokenizer of `loaded`, and the card as README.md.

    Raises `InputError` for a weight that `dtype` has no number for, `RunError` where the disk ends.
    """
    tensors = {name: as_written(name, tensor, dtype) for name, tensor in model.state_dict().items()}
    folder.mkdir()
    end_id = loaded.tokenizer.end_id
    _write_json(folder / "config.json", model_description(model, end_id, dtype))
    generating = _generation_settings(loaded.tokenizer, model.vocab_size)
    _write_json(folder / "generation_config.json", generating)
    tokenizer = tokenizer_json(loaded.tokenizer, opens_texts=loaded.start_of_document)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    settings = _tokenizer_settings(loaded.tokenizer.end, model.config.block_size)
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "README.md").write_text(FRONT + card, encoding="utf-8")
    save = cast("Any", safetensors_torch).save_file  # typed in part
    try:
        save(dict(_by_their_names(tensors)), folder / WHOLE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise RunError(f"cannot write {folder / WHOLE}: {error}") from error
    # that library lets the owner alone read it
    (folder / WHOLE).chmod((folder / "config.json").stat().st_mode)


def notes(model: GPT, dtype: str) -> tuple[str, ...]:
    """Nothing: every tensor is of the one type."""
    del model, dtype
    return ()


def as_written(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """A tensor in the numbers of the file; `InputError` if one of them is beyond their range."""
    numbers = tensor.detach().to(DTYPES[dtype])
    if not torch.isfinite(numbers).all():
        raise InputError(
            f"dtype={dtype}: {name} holds {tensor.abs().max():g}, beyond its range; use"
            " dtype=float32"
        )
    return numbers


def _by_their_names(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for ours, tensor in tensors.items():
        name, turned = gpt2_name(ours)
        yield name, (tensor.T if turned else tensor).contiguous()


def model_description(model: GPT, end_id: int, dtype: str) -> dict[str, Any]:
    """What `config.json` says: every setting of `GPT2Config` that a language model has."""
    config = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_positions": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": 4 * config.n_embd,
        "activation_function": ACTIVATIONS[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "layer_norm_epsilon": NORM_EPSILON,
        "initializer_range": 0.02,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": dtype,
    } | _ids(end_id)


def _generation_settings(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    settings = _ids(tokenizer.end_id) | {"pad_token_id": tokenizer.end_id}
    without_token = [*tokenizer.unused, *range(tokenizer.vocab_size, vocab_size)]
    return settings | ({"suppress_tokens": without_token} if without_token else {})


def _ids(end_id: int) -> dict[str, Any]:
    return {"bos_token_id": end_id, "eos_token_id": end_id}


def tokenizer_json(tokenizer: Tokenizer, *, opens_texts: bool) -> str:
    """The tokenizer's JSON, with the end token before every text where that is the model's way."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.standard_json())
    plain: Any = None  # which takes away what an imported tokenizer may bring
    inner.post_processor = opening(tokenizer.end, tokenizer.end_id) if opens_texts else plain
    return inner.to_str(pretty=True)


def _tokenizer_settings(end: str, block_size: int) -> dict[str, Any]:
    return {
        # the generic class: it uses tokenizer.json as it is, GPT2Tokenizer builds a pipeline anew
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end,
        "eos_token": end,
        # text that looks like the end token is text
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        # GPT-2 in transformers adds an embedding for each token_type_ids it is given
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": block_size,
    }


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_back(folder: Path) -> ReadBack:
    """What the files hold: the model as our reader has it, texts as `tokenizer.json` has them."""
    inner: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.encode_special_tokens = True  # split_special_tokens of tokenizer_config.json
    return ReadBack(load_model(folder).model, lambda text: inner.encode(text).ids, inner.decode)

"""A file that llama.cpp runs: a GPT-2's tensors, its sizes and its tokenizer, as GGUF.

Matrices are stored in the chosen type; norms, biases and the position table stay float32, as
llama.cpp's own converter leaves them.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from gguf import (
    GGML_QUANT_VERSION,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    quantize,
)
from torch import Tensor

from minigpt.checkpoint import LoadedModel
from minigpt.config import ModelConfig
from minigpt.errors import InputError
from minigpt.export.card import title
from minigpt.export.check import ReadBack
from minigpt.export.llama_vocabulary import LlamaVocabulary, decode, encoder, llama_vocabulary
from minigpt.export.place import CARD_KEY
from minigpt.huggingface import NORM_EPSILON, taken_apart
from minigpt.model.gpt import GPT

Array: TypeAlias = npt.NDArray[Any]

F32, F16, Q8_0 = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.Q8_0,
)
#: The type of a file's matrices, and llama.cpp's name for such a file.
DTYPES = {
    "float32": (F32, LlamaFileType.ALL_F32),
    "float16": (F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
#: The largest number of each; a scale of Q8_0 is a float16, and the most that it scales is 127.
LARGEST = {F32: math.inf, F16: 65504.0, Q8_0: 127 * 65504.0}
#: Numbers of a row that share a scale in Q8_0.
BLOCK = 32

#: Our names of a model's parts in GGUF's.
_PARTS = {
    "embedding": "token_embd",
    "position": "position_embd",
    "norm": "output_norm",
    "norm_1": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "norm_2": "ffn_norm",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}


def gguf_name(name: str) -> str:
    """GGUF's name of a parameter of ours: `blk.3.ffn_up.weight` for `blocks.3.mlp.up.weight`."""
    layer, part, kind = taken_apart(name)
    return f"{_PARTS[part]}.{kind}" if layer is None else f"blk.{layer}.{_PARTS[part]}.{kind}"


def write(path: Path, loaded: LoadedModel, model: GPT, *, card: str, dtype: str) -> None:
    """Write a plain GPT-2, the tokenizer of `loaded` and the card.

    Raises `InputError` for a tokenizer that llama.cpp does not follow, and for a weight that
    `dtype` has no number for.
    """
    vocabulary = llama_vocabulary(loaded.tokenizer, model.vocab_size)
    writer = GGUFWriter(path, "gpt2")
    writer.add_type("model")
    writer.add_name(title(model))
    writer.add_description("a GPT-2 trained with minigpt")
    writer.add_string(CARD_KEY, card)
    writer.add_file_type(DTYPES[dtype][1])
    if dtype == "q8_0":
        writer.add_quantization_version(GGML_QUANT_VERSION)
    _add_sizes(writer, model)
    _add_vocabulary(writer, vocabulary, loaded)
    for ours, tensor in model.state_dict().items():
        stored, kind = _stored(ours, tensor, dtype)
        writer.add_tensor(gguf_name(ours), stored, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_sizes(writer: GGUFWriter, model: GPT) -> None:
    config = model.config
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(NORM_EPSILON)
    writer.add_vocab_size(model.vocab_size)


def _add_vocabulary(writer: GGUFWriter, vocabulary: LlamaVocabulary, loaded: LoadedModel) -> None:
    end_id = loaded.tokenizer.end_id
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(end_id)
    writer.add_eos_token_id(end_id)
    writer.add_eot_token_id(end_id)
    writer.add_add_bos_token(loaded.start_of_document)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    # what no token is for is never sampled here either
    tokenizer = loaded.tokenizer
    without_token = [*tokenizer.unused, *range(tokenizer.vocab_size, loaded.model.vocab_size)]
    writer.add_array("tokenizer.ggml.suppress_tokens", without_token)


def stored_as(name: str, shape: Sequence[int], dtype: str) -> GGMLQuantizationType:
    """The type that a tensor gets in a file of `dtype`."""
    if len(shape) < 2 or name == "position.weight":
        return F32
    kind = DTYPES[dtype][0]
    return F16 if kind == Q8_0 and shape[-1] % BLOCK else kind


def notes(model: GPT, dtype: str) -> tuple[str, ...]:
    """Which tensors are of another type than the file's."""
    if dtype == "float32":
        return ()
    kinds = [stored_as(name, tensor.shape, dtype) for name, tensor in model.state_dict().items()]
    said = ["norms, biases and positions as float32"]
    if dtype == "q8_0" and F16 in kinds:
        said.append(
            f"{kinds.count(F16)} matrices as float16: their rows are no multiple of {BLOCK}"
        )
    return tuple(said)


def as_written(name: str, tensor: Tensor, dtype: str) -> Tensor:
    """A tensor in the numbers of the file; `InputError` if one of them is beyond their range."""
    stored, kind = _stored(name, tensor, dtype)
    return torch.from_numpy(dequantize(stored, kind))


def _stored(name: str, tensor: Tensor, dtype: str) -> tuple[Array, GGMLQuantizationType]:
    """A tensor as numbers of its type, or as bytes where numpy has none, and that type."""
    kind = stored_as(name, tensor.shape, dtype)
    largest = tensor.abs().max().item()
    if largest > LARGEST[kind]:
        raise InputError(
            f"dtype={dtype}: {name} holds {largest:g}, beyond the range of {kind.name}; use"
            " dtype=float32"
        )
    return quantize(tensor.detach().numpy(), kind), kind


def read_back(path: Path) -> ReadBack:
    """What a file holds: a model of its sizes and tensors, texts by llama.cpp's algorithm."""
    reader = GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    config = ModelConfig(
        n_layer=value("gpt2.block_count"),
        n_head=value("gpt2.attention.head_count"),
        n_embd=value("gpt2.embedding_length"),
        block_size=value("gpt2.context_length"),
    )
    vocabulary = LlamaVocabulary(
        tokens=value("tokenizer.ggml.tokens"),
        kinds=value("tokenizer.ggml.token_type"),
        merges=value("tokenizer.ggml.merges"),
    )
    tensors = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in reader.tensors
    }
    with torch.device("meta"):
        model = GPT(config, len(vocabulary.tokens))
    model.load_state_dict(
        {name: tensors[gguf_name(name)] for name in model.state_dict()}, assign=True
    )
    opens_texts = value("tokenizer.ggml.add_bos_token")
    opening = [value("tokenizer.ggml.bos_token_id")] if opens_texts else []
    return ReadBack(model.eval(), encoder(vocabulary, opening), partial(decode, vocabulary))

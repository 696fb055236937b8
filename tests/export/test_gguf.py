"""A GGUF file by the reader of the `gguf` package: tensors, sizes and tokenizer are the model's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minigpt.data.tokenizer_json import END
from minigpt.model.gpt import GPT
from minigpt.model.positions import SinusoidalPositions
from tests.export.conftest import GELU_SHAPES, SHAPES, TEXT, Make

gguf = pytest.importorskip("gguf")

Export = Callable[..., Path]

#: What llama.cpp's own converter of GPT-2 calls the parts.
NAMES = {
    "embedding.weight": "token_embd.weight",
    "position.weight": "position_embd.weight",
    "norm.weight": "output_norm.weight",
    "norm.bias": "output_norm.bias",
    "norm_1": "attn_norm",
    "attention.qkv": "attn_qkv",
    "attention.output": "attn_output",
    "norm_2": "ffn_norm",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}


def values(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def named(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, layer, part = name.split(".", 2)
    part, _, kind = part.rpartition(".")
    return f"blk.{layer}.{NAMES[part]}.{kind}"


@pytest.mark.parametrize("shape", GELU_SHAPES)
def test_float32_is_the_model_to_the_bit(make: Make, export: Export, shape: str) -> None:
    model = make("bpe", **SHAPES[shape]).model
    held = tensors(export("gguf", name="out.gguf"))
    for name, tensor in model.state_dict().items():
        theirs = held.pop(named(name)).data
        assert theirs.dtype == np.float32
        assert np.array_equal(theirs, tensor.numpy())
    if isinstance(model.position, SinusoidalPositions):
        assert np.array_equal(held.pop("position_embd.weight").data, model.position.table.numpy())
    for name in list(held):
        if not model.config.bias and name.endswith(".bias"):
            assert not held.pop(name).data.any()
    assert not held  # no `output.weight`: the head is the embedding


def test_the_sizes_and_special_tokens(make: Make, export: Export) -> None:
    loaded = make("bpe", **SHAPES["plain"], padded=3)
    path = export("gguf", name="out.gguf")
    said = values(path)
    expected = {
        "general.architecture": "gpt2",
        "general.type": "model",
        "general.file_type": 0,
        "gpt2.context_length": 17,
        "gpt2.embedding_length": 24,
        "gpt2.block_count": 2,
        "gpt2.feed_forward_length": 96,
        "gpt2.attention.head_count": 3,
        "gpt2.attention.layer_norm_epsilon": pytest.approx(1e-5),
        "gpt2.vocab_size": loaded.model.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert {name: said[name] for name in expected} == expected
    end = loaded.tokenizer.end_id
    assert said["tokenizer.ggml.tokens"][end] == END
    for name in ("bos", "eos", "eot"):
        assert said[f"tokenizer.ggml.{name}_token_id"] == end
    kinds = said["tokenizer.ggml.token_type"]
    assert kinds.pop(end) == gguf.TokenType.CONTROL
    assert kinds[-3:] == [gguf.TokenType.UNUSED] * 3
    assert set(kinds[:-3]) == {gguf.TokenType.NORMAL}
    assert said["tokenizer.ggml.suppress_tokens"] == [*range(*_last_three(loaded.model))]
    assert said["minigpt.card"].startswith("# minigpt 0.0M\n")


def _last_three(model: GPT) -> tuple[int, int]:
    return model.vocab_size - 3, model.vocab_size


def test_a_single_document_opens_no_prompt(make: Make, export: Export) -> None:
    make("bpe", documents=1)
    assert values(export("gguf", name="out.gguf"))["tokenizer.ggml.add_bos_token"] is False


def test_float16_leaves_norms_biases_and_positions(make: Make, export: Export) -> None:
    model = make("bpe").model
    held = tensors(export("gguf", "dtype=float16", name="out.gguf"))
    for name, tensor in model.state_dict().items():
        data = held[named(name)].data
        matrix = tensor.dim() == 2 and name != "position.weight"
        assert data.dtype == (np.float16 if matrix else np.float32)
        assert np.array_equal(data, tensor.numpy().astype(data.dtype))


@pytest.mark.parametrize("n_embd", [32, 24])
def test_eight_bits_where_a_row_is_whole_blocks(
    make: Make, export: Export, n_embd: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each number is within half a step, a 127th of the largest of its 32, of what it was."""
    model = make("bpe", n_embd=n_embd).model
    held = tensors(export("gguf", "dtype=q8_0", name="out.gguf"))
    for name, tensor in model.state_dict().items():
        stored = held[named(name)]
        if tensor.dim() == 1 or name == "position.weight":
            assert stored.tensor_type.name == "F32"
            continue
        whole = tensor.size(1) % 32 == 0
        assert stored.tensor_type.name == ("Q8_0" if whole else "F16")
        theirs = torch.from_numpy(gguf.dequantize(stored.data, stored.tensor_type).copy())
        if whole:
            blocks = (theirs - tensor).view(-1, 32).abs()
            step = tensor.view(-1, 32).abs().amax(1, keepdim=True) / 127
            # the scale itself is a float16
            assert (blocks <= step * (0.5 + 127 * 2**-11)).all()
    said = capsys.readouterr().out
    assert ("matrices as float16: their rows are no multiple of 32" in said) == (n_embd == 24)


def test_read_back_is_the_model(make: Make, export: Export) -> None:
    from minigpt.export.gguf import read_back

    loaded = make("bpe", **SHAPES["plain"])
    back = read_back(export("gguf", name="out.gguf"))
    ids = torch.randint(loaded.model.vocab_size, (2, 17))
    assert torch.equal(back.model(ids), loaded.model(ids))
    ids = loaded.tokenizer.encode(TEXT[1])
    assert back.encode(TEXT[1]) == [loaded.tokenizer.end_id, *ids]
    assert back.decode(ids) == TEXT[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
def test_transformers_reads_the_same_tokens_from_the_file(
    make: Make, export: Export, transformers: Any
) -> None:
    """Another program's reader of GGUF."""
    tokenizer = make("bpe").tokenizer
    path = export("gguf", name="out.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXT[:1]:
        assert theirs(text, add_special_tokens=False).input_ids == tokenizer.encode(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
def test_transformers_reads_the_same_model_from_the_file(
    make: Make, export: Export, transformers: Any
) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF with accelerate alone")
    # its reader takes any GPT-2's context for 1024
    loaded = make("bpe", n_layer=2, n_head=3, n_embd=24, block_size=1024)
    path = export("gguf", name="out.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    ids = torch.randint(loaded.model.vocab_size, (2, 17))
    assert torch.allclose(theirs.eval()(ids).logits, loaded.model(ids), rtol=0, atol=1e-4)

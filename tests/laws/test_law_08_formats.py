"""Law 8 in every format: what is saved is what is loaded, within what the format's numbers allow.

float32 loads to the bit. float16 and bfloat16 have 11 and 8 bits; q8_0 has 8 bits of the largest of
32 numbers that share a scale, which is a float16 itself.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.checkpoint import LoadedModel
from minigpt.config import ModelConfig, TokenizerConfig, plain
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.export import huggingface
from minigpt.export.plain_gpt2 import plain_gpt2
from minigpt.model.gpt import GPT
from minigpt.model.positions import SinusoidalPositions

configs = st.builds(
    ModelConfig,
    n_layer=st.integers(1, 3),
    n_head=st.just(2),
    n_embd=st.sampled_from([4, 6, 32]),
    block_size=st.integers(1, 9),
    bias=st.booleans(),
    position=st.sampled_from(["learned", "sinusoidal"]),
)

#: The half of a step, as a share of the number; of q8_0 as a share of the block's largest.
HALF_STEPS = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "q8_0": 0.5 / 127 + 2**-11}
#: Below this a float16 has fewer bits, and so has the scale of a block.
SMALLEST = 2**-14

FORMATS = [
    *(("huggingface", dtype) for dtype in ("float32", "float16", "bfloat16")),
    *(("gguf", dtype) for dtype in ("float32", "float16", "q8_0")),
]


def model_of(config: ModelConfig, text: str, seed: int) -> LoadedModel:
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [text])
    model = GPT(config, tokenizer.vocab_size).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return LoadedModel(model, tokenizer, {"documents": 2, "model_config": plain(config)})


def allowed(name: str, tensor: Tensor, form: str, dtype: str) -> Tensor:
    """How far each number may be from what it was."""
    if form == "gguf" and (tensor.dim() == 1 or name == "position.weight"):
        return torch.zeros_like(tensor)
    if dtype != "q8_0":
        return HALF_STEPS[dtype] * tensor.abs().clamp(min=SMALLEST if dtype != "float32" else 0)
    if tensor.size(1) % 32:
        return HALF_STEPS["float16"] * tensor.abs().clamp(min=SMALLEST)
    largest = tensor.view(-1, 32).abs().amax(1, keepdim=True)
    return (HALF_STEPS["q8_0"] * largest).expand(-1, 32).reshape(tensor.shape)


@pytest.mark.parametrize(("form", "dtype"), FORMATS)
@settings(max_examples=15)
@given(config=configs, text=st.text(min_size=1, max_size=20), seed=st.integers(0, 99))
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    dtype: str,
    config: ModelConfig,
    text: str,
    seed: int,
) -> None:
    loaded = model_of(config, text, seed)
    format_module: Any = huggingface
    if form == "gguf":
        pytest.importorskip("gguf")
        from minigpt.export import gguf as format_module
    place = tmp_path_factory.mktemp("law8") / "out"
    written = plain_gpt2(loaded.model, form).model
    format_module.write(place, loaded, written, card="", dtype=dtype)
    back = format_module.read_back(place)

    originals = dict(loaded.model.state_dict())
    if isinstance(loaded.model.position, SinusoidalPositions):
        originals["position.weight"] = loaded.model.position.table
    for name, tensor in back.model.state_dict().items():
        original = originals.get(name, torch.zeros_like(tensor))  # a bias where there was none
        assert ((tensor - original).abs() <= allowed(name, original, form, dtype)).all(), name
    ids = torch.tensor([(loaded.tokenizer.encode(text) * 9)[: config.block_size]])
    if dtype == "float32":
        ours, theirs = loaded.model(ids), back.model(ids)
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert back.encode(text) == [loaded.tokenizer.end_id, *loaded.tokenizer.encode(text)]
    assert back.decode(loaded.tokenizer.encode(text)) == text

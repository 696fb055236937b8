"""Models to export: of random weights that matter, of every shape and tokenizer."""

import importlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.command_line import run
from minigpt.config import ModelConfig, TokenizerConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.export.__main__ import main
from minigpt.export.config import ExportConfig
from minigpt.model.gpt import GPT
from tests.conftest import write_model

TEXT = [
    "the sea calls the wind, the wind calls the sea; it's 12 o'clock and 34 are there",
    "  e\u0301té été 吾輩は猫である 猫 👩‍👩‍👧 <|endoftext|>\n\tй ё ночь",
] * 3

#: Models of several odd shapes: one head and three, odd widths, a context of 17.
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 17},
    "sinusoidal": {"n_layer": 1, "n_head": 1, "n_embd": 40, "position": "sinusoidal"},
    "no_bias": {"n_layer": 2, "n_head": 3, "n_embd": 24, "bias": False, "dropout": 0.25},
    "relu": {"n_layer": 1, "n_head": 2, "n_embd": 32, "activation": "relu"},
    "relu2": {"n_layer": 1, "n_head": 2, "n_embd": 32, "activation": "relu2"},
    "nothing_of_its_own": {
        "n_layer": 3, "n_head": 1, "n_embd": 40, "bias": False, "position": "sinusoidal",
    },
}  # fmt: skip

#: Those that llama.cpp can run: it has one activation.
GELU_SHAPES = [name for name, shape in SHAPES.items() if "activation" not in shape]

Make = Callable[..., LoadedModel]


def tokenizer_of(kind: str) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXT)


def make_model(
    path: Path, kind: str = "bpe", *, documents: int = 5, padded: int = 0, **shape: Any
) -> LoadedModel:
    """Write a checkpoint of random weights, biases too, and give what is loaded from it."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of(kind)
    small = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 64}
    config = ModelConfig(**{**small, **shape})  # type: ignore[arg-type]
    model = GPT(config, tokenizer.vocab_size + padded)
    for name, parameter in model.named_parameters():
        middle = 1.0 if name.endswith("weight") and parameter.dim() == 1 else 0.0
        torch.nn.init.normal_(parameter, mean=middle, std=0.2)
    return load_model(write_model(path, model, tokenizer, documents))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes `model.ckpt` in the test's folder; gives what is loaded from it."""

    def made(kind: str = "bpe", **shape: Any) -> LoadedModel:
        return make_model(tmp_path / "model.ckpt", kind, **shape)

    return made


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Exports `model.ckpt` of the test's folder; gives where it went."""

    def exported(form: str, *settings: str, name: str = "out") -> Path:
        given = (f"checkpoint={tmp_path / 'model.ckpt'}", f"to={tmp_path / name}", f"format={form}")
        assert run(main, ExportConfig, "export", [*given, *settings]) == 0
        return tmp_path / name

    return exported


@pytest.fixture(scope="session")
def transformers() -> Generator[Any, None, None]:
    """The library, where nothing is asked of the hub and no bar is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TQDM_DISABLE", "1")
        library = pytest.importorskip("transformers")
        library.logging.disable_progress_bar()
        yield library
    assert "HF_HUB_OFFLINE" not in os.environ


@pytest.fixture(scope="session")
def llama() -> Generator[Callable[..., Any], None, None]:
    """Opens a GGUF in llama.cpp: float32 keys and values, one thread, logits of every position."""
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    models: list[Any] = []

    def opened(path: Path, block_size: int) -> Any:
        model = library.Llama(
            str(path), n_ctx=block_size, n_batch=block_size, n_ubatch=block_size, logits_all=True,
            type_k=0, type_v=0, n_threads=1, n_threads_batch=1, verbose=False, seed=1,
        )  # fmt: skip
        models.append(model)
        return model

    yield opened
    for model in models:
        model.close()
    # it leaves them open, and the interpreter would say so at its end
    silence: Any = importlib.import_module("llama_cpp._utils")
    silence.outnull_file.close()
    silence.errnull_file.close()

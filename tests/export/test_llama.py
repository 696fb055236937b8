"""llama.cpp runs what is exported: the same ids, the logits that its arithmetic allows, its text.

llama.cpp looks GELU up in a table of 16 bits, so its logits are ours to about a thousandth. Its
16-bit and 8-bit matrices are multiplied with activations that are rounded in the same way.
"""

import ctypes
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from minigpt.checkpoint import LoadedModel
from minigpt.config import ModelConfig
from minigpt.export.check import texts
from minigpt.generation.prompts import prompt_ids
from minigpt.model.gpt import GPT
from tests.export.conftest import GELU_SHAPES, SHAPES, Make, make_model

Export = Callable[..., Path]
Llama = Callable[..., Any]

#: How far a logit may be off, as a share of the largest.
TOLERANCES = {"float32": 1e-3, "float16": 1e-2, "q8_0": 5e-2}


def llama_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """(T, V)."""
    model.reset()
    model.eval(ids)
    return torch.from_numpy(np.array(model.scores[: len(ids)]))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *itertools.product(GELU_SHAPES, ["float32"]),
        ("plain", "float16"),
        ("plain", "q8_0"),  # rows of 24 numbers, so 16 bits in part
        ("wide", "q8_0"),
    ],
)
def test_logits(make: Make, export: Export, llama: Llama, shape: str, dtype: str) -> None:
    loaded = make("bpe", **SHAPES.get(shape, {"n_embd": 64}))
    block_size = loaded.model.config.block_size
    model = llama(export("gguf", f"dtype={dtype}", name="out.gguf"), block_size)
    ids = torch.randint(loaded.model.vocab_size, (block_size,)).tolist()
    ours, theirs = loaded.model(torch.tensor([ids]))[0], llama_logits(model, ids)
    assert theirs.shape == ours.shape
    largest = ours.abs().max().item()
    assert (ours - theirs).abs().max().item() <= TOLERANCES[dtype] * largest


def test_greedy_text_is_the_same_where_the_best_two_are_apart(
    make: Make, export: Export, llama: Llama
) -> None:
    loaded = make("bpe", block_size=128)
    model = llama(export("gguf", name="out.gguf"), 128)
    ids = [1, 2, 3]
    for _ in range(100):
        best = loaded.model(torch.tensor([ids]))[0, -1].topk(2)
        theirs = int(llama_logits(model, ids)[-1].argmax())
        if best.values[0] - best.values[1] > 1e-2:
            assert theirs == best.indices[0]
        ids.append(theirs)


@pytest.fixture(scope="module", params=["bpe", "bytes", "char"])
def exported(
    request: pytest.FixtureRequest, llama: Llama, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedModel, Any]:
    """A model of each kind of tokenizer, and llama.cpp with it."""
    from minigpt.export.gguf import write

    folder = tmp_path_factory.mktemp("llama")
    documents = 1 if request.param == "bytes" else 5
    loaded = make_model(folder / "model.ckpt", request.param, documents=documents, n_layer=1)
    write(folder / "out.gguf", loaded, loaded.model, card="", dtype="float32")
    return loaded, llama(folder / "out.gguf", 64)


def compare(exported: tuple[LoadedModel, Any], text: str) -> None:
    loaded, model = exported
    ids = model.tokenize(text.encode(), add_bos=True, special=False)
    assert ids == prompt_ids(loaded.tokenizer, text, start_of_document=loaded.start_of_document)
    pieces = [piece_of(model, i) for i in loaded.tokenizer.encode(text)]
    assert b"".join(pieces) == text.encode()


def piece_of(model: Any, i: int) -> bytes:
    """What a token adds to a text, as llama.cpp's own programs show it.

    The Python package's `detokenize` has room for 32 bytes, and GPT-2 has longer tokens.
    """
    library: Any = importlib.import_module("llama_cpp")
    vocabulary, room = library.llama_model_get_vocab(model.model), ctypes.create_string_buffer(1024)
    length = library.llama_token_to_piece(vocabulary, i, room, len(room), 0, False)
    return room.raw[:length]


def test_the_texts_of_the_check(exported: tuple[LoadedModel, Any]) -> None:
    for text in texts(exported[0].tokenizer):
        compare(exported, text)


#: llama.cpp's tables of letters and digits are of Unicode 15: characters that came later differ.
old_enough = st.characters(exclude_categories=["Cs", "Cn"])


@hypothesis_settings(max_examples=200)
@given(text=st.lists(st.text(old_enough, max_size=10)).map(" ".join))
def test_every_text_becomes_our_ids(exported: tuple[LoadedModel, Any], text: str) -> None:
    tokenizer = exported[0].tokenizer
    if tokenizer.kind == "char":
        known = set(tokenizer.decode(range(tokenizer.vocab_size)))
        text = "".join(character for character in text if character in known)
    if text:
        compare(exported, text)


def test_real_text_becomes_our_ids(exported: tuple[LoadedModel, Any]) -> None:
    tokenizer = exported[0].tokenizer
    text = Path(__file__).read_text(encoding="utf-8")
    if tokenizer.kind == "char":
        known = set(tokenizer.decode(range(tokenizer.vocab_size)))
        text = "".join(character for character in text if character in known)
    compare(exported, text)


def test_it_ends_where_the_model_ends(make: Make, export: Export, llama: Llama) -> None:
    loaded = make("bpe", padded=5)
    model = llama(export("gguf", name="out.gguf"), 64)
    assert model.token_bos() == model.token_eos() == loaded.tokenizer.end_id
    assert model.n_vocab() == loaded.model.vocab_size
    assert model.metadata["general.architecture"] == "gpt2"


@pytest.mark.slow
def test_gpt2s_own_tokenizer_on_real_text(llama: Llama, shared_data: Path, tmp_path: Path) -> None:
    from minigpt.data.tokenizer_files import read_tokenizer
    from minigpt.export.gguf import write

    tokenizer = read_tokenizer(shared_data / "gpt2_tokenizer")
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=8, block_size=8), tokenizer.vocab_size)
    loaded = LoadedModel(model, tokenizer, {})
    write(tmp_path / "out.gguf", loaded, model, card="", dtype="float32")
    exported = loaded, llama(tmp_path / "out.gguf", 8)
    for name in ("tinyshakespeare.txt", "tang300.jsonl"):
        compare(exported, (shared_data / name).read_text(encoding="utf-8"))
    for text in texts(tokenizer):
        compare(exported, text)

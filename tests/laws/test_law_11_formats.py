"""Law 11 in every format: embedding and head are written once and are one storage when loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from minigpt.checkpoint import LoadedModel, load_model
from minigpt.export import huggingface
from minigpt.model.gpt import GPT


@pytest.fixture
def loaded(checkpoint: Callable[..., Path]) -> LoadedModel:
    return load_model(checkpoint())


def tables(shapes: dict[str, tuple[int, ...]], loaded: LoadedModel) -> list[str]:
    """Names of what has as many rows as there are tokens: no other tensor has."""
    return [name for name, shape in shapes.items() if loaded.model.vocab_size in shape]


def is_tied(model: GPT) -> bool:
    """Writing into the one tensor changes both the lookup and the head."""
    one = torch.eye(model.config.n_embd)[:1]
    with torch.no_grad():
        model.embedding.weight[7] = 3.0
        looked_up, logit = model.embedding(torch.tensor([7])), model.logits(one)[0, 7]
    return bool((looked_up == 3).all()) and logit.item() == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_hugging_face_folder_holds_it_once(
    loaded: LoadedModel, tmp_path: Path, dtype: str
) -> None:
    folder = tmp_path / "out"
    huggingface.write(folder, loaded, loaded.model, card="", dtype=dtype)
    held = load_file(folder / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
    assert tables(shapes, loaded) == ["transformer.wte.weight"]
    assert is_tied(load_model(folder).model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
def test_transformers_ties_what_it_loads(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TQDM_DISABLE", "1")
    transformers: Any = pytest.importorskip("transformers")
    huggingface.write(tmp_path / "out", loaded, loaded.model, card="", dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embedding.data_ptr() == head.data_ptr()
    assert embedding is head
    assert sum(p.numel() for p in model.parameters()) == loaded.model.parameter_count()


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
def test_a_gguf_file_holds_it_once(loaded: LoadedModel, tmp_path: Path, dtype: str) -> None:
    library = pytest.importorskip("gguf")
    from minigpt.export import gguf

    path = tmp_path / "out.gguf"
    gguf.write(path, loaded, loaded.model, card="", dtype=dtype)
    shapes = {each.name: tuple(each.shape.tolist()) for each in library.GGUFReader(path).tensors}
    assert tables(shapes, loaded) == ["token_embd.weight"]  # no `output.weight`
    assert is_tied(gguf.read_back(path).model)

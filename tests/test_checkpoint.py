"""The one file: whole or not there, safe to load, enough by itself."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checkpoint import (
    MODEL_PREFIX,
    RECORD,
    load_model,
    read_checkpoint,
    write_checkpoint,
)
from minigpt.config import ModelConfig, TokenizerConfig, plain
from minigpt.data.tokenizer import train_tokenizer
from minigpt.errors import InputError, RunError
from minigpt.model.gpt import GPT

CONFIG = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8)


def contents(config: ModelConfig = CONFIG) -> dict[str, Any]:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abcde"])
    model = GPT(config, tokenizer.vocab_size)
    return {
        "state_dict": {MODEL_PREFIX + name: t for name, t in model.state_dict().items()},
        RECORD: {
            "model_config": plain(config),
            "vocab_size": tokenizer.vocab_size,
            "tokenizer": tokenizer.to_json(),
        },
    }


@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_what_is_saved_is_what_is_loaded(
    tmp_path: Path, position: str, dtype: torch.dtype | None
) -> None:
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8, position=position)
    saved = contents(config)
    write_checkpoint(tmp_path / "a.ckpt", saved)
    loaded = load_model(tmp_path / "a.ckpt", dtype=dtype)
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("decade")) == "decade"
    for name, tensor in loaded.model.state_dict().items():
        assert tensor.dtype == (dtype or torch.float32)
        assert torch.equal(tensor.float(), saved["state_dict"][MODEL_PREFIX + name])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint(path, contents())
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="No space left"):
        write_checkpoint(path, contents())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.ckpt"]


class RunsCode:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_that_would_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    torch.save(contents() | {"state_dict": RunsCode(trap)}, tmp_path / "torch.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(RunsCode(trap)))
    for name in ("torch.ckpt", "plain.ckpt"):
        with pytest.raises(InputError, match="damaged, or not a checkpoint"):
            read_checkpoint(tmp_path / name)
    assert not trap.exists()


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.999])
def test_a_truncated_file_is_named_and_its_neighbour_offered(tmp_path: Path, keep: float) -> None:
    write_checkpoint(tmp_path / "last.ckpt", contents())
    write_checkpoint(tmp_path / "best.ckpt", contents())
    whole = (tmp_path / "last.ckpt").read_bytes()
    size = int(keep * len(whole)) if isinstance(keep, float) else keep
    (tmp_path / "last.ckpt").write_bytes(whole[:size])
    with pytest.raises(InputError) as caught:
        load_model(tmp_path / "last.ckpt")
    assert "last.ckpt" in str(caught.value)
    assert "best.ckpt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(InputError, match="not a checkpoint of this program"):
        read_checkpoint(tmp_path / "foreign.ckpt")
    (tmp_path / "text.ckpt").write_text("hello", encoding="utf-8")
    with pytest.raises(InputError, match="damaged, or not a checkpoint"):
        read_checkpoint(tmp_path / "text.ckpt")
    with pytest.raises(InputError, match="no such checkpoint file"):
        read_checkpoint(tmp_path / "missing.ckpt")


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    wrong = contents()
    del wrong["state_dict"][MODEL_PREFIX + "embedding.weight"]
    write_checkpoint(tmp_path / "a.ckpt", wrong)
    with pytest.raises(InputError, match="do not fit each other"):
        load_model(tmp_path / "a.ckpt")

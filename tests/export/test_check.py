"""What is compared before an export is done: each fault of what was written is found."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minigpt.checkpoint import LoadedModel
from minigpt.errors import RunError
from minigpt.export.check import ReadBack, checked
from minigpt.export.plain_gpt2 import plain_gpt2
from minigpt.generation.prompts import prompt_ids
from minigpt.model.gpt import GPT
from tests.export.conftest import Make


def as_is(name: str, tensor: Tensor) -> Tensor:
    del name
    return tensor


def halved(name: str, tensor: Tensor) -> Tensor:
    del name
    return tensor.half()


def copy_of(model: GPT, **changed: Any) -> GPT:
    copy = GPT(dataclasses.replace(model.config, **changed), model.vocab_size).eval()
    copy.load_state_dict(model.state_dict())
    return copy


def honest(loaded: LoadedModel, model: GPT) -> ReadBack:
    def encode(text: str) -> list[int]:
        start = loaded.start_of_document
        return prompt_ids(loaded.tokenizer, text, start_of_document=start)

    return ReadBack(model, encode, loaded.tokenizer.decode)


def test_the_same_is_the_same(make: Make) -> None:
    loaded = make("bpe", bias=False, position="sinusoidal", block_size=300)
    plain = plain_gpt2(loaded.model, "gguf").model
    figures = checked(loaded, plain, honest(loaded, copy_of(plain)), as_is)
    assert figures.weight == 0
    assert figures.logit <= 1e-5 * figures.largest_logit
    assert figures.n_same == figures.n_tokens == 4 * 256
    assert figures.n_texts == 20


def test_how_a_model_began_makes_no_difference(make: Make) -> None:
    loaded = make("bpe", residual_init="zero", dropout=0.1)
    back = copy_of(loaded.model, residual_init="scaled", dropout=0.0)
    assert checked(loaded, loaded.model, honest(loaded, back), as_is).weight == 0


def test_rounding_is_a_figure(make: Make) -> None:
    loaded = make("bpe")
    rounded = copy_of(loaded.model).half().float()
    figures = checked(loaded, loaded.model, honest(loaded, rounded), halved)
    assert 0 < figures.weight < 2**-11
    ids = torch.randint(
        loaded.model.vocab_size, (4, 64), generator=torch.Generator().manual_seed(0)
    )
    assert figures.logit == (loaded.model(ids) - rounded(ids)).abs().max().item()


def test_one_bit_of_one_weight_is_found(make: Make) -> None:
    loaded = make("bpe")
    other = copy_of(loaded.model)
    with torch.no_grad():
        bits = other.get_parameter("blocks.1.mlp.up.weight").view(torch.int32)
        bits[3, 4] ^= 1
    with pytest.raises(RunError, match=r"blocks\.1\.mlp\.up\.weight is not what was to be written"):
        checked(loaded, loaded.model, honest(loaded, other), as_is)


@pytest.mark.parametrize("changed", [{"n_head": 4}, {"activation": "relu"}])
def test_another_setting_of_the_same_tensors_is_found(make: Make, changed: dict[str, Any]) -> None:
    loaded = make("bpe", n_head=2)
    with pytest.raises(RunError, match="its shape is"):
        checked(loaded, loaded.model, honest(loaded, copy_of(loaded.model, **changed)), as_is)


def test_a_fold_that_changes_the_model_is_found(make: Make) -> None:
    loaded = make("bpe", position="sinusoidal")
    plain = copy_of(plain_gpt2(loaded.model, "gguf").model)
    with torch.no_grad():
        plain.get_parameter("position.weight").mul_(1.01)
    with pytest.raises(RunError, match="from the original's"):
        checked(loaded, plain, honest(loaded, copy_of(plain)), as_is)


Change = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("encode", lambda encode: lambda text: encode(text.lower()), "encodes otherwise"),
        ("encode", lambda encode: lambda text: encode(text)[1:], "encodes otherwise"),
        ("encode", lambda encode: lambda text: encode(text.replace("\x00", "")), "encodes other"),
        ("decode", lambda decode: lambda ids: decode(ids).replace(" ,", ","), "decodes otherwise"),
        ("decode", lambda decode: lambda ids: decode(ids).strip(), "decodes otherwise"),
    ],
)
def test_another_tokenizer_is_found(make: Make, part: str, change: Change, message: str) -> None:
    loaded = make("bpe")
    back = honest(loaded, loaded.model)
    back = dataclasses.replace(back, **{part: change(getattr(back, part))})
    with pytest.raises(RunError, match=message):
        checked(loaded, loaded.model, back, as_is)


def test_a_check_that_fails_leaves_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minigpt.command_line import run
    from minigpt.export import gguf
    from minigpt.export.__main__ import main
    from minigpt.export.config import ExportConfig

    make("bpe")
    monkeypatch.setattr(gguf, "as_written", lambda name, tensor, dtype: tensor + len(name + dtype))
    given = [f"checkpoint={tmp_path / 'model.ckpt'}", f"to={tmp_path / 'a.gguf'}", "format=gguf"]
    assert run(main, ExportConfig, "export", given) == 1
    assert "nothing is left of it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.ckpt"]

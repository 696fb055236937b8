"""init_from: a new run starts from the weights and the tokenizer of another model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from minigpt.checkpoint import load_model
from minigpt.config import ModelConfig, TrainConfig
from minigpt.defaults import Device, fill, peak_learning_rate
from minigpt.run_folder import LAST
from minigpt.training.metrics_file import column, read_metrics
from minigpt.training.origin import load_origin, place_of_origin
from tests.conftest import Train

MakeFolder = Callable[..., tuple[Path, Any]]


@pytest.fixture(scope="module")
def own(train: Train) -> Train:
    """The program in small, without settings of a model: those come with what it starts from."""
    return train.only(lambda each: not each.startswith(("model.", "tokenizer")))


def test_a_new_run_starts_where_another_ended(
    train: Train, own: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(f"run_dir={first}", "trainer.max_steps=40", "model.n_layer=1") == 0
    assert own(f"init_from={first}", f"run_dir={second}", "trainer.max_steps=2") == 0
    assert train.losses(second)[0] < train.losses(first)[0] - 0.3
    validation = column(read_metrics(second / "metrics.csv"), "val_loss")
    assert [step for step, _ in validation] == [1, 2]
    assert (second / LAST).is_file()
    assert "begins as:" in capsys.readouterr().err
    assert train(f"init_from={first}", "trainer.max_steps=2") == 2
    assert "brings its own" in capsys.readouterr().err


def test_a_gpt2_folder_is_trained_on_and_resumed_bit_for_bit(
    gpt2_folder: MakeFolder, own: Train, tmp_path: Path
) -> None:
    folder, _ = gpt2_folder(2, 2, 16, 16, 3)
    start = [f"init_from={folder}", "model.dropout=0"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert own(*start, f"run_dir={whole}", "trainer.max_steps=12") == 0
    decay = "optim.decay_steps=12"
    assert own(*start, f"run_dir={halves}", "trainer.max_steps=7", decay) == 0
    assert own(f"resume={halves}", "trainer.max_steps=12") == 0
    losses = own.losses(whole)
    assert losses[-1] < losses[0] - 0.5
    assert own.losses(halves) == losses
    weights, resumed = (load_model(each / LAST).model.state_dict() for each in (whole, halves))
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert len(weights["embedding.weight"]) == 260


@pytest.mark.parametrize("block_size", [9, 16, 23])
def test_another_context_keeps_what_was_learned_of_positions(
    gpt2_folder: MakeFolder, block_size: int
) -> None:
    folder, _ = gpt2_folder(2, 2, 16, 16)
    config = TrainConfig(init_from=str(folder), model=ModelConfig(block_size=block_size))
    source = load_model(folder).model
    say: list[str] = []
    origin, again = (load_origin(config, {"model.block_size"}, say.append) for _ in range(2))
    assert origin is not None
    assert again is not None
    assert origin.model.config.block_size == block_size
    tokens = torch.randint(256, (2, min(block_size, 16)))
    assert torch.equal(origin.model.eval()(tokens), source(tokens))
    table = origin.model.state_dict()["position.weight"]
    assert torch.equal(table, again.model.state_dict()["position.weight"])
    if block_size > 16:
        assert 0.01 < table[16:].std() < 0.03  # as a new model's
        assert say[0].endswith(f"positions 1 to 16 are {folder}'s, the others are new")
    assert bool(say) == (block_size != 16)


def test_a_resumed_run_keeps_where_it_began(
    gpt2_folder: MakeFolder,
    own: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    begun = [f"init_from={folder}", f"run_dir={tmp_path / 'run'}"]
    assert own(*begun, "trainer.max_steps=1") == 0
    assert own(*begun, "resume=auto", "trainer.max_steps=2") == 0
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert saved["init_from"] == str(folder)
    assert saved["tokenizer"] == {"kind": "bytes", "vocab_size": None, "path": ""}
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "moved")  # it is not read again
    spelt = f"init_from=moved/../{folder.name}"
    assert own(spelt, *begun[1:], "resume=auto", "trainer.max_steps=3") == 0
    assert own(*begun[1:], "resume=auto", "init_from=other", "trainer.max_steps=4") == 2
    assert f"a resumed run keeps init_from={folder}" in capsys.readouterr().err


def test_the_newest_run_is_named_for_what_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("a")
    assert place_of_origin("runs/latest") == str(tmp_path / "runs" / "a")
    assert place_of_origin("openai-community/gpt2") == "openai-community/gpt2"
    assert place_of_origin("") == ""


def test_only_context_and_dropout_can_be_told_anew(
    gpt2_folder: MakeFolder, own: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = gpt2_folder(1, 1, 8, 5)
    for setting in ("model.n_layer=1", "tokenizer=char", "model=tiny"):
        assert own(f"init_from={folder}", setting, "trainer.max_steps=1") == 2
        assert "brings its own; leave it out" in capsys.readouterr().err


def test_the_defaults_of_a_run_that_starts_from_a_model_are_those_of_its_size() -> None:
    cpu = Device("cpu", "CPU", 1, fast_bf16=False)
    wide = ModelConfig(n_embd=768)
    fresh, tuned = (fill(TrainConfig(model=wide, init_from=place), cpu) for place in ("", "gpt2"))
    assert fresh.optim.lr == peak_learning_rate(768, "adamw")
    assert tuned.optim.lr == pytest.approx(peak_learning_rate(768, "adamw") / 10)
    assert (fresh.trainer.max_steps, tuned.trainer.max_steps) == (2000, 200)
    assert tuned.data.batch_size == fresh.data.batch_size == 8

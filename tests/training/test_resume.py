"""What a resumed run keeps, what it may be told anew, and what is refused."""

import copy
import dataclasses
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checkpoint import RECORD, read_checkpoint, write_checkpoint
from minigpt.config import DataConfig, ModelConfig, OptimConfig, TrainConfig, TrainerConfig
from minigpt.defaults import Device, fill
from minigpt.errors import InputError
from minigpt.run_folder import BEST, LAST
from minigpt.settings import Setting, set_value, settings, shown, value_of
from minigpt.training.resume import (
    DERIVED,
    MAY_CHANGE,
    OF_THE_COMMAND,
    find_start,
    may_change,
    merge,
    with_full_paths,
)
from tests.conftest import PROJECT, Train
from tests.test_checkpoint import with_part

KNOWN = {setting.key: setting for setting in settings(TrainConfig)}
DOCS = PROJECT / "docs" / "training.md"

SAVED = fill(
    TrainConfig(
        run_dir="old",
        data=DataConfig(corpus="text", path=["/some/text.txt", "/more.txt"]),
        model=ModelConfig(n_layer=6),
        optim=OptimConfig(lr=1e-3, decay_steps=100),
        trainer=TrainerConfig(max_steps=100),
    ),
    Device("cpu", "CPU", 1, fast_bf16=False),
)


def test_only_what_is_named_counts() -> None:
    asked = TrainConfig(resume="old", trainer=TrainerConfig(max_steps=200))
    merged, changes = merge(SAVED, asked, ["resume", "trainer.max_steps"])
    assert merged.model.n_layer == 6
    assert merged.trainer.max_steps == 200
    assert merged.optim.decay_steps == 100  # the schedule stays where it was
    assert merged.optim.lr == 1e-3
    assert merged.resume == "old"
    assert changes == ["trainer.max_steps: 100 -> 200"]


def test_naming_what_is_so_already_is_no_change() -> None:
    asked = TrainConfig(model=ModelConfig(n_layer=6))
    merged, changes = merge(SAVED, asked, ["model.n_layer"])
    assert (merged.model.n_layer, changes) == (6, [])


# ------------------------------------------------------------------ the table


def another(setting: Setting, value: Any) -> Any:
    """A value of a setting's range that it does not have now."""
    if setting.repeatable:
        return ["/some/where/else.txt"]
    if setting.choices:
        return next(each for each in setting.choices if each != value)
    if setting.type is bool:
        return not value
    if setting.type is str:
        return {"trainer.devices": "2", "trainer.max_time": "00:01:00:00"}.get(
            setting.key, "/another" if setting.key.startswith("data.cache") else "another"
        )
    if setting.type is int:
        return (value or setting.low or 1) + (6 if setting.key == "model.n_head" else 1)
    middle = (setting.high or 1.0) / 3 + 0.001
    return middle if middle != value else middle / 2


def asking(key: str, value: Any) -> TrainConfig:
    config = TrainConfig()
    set_value(config, key, value)
    return config


def of_the_hub(config: TrainConfig) -> TrainConfig:
    data = DataConfig(corpus="hub", name="owner/name", batch_size=config.data.batch_size)
    return dataclasses.replace(config, data=data)


@pytest.mark.parametrize("key", KNOWN)
def test_a_change_is_taken_and_told_or_refused(key: str) -> None:
    saved = of_the_hub(SAVED) if key in ("data.name", "data.revision") else SAVED
    old = value_of(saved, key)
    new = another(KNOWN[key], old)
    assert new != old
    words = tuple(map(shown, (old, new)))
    before = copy.deepcopy(saved)
    if key in OF_THE_COMMAND:
        merged, changes = merge(saved, asking(key, new), [key])
        assert value_of(merged, key) == new
        assert changes == []
    elif may_change(key):
        merged, changes = merge(saved, asking(key, new), [key])
        assert value_of(merged, key) == new
        assert changes == [f"{key}: {words[0]} -> {words[1]}"]
    else:
        with pytest.raises(InputError) as caught:
            merge(saved, asking(key, new), [key])
        assert str(caught.value) == (
            f"{key}={words[1]}: a resumed run keeps {key}={words[0]}; start a new run to change it"
        )
    assert before == saved


def written_in_docs() -> dict[str, set[str]]:
    """The keys in each column of the table in the docs, `group.*` written out."""
    section = DOCS.read_text(encoding="utf-8").partition("## Stopping and going on")[2]
    table = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in table[0].strip("|").split("|")]
    columns: dict[str, set[str]] = {title: set() for title in titles}
    for line in table[2:]:
        for title, cell in zip(titles, line.strip("|").split("|"), strict=True):
            for name in re.findall(r"`([^`]+)`", cell):
                keys = {key for key in KNOWN if key == name or (
                    name.endswith(".*") and key.startswith(name[:-1]))}  # fmt: skip
                assert keys, f"{name} in {DOCS.name} is no setting"
                columns[title] |= keys
    columns["may change"] -= columns["may not"]  # an exception from its group
    return columns


def test_the_table_in_the_docs_is_what_the_program_does() -> None:
    assert written_in_docs() == {
        "may change": {key for key in KNOWN if may_change(key)},
        "may not": {k for k in KNOWN if not may_change(k) and k not in OF_THE_COMMAND},
        "is the command's own": set(OF_THE_COMMAND),
    }
    assert not {key for key in OF_THE_COMMAND if may_change(key)}


def test_the_table_names_what_there_is() -> None:
    groups = {f"{key.partition('.')[0]}." for key in KNOWN if "." in key}
    assert set(MAY_CHANGE) <= KNOWN.keys() | groups
    assert set(OF_THE_COMMAND) <= KNOWN.keys()


def test_null_keeps_what_was_derived_and_clears_what_was_not() -> None:
    empty = TrainConfig()
    filled = fill(empty, Device("cpu", "CPU", 1, fast_bf16=False))
    assert set(DERIVED) == {key for key in KNOWN if value_of(filled, key) != value_of(empty, key)}
    for key in DERIVED:
        merged, changes = merge(filled, asking(key, None), [key])
        assert value_of(merged, key) == value_of(filled, key)
        assert changes == []
    limited = dataclasses.replace(
        filled, trainer=dataclasses.replace(filled.trainer, max_time="00:00:01:00")
    )
    merged, changes = merge(limited, empty, ["trainer.max_time"])
    assert merged.trainer.max_time is None
    assert changes == ["trainer.max_time: 00:00:01:00 -> null"]


# ------------------------------------------------------------------ paths


def test_paths_of_data_mean_the_same_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a[b]"  # a glob's sign, in a folder that is no glob
    here.mkdir()
    (here / "x.txt").write_text("x", encoding="utf-8")
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", "/home/of")
    config = TrainConfig(run_dir="~/run", data=DataConfig(corpus="text"))
    config.data.path = ["x.txt", "*.txt", "~/y.txt", "/z.txt"]
    full = with_full_paths(config)
    assert full.run_dir == "/home/of/run"
    assert full.data.path == [
        f"{here}/x.txt", f"{tmp_path}/a[[]b]/*.txt", "/home/of/y.txt", "/z.txt",
    ]  # fmt: skip
    assert full.data.cache_dir == ""
    assert config.data.path[0] == "x.txt"
    _, changes = merge(dataclasses.replace(config, run_dir=""), full, ["data.path"])
    assert changes == []  # an older checkpoint's paths are those that they were
    with pytest.raises(InputError, match=r"data.path=~no-such-user/x: "):
        with_full_paths(dataclasses.replace(config, data=dataclasses.replace(
            config.data, path=["~no-such-user/x"])))  # fmt: skip


# ------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def finished(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, not to be written to."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=4", "saving.keep=1") == 0
    return run


def start_of(folder: Path | str, *named: str, **asked: Any) -> Any:
    config = dataclasses.replace(TrainConfig(resume=str(folder)), **asked)
    return find_start(config, ["resume", *named])


def test_a_run_is_resumed_from_another_folder_and_after_a_move(
    train: Train, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "t.txt").write_text("the sea and the stars\n" * 30, encoding="utf-8")
    monkeypatch.chdir(there)
    bare = train.only(lambda each: not each.startswith("data.path"))
    assert bare("data.path=t.txt", "run_dir=run", "trainer.max_steps=2") == 0
    moved = shutil.move("run", here / "moved")
    monkeypatch.chdir(here)
    nothing = train.only(lambda _: False)
    assert nothing(f"resume={Path(moved).name}", "trainer.max_steps=4") == 0
    assert read_checkpoint(here / "moved" / LAST)["global_step"] == 4
    monkeypatch.chdir(there)
    again = TrainConfig(resume=str(here / "moved"))
    again.data.path = ["../there/t.txt"]
    assert start_of(here / "moved").changes == ()
    again.data.path = ["t.txt"]
    assert find_start(again, ["resume", "data.path"]).changes == ()
    assert finished.is_dir()


def test_a_setting_that_the_saved_config_lacks_takes_its_default(
    finished: Path, tmp_path: Path
) -> None:
    contents = read_checkpoint(finished / LAST)
    del contents[RECORD]["config"]["compile"]
    del contents[RECORD]["config"]["optim"]["min_lr_ratio"]
    write_checkpoint(tmp_path / LAST, contents)
    config = start_of(tmp_path).config
    assert (config.compile, config.optim.min_lr_ratio) == (False, OptimConfig().min_lr_ratio)
    contents[RECORD]["config"]["optim"]["muon"] = True
    write_checkpoint(tmp_path / LAST, contents)
    with pytest.raises(InputError, match=r"last.ckpt: .*newer version: unknown setting optim.muon"):
        start_of(tmp_path)


def test_a_damaged_newest_checkpoint_names_the_one_to_use(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    damage = bytearray((run / LAST).read_bytes())
    damage[len(damage) // 2] ^= 0xFF  # one wrong byte, in a file of the right size
    (run / LAST).write_bytes(damage)
    newest = read_checkpoint(run / BEST)
    newest["global_step"] = newest[RECORD]["step"] = 5
    write_checkpoint(run / BEST, newest)
    numbered = run / "checkpoints" / "step_00000004.ckpt"
    for config in (TrainConfig(resume=str(run)), TrainConfig(resume="auto", run_dir=str(run))):
        with pytest.raises(InputError) as caught:
            find_start(config, [])
        assert str(caught.value) == (
            f"{run / LAST}: damaged, or not a checkpoint;"
            f" use {run / BEST} beside it, which is whole (step 5)"
        )
    (run / BEST).write_bytes(b"")
    with pytest.raises(InputError, match=rf"use {numbered} .*\(step 4\)"):
        start_of(run)
    (run / LAST).unlink()
    assert start_of(run).checkpoint == numbered


def test_numbered_checkpoints_are_enough(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / LAST).unlink()
    (run / BEST).unlink()
    numbered = run / "checkpoints" / "step_00000004.ckpt"
    assert start_of(run).checkpoint == numbered
    assert start_of("auto", run_dir=str(run)).checkpoint == numbered
    with pytest.raises(InputError, match="holds a checkpoint already"):
        find_start(TrainConfig(run_dir=str(run)), [])


# ------------------------------------------------------------------ a training state that is wrong


def without_optimizer(whole: dict[str, Any]) -> None:
    del whole["optimizer_states"]


OPTIMIZER = "optimizer_states/0"
MEAN = f"{OPTIMIZER}/state/0/momentum"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_part("minigpt/step", "4"), "step in its record is of type str"),
        (with_part("minigpt/step", -4), "step in its record is -4"),
        (with_part("minigpt/train_seconds", math.nan), "train_seconds in its record is nan"),
        (with_part("minigpt/best_val_loss", "low"), "best_val_loss in its record is of type str"),
        (with_part("minigpt/config", None), "config in its record is of type NoneType"),
        (with_part("minigpt/config/model", 3), "settings cannot be used.*unknown setting model"),
        (with_part("minigpt/config/seed", "x"), "seed=x: must be int"),
        (with_part("global_step", 400), "global_step is 400, not 4"),
        (without_optimizer, "does not have the form"),
        (with_part("optimizer_states", []), "does not have the form"),
        (with_part(OPTIMIZER, [1]), "does not have the form"),
        (with_part(f"{OPTIMIZER}/param_groups", []), "groups are not those of the model"),
        (with_part(f"{OPTIMIZER}/param_groups/0/params", [0]), "groups are not those of the model"),
        (with_part(f"{OPTIMIZER}/state/99", {}), "parameter 99|does not have the form"),
        (with_part(MEAN, torch.zeros(3)), r"momentum of parameter 0 is not \(48, 16\)"),
        (with_part(MEAN, torch.full((48, 16), math.inf)), "momentum of parameter 0 .* finite"),
        (
            with_part(f"{OPTIMIZER}/state/0/step", "x"),
            "state of parameter 0 is not that of its update",
        ),
        (
            with_part(f"{OPTIMIZER}/state/20/exp_avg_sq", torch.zeros(3)),
            "exp_avg_sq of parameter 20",
        ),
        (with_part(f"{OPTIMIZER}/state/0", {}), "state of parameter 0 is not that of its update"),
        (with_part("MixedPrecision", {"scale": "x"}), "MixedPrecision"),
        (with_part("MixedPrecision", 1), "does not have the form"),
        (with_part("state_dict/model.norm.bias", torch.full((16,), math.nan)), "norm.bias .*fini"),
        (with_part("state_dict/more", torch.zeros(2)), "more is in only one"),
    ],
)
def test_a_wrong_training_state_is_refused_before_training(
    train: Train,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    says: str,
) -> None:
    whole = read_checkpoint(finished / LAST)
    change(whole)
    run = tmp_path / "run"
    write_checkpoint(run / LAST, whole)
    before = list(tmp_path.rglob("*"))
    assert train(f"resume={run}", "trainer.max_steps=6") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {run / LAST}: ")
    assert re.search(says, lines[0])
    assert list(tmp_path.rglob("*")) == before


def test_what_is_not_of_the_run_is_left_out(
    train: Train, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read_checkpoint(finished / LAST)
    whole |= {
        "pytorch-lightning_version": "no version",
        "callbacks": {"Milestones": {"x": 1}, "Timer": 3},
        "loops": {"fit_loop": {"epoch_loop.batch_progress": "x"}},
        "lr_schedulers": [{"last_epoch": 3}],
        "epoch": "x",
        "hyper_parameters": {"_instantiator": "os.system", "model": "x"},
        "datamodule_hyper_parameters": {"_class_path": "antigravity.fly"},
        "CorpusBatches": {"data": "x"},
        "datamodule_hparams_name": "x",
        "CPUAccelerator": 3,
    }
    run = tmp_path / "run"
    write_checkpoint(run / LAST, whole)
    assert train(f"resume={run}", "trainer.max_steps=6") == 0
    assert "Warning" not in capsys.readouterr().err
    assert "antigravity" not in sys.modules
    after = read_checkpoint(run / LAST)
    assert after["global_step"] == after[RECORD]["step"] == 6
    assert "hyper_parameters" not in after
    straight = tmp_path / "straight"
    assert train(f"resume={finished}", f"run_dir={straight}", "trainer.max_steps=6") == 0
    for name, tensor in read_checkpoint(straight / LAST)["state_dict"].items():
        assert torch.equal(tensor, after["state_dict"][name])

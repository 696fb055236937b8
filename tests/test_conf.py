import dataclasses
import inspect
from pathlib import Path

import pytest
from lightning import Trainer

from minigpt.arguments import REFUSED_TRAINER_ARGUMENTS
from minigpt.command_line import compose
from minigpt.composition import CONF, compose_presets, groups, keys_of_preset, presets
from minigpt.config import (
    LoggerConfig,
    ModelConfig,
    TokenizerConfig,
    TrainConfig,
    TrainerConfig,
)
from minigpt.data.look.config import LookConfig
from minigpt.doctor.config import DoctorConfig
from minigpt.evaluate.config import EvaluateConfig
from minigpt.export.config import ExportConfig
from minigpt.generation.config import GenerateConfig
from minigpt.settings import settings

PRESETS = [(group, preset) for group in groups("train") for preset in presets(group)]


def test_every_file_is_a_command_or_a_preset_of_a_group() -> None:
    names = ("train", "generate", "doctor", "evaluate", "export", "look")
    commands = {CONF / f"{command}.yaml" for command in names}
    files = {CONF / group / f"{preset}.yaml" for group, preset in PRESETS}
    assert set(CONF.rglob("*.*")) == commands | files


def test_the_commands_compose() -> None:
    assert compose_presets(GenerateConfig, "generate", {}) == GenerateConfig()
    assert compose_presets(DoctorConfig, "doctor", {}).model == ModelConfig()
    assert compose_presets(EvaluateConfig, "evaluate", {}).data.corpus == "stories"
    assert compose_presets(ExportConfig, "export", {}) == ExportConfig()
    assert groups("look") == {k: v for k, v in groups("train").items() if k != "logger"}
    assert compose_presets(LookConfig, "look", {}).data.corpus == "stories"
    assert compose_presets(TrainConfig, "train", {}).data.corpus == "stories"


@pytest.mark.parametrize(("group", "preset"), PRESETS)
def test_every_preset_composes_and_sets_settings_that_exist(group: str, preset: str) -> None:
    compose_presets(TrainConfig, "train", {group: preset})
    known = {setting.key for setting in settings(TrainConfig)}
    assert keys_of_preset(group, preset) <= known


@pytest.mark.parametrize("group", groups("train"))
def test_the_default_of_a_group_is_one_of_its_presets(group: str) -> None:
    default = groups("train")[group]
    assert default in presets(group) or (group, default) == ("experiment", None)


@pytest.mark.parametrize(
    ("preset", "shape"),
    [
        ("tiny", (4, 4, 128, 128)),
        ("small", (6, 6, 384, 256)),
        ("gpt2", (12, 12, 768, 1024)),
        ("gpt2_medium", (24, 16, 1024, 1024)),
        ("gpt2_large", (36, 20, 1280, 1024)),
        ("gpt2_xl", (48, 25, 1600, 1024)),
    ],
)
def test_the_models_have_their_sizes(preset: str, shape: tuple[int, ...]) -> None:
    model = compose_presets(TrainConfig, "train", {"model": preset}).model
    assert (model.n_layer, model.n_head, model.n_embd, model.block_size) == shape
    assert (model.bias, model.dropout) == (True, 0.0)


@pytest.mark.parametrize("group", ["tokenizer", "logger", "data"])
def test_a_preset_sets_the_kind_it_is_named_for(group: str) -> None:
    field = "corpus" if group == "data" else "kind"
    for preset in presets(group):
        config = compose_presets(TrainConfig, "train", {group: preset})
        kind = getattr(getattr(config, group), field)
        # a corpus of the hub has its own name
        assert kind == preset or (kind == "hub" and config.data.name)


def test_the_kinds_are_the_presets() -> None:
    for schema, group in ((TokenizerConfig, "tokenizer"), (LoggerConfig, "logger")):
        kind = next(setting for setting in settings(schema) if setting.key == "kind")
        assert sorted(kind.choices) == presets(group)


def test_shakespeare_char_is_the_known_small_run() -> None:
    config, _ = compose(TrainConfig, "train", ["experiment=shakespeare_char", "data.path=x"])
    assert config.model == ModelConfig(
        n_layer=4, n_head=4, n_embd=128, block_size=64, dropout=0.0, bias=False,
        position="learned", norm_order="pre", activation="gelu",
    )  # fmt: skip
    data = config.data
    assert (data.corpus, data.path, data.document) == ("text", ["x"], "file")
    assert (data.val_fraction, data.layout, data.batch_size) == (0.1, "packed", 12)
    assert not data.document_mask
    assert config.tokenizer.kind == "char"
    optim = config.optim
    assert (optim.lr, optim.beta1, optim.beta2, optim.weight_decay) == (1e-3, 0.9, 0.99, 0.1)
    assert (optim.schedule, optim.warmup_steps, optim.decay_steps) == ("cosine", 100, 2000)
    assert (optim.min_lr_ratio, optim.grad_clip) == (0.1, 1.0)
    assert (config.trainer.max_steps, config.trainer.accumulate_grad_batches) == (2000, 1)
    assert config.experiment == "shakespeare_char"


def test_overfit_trains_the_tiny_model_for_300_steps() -> None:
    config, _ = compose(TrainConfig, "train", ["experiment=overfit"])
    tiny = compose_presets(TrainConfig, "train", {"model": "tiny"}).model
    assert (config.overfit, config.experiment, config.model) == (True, "overfit", tiny)
    assert config.trainer.max_steps == 300


def test_every_argument_of_lightnings_trainer_is_a_setting_or_refused_with_a_reason() -> None:
    arguments = set(inspect.signature(Trainer).parameters)
    ours = {field.name for field in dataclasses.fields(TrainerConfig)}
    refused = set(REFUSED_TRAINER_ARGUMENTS)
    assert ours | refused == arguments
    assert not ours & refused
    assert all(len(reason) > 10 for reason in REFUSED_TRAINER_ARGUMENTS.values())


def test_presets_say_what_they_are() -> None:
    for path in CONF.rglob("*.yaml"):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        first = lines[1] if lines[0].startswith("# @package") else lines[0]
        assert first.startswith("# "), path

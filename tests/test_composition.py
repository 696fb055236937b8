import re
from pathlib import Path

import pytest

from minigpt.composition import compose_presets, groups, keys_of_preset, presets
from minigpt.config import TrainConfig
from minigpt.errors import InputError

TRAIN = """
defaults:
  - train_schema
  - model: tiny
  - _self_
  - experiment: null
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder of presets with one model."""
    folder = tmp_path / "conf"
    for group in ("model", "experiment"):
        (folder / group).mkdir(parents=True)
    (folder / "train.yaml").write_text(TRAIN)
    (folder / "model" / "tiny.yaml").write_text("n_layer: 3\n")
    return folder


def test_groups_and_presets_are_those_of_the_files(conf: Path) -> None:
    (conf / "model" / "other.yaml").write_text("")
    assert groups("train", conf) == {"model": "tiny", "experiment": None}
    assert presets("model", conf) == ["other", "tiny"]


def test_a_preset_goes_over_the_schemas_defaults(conf: Path) -> None:
    (conf / "model" / "wide.yaml").write_text("n_embd: 256\ndropout: 1e-4\n")
    config = compose_presets(TrainConfig, "train", {"model": "wide"}, conf)
    assert (config.model.n_embd, config.model.dropout, config.model.n_layer) == (256, 1e-4, 4)
    assert compose_presets(TrainConfig, "train", {}, conf).model.n_layer == 3


def test_an_experiment_goes_over_its_presets(conf: Path) -> None:
    (conf / "model" / "wide.yaml").write_text("n_embd: 256\nn_layer: 5\n")
    (conf / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /model: wide\n"
        "experiment: mine\nseed: 7\nmodel:\n  n_layer: 9\n"
    )
    config = compose_presets(TrainConfig, "train", {"experiment": "mine"}, conf)
    assert (config.seed, config.model.n_embd, config.model.n_layer) == (7, 256, 9)
    assert keys_of_preset("experiment", "mine", conf) == {
        "experiment", "seed", "model.n_layer", "model.n_embd",
    }  # fmt: skip


def test_a_preset_may_build_on_another(conf: Path) -> None:
    (conf / "model" / "deep.yaml").write_text("defaults:\n  - tiny\n  - _self_\nn_head: 8\n")
    config = compose_presets(TrainConfig, "train", {"model": "deep"}, conf)
    assert (config.model.n_layer, config.model.n_head) == (3, 8)
    assert keys_of_preset("model", "deep", conf) == {"model.n_layer", "model.n_head"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "n_layers: 3",
            "conf/model/bad.yaml: unknown setting model.n_layers; the nearest is model.n_layer",
        ),
        ("n_layer: abc", "conf/model/bad.yaml: model.n_layer: must be int, at least 1;"),
        ("n_layer: 2.5", "conf/model/bad.yaml: model.n_layer: must be int, at least 1;"),
        ("n_layer: null", "conf/model/bad.yaml: model.n_layer: must be int, at least 1;"),
        ("bias: maybe", "conf/model/bad.yaml: model.bias: must be true or false;"),
        ("n_layer: 0", "conf/ (model=bad): model.n_layer=0: must be int, at least 1"),
        ("dropout: .nan", "conf/ (model=bad): model.dropout=nan: must be float"),
        ("position: alibi", "conf/ (model=bad): model.position=alibi: must be one of learned,"),
        ("n_embd: 130", "conf/ (model=bad): model.n_embd=130: must be a multiple of"),
        ("n_layer: ${optim.steps}", "conf/: model.n_layer: must be int, at least 1; Interpolation"),
        ("n_layer: [", "{conf}/model/bad.yaml: line 2: not YAML"),
        ("- n_layer", "conf/model/bad.yaml: "),
        ("defaults:\n  - giant", "conf/model/bad.yaml: Could not load 'model/giant'"),
    ],
)  # fmt: skip
def test_a_faulty_preset_is_one_line_with_file_and_key(conf: Path, text: str, message: str) -> None:
    (conf / "model" / "bad.yaml").write_text(text + "\n")
    with pytest.raises(InputError) as caught:
        compose_presets(TrainConfig, "train", {"model": "bad"}, conf)
    assert str(caught.value).startswith(message.replace("{conf}", str(conf)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle:\n  n_layer: 2", "unknown setting modle; the nearest is model"),
        ("optim:\n  rate: 1", "unknown setting optim.rate; the nearest is optim."),
        ("defaults:\n  - override /modle: tiny", "Could not override 'modle'"),
        ("defaults:\n  - override /model: huge", "Could not find 'model/huge'"),
    ],
)  # fmt: skip
def test_a_faulty_experiment_is_one_line(conf: Path, text: str, message: str) -> None:
    (conf / "experiment" / "bad.yaml").write_text(f"# @package _global_\n{text}\n")
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        compose_presets(TrainConfig, "train", {"experiment": "bad"}, conf)
    assert "\n" not in str(caught.value)


def test_a_faulty_command_file_is_named(conf: Path) -> None:
    (conf / "train.yaml").write_text("defaults: [\n")
    with pytest.raises(InputError, match=r"train\.yaml: line 2: not YAML"):
        groups("train", conf)

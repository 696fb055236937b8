import json
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from minigpt.config import (
    DataConfig,
    ModelConfig,
    TrainConfig,
    check,
    from_plain,
    plain,
)
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from minigpt.settings import Setting, set_value, value_of
from minigpt.settings import settings as list_settings

SCHEMAS = (TrainConfig, GenerateConfig, ModelConfig, DataConfig)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_defaults_are_in_range(schema: type) -> None:
    check(schema())


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_setting_has_a_meaning(schema: type) -> None:
    assert all(len(setting.meaning) > 10 for setting in list_settings(schema))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_an_attribute_that_is_no_setting_cannot_be_set(schema: type) -> None:
    with pytest.raises(AttributeError):
        schema().typo = 1


def values(setting: Setting) -> st.SearchStrategy[Any]:
    """Values a setting may have."""
    if setting.repeatable:
        return st.lists(st.text(min_size=1), max_size=2)
    low = setting.low if setting.low is not None else (setting.above or 0) + 0.01
    bounds = (low, setting.high if setting.high is not None else 1e9)
    kinds: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(int(bounds[0]), int(bounds[1])),
        float: st.floats(*bounds),
        str: st.sampled_from(setting.choices or ("1:00:00:00",)),
    }
    one = st.just("2") if setting.key.endswith("devices") else kinds[setting.type]
    return st.none() | one if setting.optional else one


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_plain_and_from_plain_are_inverse_through_json(data: st.DataObject) -> None:
    config = TrainConfig()
    for setting in list_settings(TrainConfig):
        set_value(config, setting.key, data.draw(values(setting), label=setting.key))
    config.model.n_embd = 4 * config.model.n_head
    config.data.corpus = "text"
    assert from_plain(TrainConfig, json.loads(json.dumps(plain(config)))) == config


def test_missing_settings_take_their_defaults() -> None:
    config = from_plain(TrainConfig, {"model": {"n_layer": 2}})
    assert config.model.n_layer == 2
    config.model.n_layer = 4
    assert config == TrainConfig()


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"sead": 1}, "unknown setting sead; the nearest is seed"),
        (
            {"model": {"n_layers": 2}},
            "unknown setting model.n_layers; the nearest is model.n_layer",
        ),
        ({"model": 2}, "unknown setting model;"),
        ({"model": {"n_layer": "2"}}, "model.n_layer=2: must be int, at least 1"),
        ({"model": {"n_layer": 0}}, "model.n_layer=0: must be int, at least 1"),
        ({"model": {"bias": None}}, "model.bias=null: must be true or false"),
        ({"data": {"path": "x"}}, "data.path=x: must be text"),
        ({"data": {"path": ["x"]}}, "data.path=x: data=stories reads no file of yours"),
        ({"model": {"n_embd": 130}}, "model.n_embd=130: must be a multiple of model.n_head=4"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(saved: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        from_plain(TrainConfig, saved)


def test_a_model_alone_is_held_to_its_width() -> None:
    with pytest.raises(InputError, match=r"^n_embd=10: must be a multiple of n_head=3"):
        check(ModelConfig(n_embd=10, n_head=3))


def test_plain_holds_no_objects() -> None:
    config = plain(TrainConfig(run_dir="x"))
    assert config["run_dir"] == "x"
    assert value_of(from_plain(TrainConfig, config), "run_dir") == "x"
    assert isinstance(config["model"], dict)

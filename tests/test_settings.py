import re
from dataclasses import dataclass, field

import pytest

from minigpt.config import TrainConfig
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from minigpt.settings import (
    check_ranges,
    flat,
    nearest,
    range_text,
    set_value,
    setting,
    settings,
    value_of,
)


@dataclass(kw_only=True, slots=True)
class Inner:
    rate: float = setting(0.5, "a rate", above=0.0, high=1.0)
    count: int | None = setting(None, "a count", low=2)


@dataclass(kw_only=True, slots=True)
class Outer:
    on: bool = setting(True, "a switch")
    kind: str = setting("a", "a kind", choices=("a", "b"))
    time: str | None = setting(None, "a time", form=(r"\d+:\d+", "of the form MM:SS"))
    paths: list[str] = setting([], "some paths", free_text=True)
    inner: Inner = field(default_factory=Inner)


def test_settings_lists_leaves_by_dotted_key_in_the_order_written() -> None:
    listed = list(settings(Outer))
    assert [s.key for s in listed] == [
        "on", "kind", "time", "paths", "inner.rate", "inner.count",
    ]  # fmt: skip
    assert [s.type for s in listed] == [bool, str, str, str, float, int]
    assert [s.key for s in listed if s.optional] == ["time", "inner.count"]
    assert [s.key for s in listed if s.repeatable] == ["paths"]
    assert [s.key for s in listed if s.free_text] == ["paths"]


def test_a_list_is_each_configs_own() -> None:
    first = Outer()
    first.paths.append("x")
    assert Outer().paths == []


def test_range_text_says_type_and_range() -> None:
    texts = {s.key: range_text(s) for s in settings(Outer)}
    assert texts == {
        "on": "true or false",
        "kind": "one of a, b",
        "time": "text or null, of the form MM:SS",
        "paths": "text",
        "inner.rate": "float, above 0 and at most 1",
        "inner.count": "int or null, at least 2",
    }


def test_values_are_reached_by_dotted_key() -> None:
    config = Outer()
    set_value(config, "inner.rate", 0.25)
    set_value(config, "kind", "b")
    assert (value_of(config, "inner.rate"), config.inner.rate, config.kind) == (0.25, 0.25, "b")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inner.rate", 1),
        ("inner.rate", 1.0),
        ("inner.rate", 1e-300),
        ("inner.count", None),
        ("inner.count", 2),
        ("time", "1:30"),
        ("paths", ["", "null"]),
    ],
)
def test_values_in_range_pass(key: str, value: object) -> None:
    config = Outer()
    set_value(config, key, value)
    check_ranges(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inner.rate", 0.0),
        ("inner.rate", 1.0001),
        ("inner.rate", float("nan")),
        ("inner.rate", float("inf")),
        ("inner.rate", True),
        ("inner.rate", "0.5"),
        ("inner.rate", None),
        ("inner.rate", [0.5]),
        ("inner.count", 1),
        ("inner.count", 2.0),
        ("inner.count", True),
        ("on", 1),
        ("on", "true"),
        ("kind", "c"),
        ("kind", 1),
        ("time", "1:3x"),
        ("time", "1:30\n"),
        ("paths", "x"),
        ("paths", [1]),
        ("paths", None),
    ],
)
def test_values_of_another_type_or_range_are_refused_by_key(key: str, value: object) -> None:
    config = Outer()
    set_value(config, key, value)
    with pytest.raises(InputError, match=rf"(?s)^{re.escape(key)}=.*: must be .+ \(.+\)"):
        check_ranges(config)


@pytest.mark.parametrize(
    ("schema", "name", "meant"),
    [
        (TrainConfig, "model.n_layers", "model.n_layer"),
        (TrainConfig, "n_layers", "model.n_layer"),
        (TrainConfig, "modle", "model"),
        (TrainConfig, "tokeniser", "tokenizer"),
        (TrainConfig, "lr", "optim.lr"),
        (TrainConfig, "optimizer.lr", "optim.lr"),
        (TrainConfig, "learning_rate", "optim.lr"),
        (TrainConfig, "max_steps", "trainer.max_steps"),
        (TrainConfig, "batch_size", "data.batch_size"),
        (TrainConfig, "warmup", "optim.warmup_steps"),
        (TrainConfig, "saving.every_n_step", "saving.every_n_steps"),
        (TrainConfig, "seeed", "seed"),
        (GenerateConfig, "promt", "prompt"),
        (GenerateConfig, "max_tokens", "max_new_tokens"),
        (GenerateConfig, "temp", "temperature"),
        (GenerateConfig, "topk", "top_k"),
    ],
)
def test_nearest_is_what_a_misspelt_name_means(schema: type, name: str, meant: str) -> None:
    assert nearest(name, schema) == meant


def test_flat_joins_keys_with_dots() -> None:
    assert flat({"a": 1, "b": {"c": [2], "d": {"e": None}}}) == {"a": 1, "b.c": [2], "b.d.e": None}

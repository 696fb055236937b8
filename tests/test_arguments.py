import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from minigpt.arguments import Arguments, check_single, read_arguments, sweep
from minigpt.config import TrainConfig
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from minigpt.settings import read_value
from minigpt.settings import settings as list_settings

SETTINGS = {setting.key: setting for setting in list_settings(TrainConfig)}


def train(*argv: str) -> Arguments:
    arguments = read_arguments(list(argv), TrainConfig, "train")
    check_single(arguments, TrainConfig, "train")
    return arguments


def test_items_are_sorted_by_what_they_mean() -> None:
    arguments = train("model=small", "optim.lr=1e-3", "data.path=a=b", "run_dir=x", "run_dir=y")
    assert arguments.choices == {"model": "small"}
    assert arguments.values == {"optim.lr": "1e-3"}
    assert arguments.texts == {"data.path": ["a=b"], "run_dir": ["y"]}
    assert not arguments.multirun


def test_of_a_key_the_last_counts_and_repeatable_ones_collect() -> None:
    arguments = train("seed=1", "model=gpt2", "data.path=a", "seed=2", "model=tiny", "data.path=b")
    assert arguments.values == {"seed": "2"}
    assert arguments.choices == {"model": "tiny"}
    assert arguments.texts == {"data.path": ["a", "b"]}


@pytest.mark.parametrize("sign", ["+", "++"])
def test_a_known_key_may_have_hydras_plus(sign: str) -> None:
    assert train(f"{sign}seed=3", f"{sign}model=small") == train("seed=3", "model=small")


@settings(deadline=None, max_examples=50)
@given(text=st.text())
def test_any_text_is_taken_literally(text: str) -> None:
    arguments = read_arguments([f"prompt={text}"], GenerateConfig, "generate")
    assert arguments.texts == {"prompt": [text]}
    assert list(arguments.items()) == [f"prompt={text}"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("+model.typo=1", "unknown setting model.typo; the nearest is model."),
        ("++modle.n_layer=1", "unknown setting modle.n_layer; the nearest is model.n_layer"),
        ("n_layer=1", "unknown setting n_layer; the nearest is model.n_layer"),
        ("modle=small", "unknown setting modle; the nearest is model"),
        ("tokeniser=char", "unknown setting tokeniser; the nearest is tokenizer"),
        ("model.n_layers=1", "unknown setting model.n_layers; the nearest is model.n_layer"),
        ("model.lr=1", "unknown setting model.lr; the nearest is optim.lr"),
        ("data.pth=x", "unknown setting data.pth; the nearest is data.path"),
        ("Seed=1", "unknown setting Seed; the nearest is seed"),
        ("trainer.max_step=1", "unknown setting trainer.max_step; the nearest is trainer.max_st"),
        ("model@other=small", "unknown setting model@other; the nearest is model"),
        ("hydra.run.dir=x", "unknown setting hydra.run.dir; the nearest is run_dir"),
        ("=3", "unknown setting ; the nearest is"),
        ("model=smal", "model=smal: must be one of gpt2, gpt2_large, gpt2_medium, gpt2_xl, small"),
        ("tokenizer=chars", "tokenizer=chars: must be one of bpe, bytes, char"),
        ("data=", "data=: must be one of csv, fineweb_edu, hub, jsonl"),
        ("model=../model/tiny", "model=../model/tiny: must be one of"),
        ("experiment=overfits", "experiment=overfits: must be one of fast, overfit"),
        ("saving=often", "saving=often: saving has no presets, only saving.every_n_steps,"),
        ("trainer.max_epochs=3", "trainer.max_epochs=3: not available: training order is one"),
        ("max_epochs=3", "max_epochs=3: not available: training order is one endless"),
        ("trainer.callbacks=x", "trainer.callbacks=x: not available: callbacks are code"),
        ("small", "small: everything is key=value; write model=small"),
        ("overfit", "overfit: everything is key=value; write experiment=overfit"),
        ("compile", "compile: everything is key=value; write compile=…"),
        ("my.txt", 'my.txt: everything is key=value; if it is a path, write data.path="my.txt"'),
        ("--optim.lr=3", "--optim.lr=3: everything is key=value; write optim.lr=3"),
        ("--max-steps", "--max-steps: everything is key=value; write trainer.max_steps=…"),
        ("~model", "~model: a setting cannot be removed"),
        ("~model.bias=true", "~model.bias=true: a setting cannot be removed"),
        ("optim.lr=1e-3,3e-3", "optim.lr=1e-3,3e-3: several values make a sweep: python"),
        ("model=tiny,small", "model=tiny,small: several values make a sweep: python train.py -m"),
        ("model.n_layer=abc", "model.n_layer=abc: must be int, at least 1 (Transformer blocks)"),
        ("model.n_layer=2.5", "model.n_layer=2.5: must be int, at least 1"),
        ("model.n_layer=1e3", "model.n_layer=1e3: must be int, at least 1"),
        ("model.n_layer=null", "model.n_layer=null: must be int, at least 1"),
        ("model.n_layer=true", "model.n_layer=true: must be int, at least 1"),
        ("model.n_layer=", "model.n_layer=: must be int, at least 1"),
        ("model.n_layer=[2]", "model.n_layer=[2]: must be int, at least 1"),
        ("model.n_layer=" + "9" * 5000, "model.n_layer=999"),
        ("model.n_layer=${seed}", "model.n_layer=${seed}: must be int, at least 1"),
        ("optim.lr=fast", "optim.lr=fast: must be float or null, above 0 (peak learning rate)"),
        ("compile=maybe", "compile=maybe: must be true or false"),
        ("compile=2", "compile=2: must be true or false"),
    ],
)  # fmt: skip
def test_a_wrong_item_is_named_with_what_would_be_right(item: str, message: str) -> None:
    with pytest.raises(InputError, match="^" + re.escape(message)):
        train("seed=1", item)


def test_bare_words_of_generate_are_taken_for_a_prompt() -> None:
    with pytest.raises(InputError, match=r'write prompt="Once upon a time"$'):
        read_arguments(["Once upon a time"], GenerateConfig, "generate")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.lr", "1e-4", 1e-4),
        ("optim.lr", "3E-3", 3e-3),
        ("optim.lr", "1", 1.0),
        ("optim.lr", "null", None),
        ("model.n_layer", "12", 12),
        ("trainer.max_steps", "null", None),
        ("trainer.devices", "2", "2"),
        ("data.encoding", "null", "null"),
        ("compile", "true", True),
        ("compile", "False", False),
        ("trainer.benchmark", "null", None),
        ("trainer.max_time", "00:01:00:00", "00:01:00:00"),
        ("trainer.precision", "bf16-mixed", "bf16-mixed"),
    ],
)
def test_values_are_read_by_the_settings_type(key: str, text: str, value: object) -> None:
    read = read_value(SETTINGS[key], text)
    assert (type(read), read) == (type(value), value)


def test_a_sweep_is_every_combination() -> None:
    jobs = sweep(read_arguments(
        ["-m", "optim.lr=1e-3,3e-3", "model=tiny,small", "seed=5", "data.path=a,b"],
        TrainConfig, "train",
    ))  # fmt: skip
    assert [label for _, label in jobs] == [
        "model=tiny optim.lr=0.001",
        "model=tiny optim.lr=0.003",
        "model=small optim.lr=0.001",
        "model=small optim.lr=0.003",
    ]
    job = jobs[1][0]
    assert list(job.items()) == ["model=tiny", "optim.lr=0.003", "seed=5", "data.path=a,b"]
    assert not job.multirun
    jobs[0][0].texts["run_dir"] = ["x"]
    assert "run_dir" not in job.texts


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,3", ["1", "2", "3"]),
        ("choice(1,2)", ["1", "2"]),
        ("range(1,4)", ["1", "2", "3"]),
        ("range(1,10,4)", ["1", "5", "9"]),
        ("null,2", ["null", "2"]),
        ("7", ["7"]),
    ],
)
def test_sweeps_are_written_in_hydras_grammar(text: str, values: list[str]) -> None:
    jobs = sweep(Arguments(values={"sample_every_n_steps": text}))
    assert [job.values["sample_every_n_steps"] for job, _ in jobs] == values


@pytest.mark.parametrize("text", ["1,", "(", "glob(*)", "interval(1,2)", "range(1,2,0)", "[1,2"])
def test_a_sweep_that_cannot_be_read_is_refused(text: str) -> None:
    def read() -> None:
        for job, _ in sweep(Arguments(values={"seed": text})):
            check_single(job, TrainConfig, "train")

    with pytest.raises(InputError, match="seed="):
        read()

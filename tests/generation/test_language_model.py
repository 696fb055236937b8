"""The model as a library: what `minigpt.load` gives, and that it is what generate.py does."""

import json
import subprocess
import sys
import typing
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import generate
import minigpt
from minigpt.command_line import run
from minigpt.errors import InputError
from minigpt.generation import decode
from minigpt.generation.config import Controls, GenerateConfig
from minigpt.generation.language_model import LanguageModel
from minigpt.generation.prompts import Prompt
from minigpt.model.int8 import Int8Linear, is_exact
from minigpt.settings import settings

#: With a value that changes the text, for each control that can.
CONTROLS: dict[str, object] = {
    "start_of_document": False,
    "logit_bias": {"a": 6.0, "e=f": -1.5},
    "logit_bias_ids": {98: 7.0},
    "repetition_penalty": 3.0,
    "presence_penalty": 2.0,
    "frequency_penalty": -2.0,
    "no_repeat_ngram": 1,
    "min_new_tokens": 3,
    "temperature": 0.3,
    "top_k": 5,
    "top_p": 0.3,
    "min_p": 0.5,
    "max_new_tokens": 25,
    "stop": ["\x00", "b", "e="],
    "stop_ids": [99, 100],
    "seed": 11,
    "num_samples": 2,
    "context_stride": 1,
    "use_cache": False,
}


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return minigpt.load(checkpoint(), dtype="float64")


def on_the_command_line(name: str, value: object) -> list[str]:
    """A control as generate.py is told it."""
    if isinstance(value, dict):
        return [f"{name}={key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return [f"{name}={item}" for item in value]
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}"]


def test_every_control_has_a_type_that_fits_its_setting() -> None:
    known = {setting.key: setting for setting in settings(GenerateConfig)}
    assert CONTROLS.keys() == Controls.__annotations__.keys()
    for name, kind in typing.get_type_hints(Controls).items():
        assert known[name].repeatable or known[name].type in (kind, *typing.get_args(kind))


@pytest.mark.parametrize("name", CONTROLS)
def test_each_control_gives_what_the_command_gives(
    checkpoint: Callable[..., Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint()
    value = CONTROLS[name]
    model = minigpt.load(path, dtype="float64")
    asked = {"max_new_tokens": 12, "seed": 1} | {name: value}
    with warnings.catch_warnings(action="ignore"):  # that it goes past the context
        samples = model.generate("A bed", **asked)  # type: ignore[arg-type]
    arguments = [item for pair in asked.items() for item in on_the_command_line(*pair)]
    fixed = [f"checkpoint={path}", "dtype=float64", "format=json", "prompt=A bed"]
    assert run(generate.main, GenerateConfig, "generate", [*fixed, *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for sample, line in zip(samples, lines, strict=True):
        for field in ("id", "prompt", "sample", "text", "ids", "logprobs", "reason", "seed"):
            assert getattr(sample, field) == line[field]


def test_the_rate_is_of_a_samples_own_tokens(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(0.0, 4.0)  # four pass between two looks at the clock
    monkeypatch.setattr(decode.time, "perf_counter", lambda: next(seconds))
    samples = model.generate(["a", "b"], seed=1, max_new_tokens=10, num_samples=2)
    assert [each.tokens_per_second for each in samples] == [len(each.ids) / 4 for each in samples]


def test_a_prompt_and_several(model: LanguageModel) -> None:
    one = model.generate("Once", seed=1, max_new_tokens=5, num_samples=2)
    several = model.generate(["longer than", "Once"], seed=1, max_new_tokens=5, num_samples=2)
    assert [(each.id, each.prompt, each.sample) for each in several] == [
        (1, "longer than", 0), (1, "longer than", 1), (2, "Once", 0), (2, "Once", 1),
    ]  # fmt: skip
    assert [each.ids for each in several[2:]] == [each.ids for each in one]


def test_without_a_seed_each_call_has_one_of_its_own(model: LanguageModel) -> None:
    first, second = (model.generate("a", max_new_tokens=8)[0] for _ in range(2))
    assert first.seed != second.seed
    assert model.generate("a", max_new_tokens=8, seed=first.seed)[0].ids == first.ids


@pytest.mark.parametrize(
    ("controls", "message"),
    [
        ({"temperature": -1}, "temperature=-1: must be"),
        ({"temprature": 1}, "unknown setting temprature; the nearest is temperature"),
        ({"echo": True}, "echo: holds for all prompts"),
        ({"stop": ["a", ""]}, "stop=: must be"),
        ({"stop_ids": [257]}, "stop_ids=257: the model has tokens 0 to 256"),
        ({"logit_bias_ids": {300: 1}}, "logit_bias_ids=300: the model has tokens 0 to 256"),
        ({"logit_bias": {"a": float("nan")}}, "logit_bias={'a': nan}: must map texts to"),
        ({"stop": ["a" * 400_000]}, "stop: the texts are too long together"),
        ({"logit_bias": {"a" * 400_000: 1}}, "logit_bias: the texts are too long together"),
        ({"context_stride": 17}, "context_stride=17"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5: must be at most"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    model: LanguageModel, controls: dict[str, object], message: str
) -> None:
    for call in (model.generate, model.stream):
        with pytest.raises(InputError, match=message):
            call("Once", **controls)  # type: ignore[arg-type]


def test_what_is_no_text_is_said(model: LanguageModel) -> None:
    for wrong in (5, None, b"Once", ["Once", 5]):
        with pytest.raises(InputError, match="must be text, this is"):
            model.generate(wrong)  # type: ignore[arg-type]
    for call in (model.stream, model.logprobs):
        with pytest.raises(InputError, match="must be text, this is list"):
            call(["Once"])  # type: ignore[arg-type]
    for sample in (-1, 2.5):
        with pytest.raises(InputError, match=f"sample={sample}: must be"):
            model.stream("Once", sample=sample)  # type: ignore[arg-type]


def test_numbers_that_leave_the_range_of_the_arithmetic_are_said(model: LanguageModel) -> None:
    model.model.half()
    with torch.no_grad():
        cast("torch.nn.LayerNorm", model.model.norm).weight.fill_(6e4)
    with pytest.raises(InputError, match="dtype=float16: the model's numbers leave its range"):
        model.generate("Once", temperature=0)


def test_so_are_those_of_a_later_token(model: LanguageModel) -> None:
    model.model.half()
    with torch.no_grad():
        cast("torch.nn.Embedding", model.model.position).weight[9].fill_(6e4)
        cast("Any", model.model.blocks[0]).attention.output.bias.fill_(1e4)  # together too large
    with pytest.raises(InputError, match="dtype=float16: the model's numbers leave its range"):
        model.generate("Once", temperature=0, min_new_tokens=12, max_new_tokens=12)


def test_a_stream_is_one_sample(model: LanguageModel) -> None:
    with pytest.raises(InputError, match="a stream is one sample"):
        model.stream("Once", num_samples=2)


def test_a_character_of_no_token_names_its_prompt(checkpoint: Callable[..., Path]) -> None:
    model = minigpt.load(checkpoint(kind="char"))
    with pytest.raises(InputError, match=r"prompt 2: .*'Z'"):
        model.generate(["the", "Z"])
    with pytest.raises(InputError, match="'Z'"):
        model.logprobs("the Z")


def test_notices_are_warnings(model: LanguageModel) -> None:
    with pytest.warns(UserWarning, match="prompt 1 has 81 tokens and the model reads 16"):
        model.generate("ab" * 40, max_new_tokens=0)
    with pytest.warns(UserWarning, match="^2 prompts, the first of them prompt 2, have more tok"):
        model.generate(["a", "ab" * 40, "b" * 40], max_new_tokens=0)
    with pytest.warns(UserWarning, match="past the context"):
        "".join(model.stream("ab", max_new_tokens=40, logit_bias_ids={256: float("-inf")}))


def test_a_notice_points_at_the_line_that_asked(model: LanguageModel) -> None:
    with pytest.warns(UserWarning, match="the last part is used") as caught:
        model.generate("ab" * 40, max_new_tokens=0)
    with pytest.warns(UserWarning, match="past the context") as also_caught:
        "".join(model.stream("a", max_new_tokens=40, min_new_tokens=40))
    assert {each.filename for each in (*caught, *also_caught)} == {__file__}


def test_a_prompt_that_fills_the_context_is_used_whole(model: LanguageModel) -> None:
    with warnings.catch_warnings(action="error"):
        model.generate("a" * 16, start_of_document=False, max_new_tokens=0)
        "".join(model.stream("a" * 16, start_of_document=False, max_new_tokens=0))


def test_two_documents_are_several(checkpoint: Callable[..., Path]) -> None:
    model = minigpt.load(checkpoint(documents=2))
    given = model.generate("a", seed=1, max_new_tokens=9)[0].ids
    asked = model.generate("a", seed=1, max_new_tokens=9, start_of_document=True)[0].ids
    assert given == asked


def test_a_great_many_samples_are_not_made_before_the_first_is_given(model: LanguageModel) -> None:
    config = GenerateConfig(num_samples=10**12, max_new_tokens=1, seed=1)
    samples = model.samples([Prompt("a", config, 1)])
    assert [next(samples).sample for _ in range(200)] == list(range(200))


def test_short_texts_have_no_tokens_to_be_probable(model: LanguageModel) -> None:
    assert model.logprobs("") == model.logprobs("a") == []
    assert len(model.logprobs("abcd" * 20)) == 79


def test_what_cannot_be_loaded_is_said(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device=tpu: must be one of"):
        minigpt.load(checkpoint(), device="tpu")
    with pytest.raises(InputError, match="batch_size=0"):
        minigpt.load(checkpoint(), batch_size=0)
    with pytest.raises(InputError, match="no such run folder, checkpoint"):
        minigpt.load(tmp_path / "none")


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, minigpt; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=Path(minigpt.__file__).parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(done.stdout.split()) - sys.stdlib_module_names <= {"minigpt", "__main__"}


@pytest.mark.skipif(not is_exact(), reason="this processor has no exact 8-bit products")
def test_weights_of_8_bits_are_a_setting_of_both(
    checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint()
    model = minigpt.load(path, device="cpu", quantize="int8")
    assert isinstance(model.model.head, Int8Linear)
    sample = model.generate("a", seed=3, max_new_tokens=9)[0]
    asked = [f"checkpoint={path}", "prompt=a", "seed=3", "max_new_tokens=9", "format=json"]
    given = [*asked, "device=cpu", "quantize=int8"]
    assert run(generate.main, GenerateConfig, "generate", given) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == sample.ids
    with pytest.raises(InputError, match="quantize=int9: must be one of none, int8"):
        minigpt.load(path, quantize="int9")
    with pytest.raises(InputError, match="quantize=int8: is for device=cpu with dtype=float32"):
        minigpt.load(path, device="cpu", dtype="float64", quantize="int8")

"""Prompts are taken literally, from wherever they come (faults 4, 7, 38 and 40)."""

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError
from minigpt.generation.config import Controls, GenerateConfig, with_controls
from minigpt.generation.prompts import Prompt, prompt_ids, read_prompts, seeded


def read(*prompts: str, file: object = "", form: str = "line") -> list[str]:
    config = GenerateConfig(prompt=list(prompts), prompt_file=str(file), prompt_format=form)
    return [prompt.text for prompt in read_prompts(config)]


AWKWARD = ["a=b, {c}: 'd' \"e\" | (f) # g\\", "null", "123", " blanks ", "é😀床前", "\u2028", "-"]


def test_without_any_there_is_one_empty_prompt() -> None:
    assert read() == [""]


def test_prompts_of_the_command_line_are_kept_as_they_are() -> None:
    assert read(*AWKWARD) == AWKWARD


def test_a_file_holds_a_prompt_a_line_after_those_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(AWKWARD) + "\n", encoding="utf-8")
    assert read(file=path) == AWKWARD
    assert read("first", file=path) == ["first", *AWKWARD]


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\n", [""]),
        ("\na", ["", "a"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("\ufeffa\n", ["a"]),
        ("a\x0bb\x85c\n", ["a\x0bb\x85c"]),
    ],
)
def test_only_the_newline_is_taken_from_a_line(
    tmp_path: Path, content: str, prompts: list[str]
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(content.encode())
    assert read(file=path) == prompts


def test_a_hyphen_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\n")))
    assert read(file="-") == ["Once"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc\xff\n", "not UTF-8 at byte 3"), (b"", "is empty"), (None, "No such file")],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read(file=path)
    assert str(path) in str(raised.value)


def test_bytes_of_the_command_line_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InputError, match="prompt 2: not UTF-8 at character 1"):
        read("good", "a\udcff")


def test_a_whole_file_is_one_prompt_its_line_ends_kept(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("\ufeffOnce\r\nupon\n\n".encode())
    assert read(file=path, form="whole") == ["Once\r\nupon\n\n"]


def lines(path: Path, *records: object) -> GenerateConfig:
    text = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records)
    path.write_text(text + "\n", encoding="utf-8")
    return GenerateConfig(prompt_file=str(path), prompt_format="jsonl", temperature=0.7, seed=3)


def test_a_line_of_json_has_a_name_and_settings_of_its_own(tmp_path: Path) -> None:
    config = lines(
        tmp_path / "p.jsonl",
        {"prompt": "Once"},
        "  ",
        {"prompt": "床\n", "id": "b", "temperature": 0, "stop": [".", "\n"], "stop_ids": [3],
         "logit_bias": {" the": -1.5, "a=b": "-inf"}, "logit_bias_ids": {"7": 2}, "seed": None},
    )  # fmt: skip
    first, second = read_prompts(config)
    assert first == Prompt("Once", config, 1, f"{tmp_path / 'p.jsonl'}, line 1")
    assert (second.text, second.id) == ("床\n", "b")
    assert second.config.temperature == 0
    assert second.config.seed not in (3, None)  # null is a fresh one
    assert (second.config.stop, second.config.stop_ids) == ([".", "\n"], ["3"])
    assert second.config.logit_bias == [" the=-1.5", "a=b=-inf"]
    assert second.config.logit_bias_ids == ["7=2.0"]
    assert config.temperature == 0.7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "id": None}, "'id' must be a string or a number, this is null"),
        ({"prompt": "a", "id": [1]}, "'id' must be a string or a number, this is an array"),
        ({"prompt": "a", "id": True}, "'id' must be a string or a number, this is a boolean"),
        ('{"prompt": "a", "id": NaN}', "'id' must be a string or a number, this is a number"),
        ('{"prompt": "a", "id": "\\ud800"}', "'id' has half of a surrogate pair"),
        ({"prompt": "a", "logit_bias": {"x": 10**400}}, "must map texts to biases, -100 to 100"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON that can be read: nested too deeply"),
        ("[1]", "a JSON object is needed, this is an array"),
        ({"text": "a"}, "no field 'prompt'; there are: text"),
        ({"prompt": 1}, "must be a string, this is a number"),
        ({"prompt": "a", "tempature": 1}, "unknown setting tempature; the nearest is temperature"),
        ({"prompt": "a", "output": "x"}, "output: holds for all prompts"),
        ({"prompt": "a", "temperature": -1}, "temperature=-1: must be"),
        ({"prompt": "a", "temperature": "0.5"}, 'temperature="0.5": is text, must be float'),
        ({"prompt": "a", "top_k": 2.5}, "top_k=2.5: must be"),
        ({"prompt": "a", "top_k": True}, "top_k=true: must be"),
        ({"prompt": "a", "stop": [""]}, "stop=: must be"),
        ({"prompt": "a", "stop": "."}, "stop='.': must be a list of texts"),
        ({"prompt": "a", "stop": None}, "stop=None: must be a list of texts"),
        ({"prompt": "a", "stop": {"x": 1}}, "stop={'x': 1}: must be a list of texts"),
        ({"prompt": "a", "stop": [["x"]]}, "stop=[['x']]: must be a list of texts"),
        ({"prompt": "a", "stop_ids": [1.5]}, "stop_ids=[1.5]: must be a list of token ids"),
        ({"prompt": "a", "stop_ids": [True]}, "stop_ids=[True]: must be a list of token ids"),
        ({"prompt": "a", "logit_bias": [" x=1"]}, "logit_bias=[' x=1']: must map texts to biases"),
        ({"prompt": "a", "logit_bias": {"x": "2"}}, "logit_bias={'x': '2'}: must map texts to"),
        ({"prompt": "a", "logit_bias_ids": {"x": 2}}, "logit_bias_ids={'x': 2}: must map token"),
        ({"prompt": "a", "logit_bias": {"x": -101}}, "logit_bias={'x': -101}: must map texts"),
        ({"prompt": "a", "stop_ids": [-1]}, "stop_ids=-1: must be"),
        ({"prompt": "a", "logit_bias": {"": 1}}, "logit_bias==1.0: must be"),
        ({"prompt": "a", "logit_bias": {"x": 101}}, "logit_bias={'x': 101}: must map texts"),
        ({"prompt": "a", "min_new_tokens": 9, "max_new_tokens": 8}, "must be at most"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    config = lines(tmp_path / "p.jsonl", {"prompt": "good"}, line)
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        read_prompts(config)
    assert "p.jsonl, line 2: " in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_of_blank_lines_has_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.jsonl: has no prompt"):
        read_prompts(lines(tmp_path / "p.jsonl", "", "  "))


def test_every_control_is_a_setting_with_the_same_default() -> None:
    defaults = GenerateConfig()
    for name in Controls.__annotations__:
        default = {} if name.startswith("logit_bias") else getattr(defaults, name)
        assert with_controls(defaults, {name: default}) == defaults


def test_small_biases_and_numbers_of_other_libraries_are_taken() -> None:
    controls = {"logit_bias": {"a=b": 1e-5, "c": np.float32(2)}, "stop_ids": (np.int64(3), 4)}
    config = with_controls(GenerateConfig(), controls)
    assert config.logit_bias == ["a=b=1e-05", "c=2.0"]
    assert config.stop_ids == ["3", "4"]


def test_a_format_without_a_file_is_refused() -> None:
    with pytest.raises(InputError, match="prompt_format=jsonl: is for a prompt_file"):
        read("Once", form="jsonl")


def test_a_fresh_seed_is_taken_only_where_there_is_none() -> None:
    assert seeded(GenerateConfig(seed=0)).seed == 0
    seeds = {seeded(GenerateConfig()).seed for _ in range(5)}
    assert len(seeds) == 5


def test_the_opening_token_is_in_front_if_asked_for_and_of_an_empty_prompt_always() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bytes"), [])
    end, a = tokenizer.end_id, tokenizer.encode("a")
    for start in (True, False):
        assert prompt_ids(tokenizer, "", start_of_document=start) == [end]
    assert prompt_ids(tokenizer, "a", start_of_document=True) == [end, *a]
    assert prompt_ids(tokenizer, "a", start_of_document=False) == a

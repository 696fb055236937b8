"""Where prompts come from, what each is to be gone on with, and the tokens it becomes."""

import dataclasses
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.generation.config import Controls, GenerateConfig
from minigpt.json_lines import json_object, json_text
from minigpt.settings import check_ranges, must_be, nearest, settings

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to go on from, how, and what its user calls it: its number from 1, or any JSON."""

    text: str
    config: GenerateConfig
    id: object


def read_prompts(config: GenerateConfig) -> list[Prompt]:
    """The prompts of the command line, taken literally, and then those of `prompt_file`.

    Without either there is one empty prompt. Raises `InputError` for controls that do not go
    together, for a file that is missing, empty or not UTF-8 (`-` is standard input), or a line that
    is not what `prompt_format` says.
    """
    check_controls(config)
    for number, text in enumerate(config.prompt, start=1):
        check_text(text, f"prompt {number}")
    prompts = [Prompt(text, config, number) for number, text in enumerate(config.prompt, start=1)]
    if config.prompt_file:
        text = _read(config.prompt_file)
        first = len(prompts) + 1
        match config.prompt_format:
            case "line":
                prompts += [Prompt(line, config, i) for i, line in enumerate(_lines(text), first)]
            case "whole":
                prompts.append(Prompt(text, config, first))
            case _:
                prompts += _json_prompts(text, config, first)
        if not prompts:
            raise InputError(f"{_name(config.prompt_file)}: has no prompt, only blank lines")
    return prompts or [Prompt("", config, 1)]


def seeded(config: GenerateConfig) -> GenerateConfig:
    """The settings with a seed: a fresh one where none is given."""
    if config.seed is not None:
        return config
    return dataclasses.replace(config, seed=secrets.randbits(32))


def check_text(text: str, name: str) -> None:
    """`InputError`, which `name` begins, for what other bytes on a command line leave in a text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name}: not UTF-8 at character {error.start}; set the terminal to UTF-8"
        ) from error


def _name(prompt_file: str) -> str:
    return "standard input" if prompt_file == STANDARD_INPUT else prompt_file


def _read(prompt_file: str) -> str:
    name = _name(prompt_file)
    try:
        if prompt_file == STANDARD_INPUT:
            content = sys.stdin.buffer.read()
        else:
            content = Path(prompt_file).read_bytes()
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"prompt_file={prompt_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    if not text:
        raise InputError(f"{name}: is empty; write a prompt a line")
    return text.removeprefix("\ufeff")


def _lines(text: str) -> list[str]:
    """The lines; the newline after the last one starts no other."""
    # str.splitlines would also cut at characters that may be part of a prompt
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def _json_prompts(text: str, config: GenerateConfig, first: int) -> Iterator[Prompt]:
    """The prompt of each line that is not blank, with settings of its own over `config`'s.

    `first` is the number of the first.
    """
    file = _name(config.prompt_file)
    lines = [(number, line) for number, line in enumerate(_lines(text), start=1) if line.strip()]
    for prompt_number, (number, line) in enumerate(lines, first):
        try:
            record = json_object(line)
            prompt, name = json_text(record, "prompt"), record.pop("id", prompt_number)
            del record["prompt"]
            yield Prompt(prompt, with_controls(config, record), name)
        except ValueError as error:
            raise InputError(f"{file}, line {number}: {error}") from error


def with_controls(config: GenerateConfig, controls: Mapping[str, object]) -> GenerateConfig:
    """A copy of `config` with other values of some of `Controls`.

    Raises `InputError` for a name that is not one of them, and a value out of its range.
    """
    known = {each.key: each for each in settings(GenerateConfig)}
    values: dict[str, object] = {}
    for key, value in controls.items():
        if key not in known:
            near = nearest(key, GenerateConfig)
            raise InputError(f"unknown setting {key}; the nearest is {near}")
        if key not in Controls.__annotations__:
            raise InputError(f"{key}: holds for all prompts, set it on the command line")
        values[key] = value
        if known[key].repeatable:
            if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
                raise must_be(known[key], value)
            values[key] = _texts(cast("Mapping[object, object] | Sequence[object]", value))
    changed = dataclasses.replace(config, **values)
    check_controls(changed)
    return changed


def _texts(value: Mapping[object, object] | Sequence[object]) -> list[str]:
    """A list, or a mapping, as the command line gives them: a text each, or KEY=VALUE."""
    if isinstance(value, Mapping):
        return [f"{key}={item}" for key, item in value.items()]
    return [str(item) for item in value]


def check_controls(config: GenerateConfig) -> None:
    """Hold the settings against their ranges and each other; `InputError` says what is wrong."""
    check_ranges(config)
    for key in ("logit_bias", "stop"):
        for text in getattr(config, key):
            check_text(text, key)
    if config.min_new_tokens > config.max_new_tokens:
        raise InputError(
            f"min_new_tokens={config.min_new_tokens}: must be at most"
            f" max_new_tokens={config.max_new_tokens}"
        )


def prompt_ids(tokenizer: Tokenizer, text: str, *, start_of_document: bool) -> list[int]:
    """A prompt as tokens, the document's opening token in front if asked for.

    An empty one always starts a document. Raises `InputError` that names the character that the
    tokenizer does not know.
    """
    ids = tokenizer.encode(text)
    return [tokenizer.end_id, *ids] if start_of_document or not ids else ids

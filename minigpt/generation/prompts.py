"""Where prompts come from, the settings that each has, and the tokens it becomes."""

import dataclasses
import math
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError
from minigpt.generation.config import (
    GenerateConfig,
    check_controls,
    check_text,
    with_controls,
)
from minigpt.json_lines import json_kind, json_object, json_text

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, the settings for it, and what a line calls it, or its number."""

    text: str
    config: GenerateConfig
    id: str | float
    where: str = ""  # the file and line, where it has settings of its own


def read_prompts(config: GenerateConfig) -> list[Prompt]:
    """The prompts of the command line, taken literally, and then those of `prompt_file`.

    Without either there is one empty prompt. Raises `InputError` for controls that do not go
    together, for a file that is missing, empty or not UTF-8 (`-` is standard input), or a line that
    is not what `prompt_format` says.
    """
    check_controls(config)
    if config.prompt_format != "line" and not config.prompt_file:
        raise InputError(f"prompt_format={config.prompt_format}: is for a prompt_file, name one")
    prompts: list[Prompt] = []
    for number, text in enumerate(config.prompt, start=1):
        check_text(text, f"prompt {number}")
        prompts.append(Prompt(text, config, number))
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
        raise InputError(f"{name}: is empty")
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
        where = f"{file}, line {number}"
        try:
            record = json_object(line)
            prompt, name = json_text(record, "prompt"), _id(record, prompt_number)
            own = {key: value for key, value in record.items() if key not in ("prompt", "id")}
            yield Prompt(prompt, seeded(with_controls(config, own)), name, where)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from error


def _id(record: dict[str, object], number: int) -> str | float:
    """What a line calls its prompt, or its number; `ValueError` if that is no text or number."""
    name = record.get("id", number)
    if isinstance(name, str):
        return json_text(record, "id")
    if type(name) is int or (type(name) is float and math.isfinite(name)):
        return name
    raise ValueError(f"the field 'id' must be a string or a number, this is {json_kind(name)}")


def prompt_ids(tokenizer: Tokenizer, text: str, *, start_of_document: bool) -> list[int]:
    """A prompt as tokens, the document's opening token in front if asked for.

    An empty one always starts a document. Raises `InputError` that names the character that the
    tokenizer does not know.
    """
    ids = tokenizer.encode(text)
    return [tokenizer.end_id, *ids] if start_of_document or not ids else ids

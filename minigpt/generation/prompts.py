"""Where prompts come from, and the tokens they are continued from."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import InputError

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to go on from, and the tokens that the model is given for it."""

    text: str
    ids: list[int]


def read_prompts(texts: Sequence[str], prompt_file: str) -> list[str]:
    """The prompts of the command line and then those of `prompt_file`, taken literally.

    A file holds a prompt a line; an empty line is an empty prompt, and the newline after the last
    one starts no other. `-` is standard input, "" no file. Without either there is one empty
    prompt. Raises `InputError` for what is missing, empty or not UTF-8.
    """
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # the command line held other bytes
            raise InputError(
                f"prompt {number}: not UTF-8 at character {error.start}; set the terminal to UTF-8"
            ) from error
    prompts = list(texts)
    if prompt_file:
        prompts += _read_lines(prompt_file)
    return prompts or [""]


def _read_lines(prompt_file: str) -> list[str]:
    name = "standard input" if prompt_file == STANDARD_INPUT else prompt_file
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
    # str.splitlines would also cut at characters that may be part of a prompt
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def encode_prompts(
    tokenizer: Tokenizer, texts: Sequence[str], *, start_of_document: bool
) -> list[Prompt]:
    """Prompts as tokens, the document's opening token in front if asked for.

    An empty one always starts a document. Raises `InputError` that names the prompt and the
    character that the tokenizer does not know.
    """
    prompts: list[Prompt] = []
    for number, text in enumerate(texts, start=1):
        try:
            ids = tokenizer.encode(text)
        except InputError as error:
            raise InputError(f"prompt {number}: {error}") from error
        opening = [tokenizer.end_id] if start_of_document or not ids else []
        prompts.append(Prompt(text, opening + ids))
    return prompts

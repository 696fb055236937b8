"""Prompts are taken literally, from wherever they come (faults 4, 7, 38 and 40)."""

import io
import sys
from pathlib import Path

import pytest

from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer import train_tokenizer
from minigpt.errors import InputError
from minigpt.generation.prompts import encode_prompts, read_prompts

AWKWARD = ["a=b, {c}: 'd' \"e\" | (f) # g\\", "null", "123", " blanks ", "é😀床前", "\u2028", "-"]


def test_without_any_there_is_one_empty_prompt() -> None:
    assert read_prompts([], "") == [""]


def test_prompts_of_the_command_line_are_kept_as_they_are() -> None:
    assert read_prompts(AWKWARD, "") == AWKWARD


def test_a_file_holds_a_prompt_a_line_after_those_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(AWKWARD) + "\n", encoding="utf-8")
    assert read_prompts([], str(path)) == AWKWARD
    assert read_prompts(["first"], str(path)) == ["first", *AWKWARD]


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
    assert read_prompts([], str(path)) == prompts


def test_a_hyphen_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Once\n")))
    assert read_prompts([], "-") == ["Once"]


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
        read_prompts([], str(path))
    assert str(path) in str(raised.value)


def test_bytes_of_the_command_line_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(InputError, match="prompt 2: not UTF-8 at character 1"):
        read_prompts(["good", "a\udcff"], "")


def test_the_opening_token_is_in_front_if_asked_for_and_of_an_empty_prompt_always() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bytes"), [])
    end, a = tokenizer.end_id, tokenizer.encode("a")
    with_it = encode_prompts(tokenizer, ["a", ""], start_of_document=True)
    without = encode_prompts(tokenizer, ["a", ""], start_of_document=False)
    assert [prompt.ids for prompt in with_it] == [[end, *a], [end]]
    assert [prompt.ids for prompt in without] == [a, [end]]
    assert [prompt.text for prompt in without] == ["a", ""]


def test_an_unknown_character_is_named_with_its_prompt() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["abc"])
    with pytest.raises(InputError, match=r"prompt 2: .*'z'"):
        encode_prompts(tokenizer, ["a", "az"], start_of_document=False)

"""A session: prompts are literal, what is wrong is one line, Ctrl-C stops a sample alone."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.checkpoint import LoadedModel
from minigpt.config import ModelConfig, TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from minigpt.generation.continuation import Continuation
from minigpt.generation.language_model import LanguageModel
from minigpt.generation.prompts import Prompt
from minigpt.generation.session import SETTABLE, converse
from minigpt.generation.show import show_streamed
from minigpt.model.gpt import GPT
from minigpt.output import say

BLOCK_SIZE = 16


def language_model(kind: str = "bytes") -> LanguageModel:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), ["the alphabet of this corpus"])
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=BLOCK_SIZE)
    gpt = GPT(config, tokenizer.vocab_size).double().eval()
    return LanguageModel(LoadedModel(gpt, tokenizer, {"documents": 2}), say=say)


MODEL = language_model()


@dataclass
class Shown:
    """What a session left behind; `err` without its two opening lines."""

    out: str
    err: str


def converse_through_pipes(
    lines: bytes | Sequence[str], model: LanguageModel | None = None, **config: Any
) -> Shown:
    content = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content), encoding="ascii")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            changed = dataclasses.replace(GenerateConfig(seed=1, max_new_tokens=5), **config)
            converse(model or language_model(), changed)
    finally:
        sys.stdin = before
    opening, how, *said = err.getvalue().splitlines(keepends=True)
    assert "1 layers, 2 heads, 16 wide" in opening
    assert "/help" in how
    return Shown(out.getvalue(), "".join(said))


def text_of(prompt: str, **controls: Any) -> str:
    """What a session shows of a sample."""
    given: dict[str, Any] = {"seed": 1, "max_new_tokens": 5, **controls}
    written = MODEL.stream(prompt, **given)
    return f"{prompt}{''.join(written)}\n"


class Interrupted(LanguageModel):
    """Ctrl-C is pressed when `after` pieces of a sample are there."""

    after = 3

    def write(
        self, prompt: Prompt, sample: int = 0, say: Callable[[str], None] | None = None
    ) -> tuple[Continuation, Iterator[str]]:
        continuation, pieces = super().write(prompt, sample, say)
        return continuation, self._until(pieces)

    def _until(self, pieces: Iterator[str]) -> Iterator[str]:
        for number, piece in enumerate(pieces, start=1):
            yield piece
            if number == self.after:
                raise KeyboardInterrupt


LITERAL = [
    "a=b, {c}: 'd' | (f) # g\\",
    " blanks ",
    "床前明月光😀",
    "null",
    "",
    "a\u2028b\x0bc",
    " /",
]


def test_each_line_is_a_prompt_as_it_stands_and_an_empty_one_starts_a_document() -> None:
    assert converse_through_pipes(LITERAL).out == "".join(map(text_of, LITERAL))


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\rc\r\n", ["a", "b\rc"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
    ],
)
def test_only_the_newline_is_taken_from_a_line(content: bytes, prompts: list[str]) -> None:
    assert converse_through_pipes(content).out == "".join(map(text_of, prompts))


def test_two_slashes_are_a_prompt_that_begins_with_one() -> None:
    assert converse_through_pipes(["//set seed 3", "///"]).out == text_of("/set seed 3") + text_of(
        "//"
    )


def test_the_prompts_of_the_command_line_come_first_and_are_no_commands() -> None:
    shown = converse_through_pipes(["b"], prompt=["/quit", "a"])
    assert shown.out == text_of("/quit") + text_of("a") + text_of("b")


def test_bytes_that_are_not_utf8_are_one_line() -> None:
    shown = converse_through_pipes(b"a\xffb\nc\n")
    assert shown.out == text_of("c")
    assert shown.err == "the prompt: not UTF-8 at character 1; set the terminal to UTF-8\n"


def test_a_character_the_tokenizer_does_not_know_is_one_line() -> None:
    shown = converse_through_pipes(["the", "tée", "/redo"], language_model("char"), echo=False)
    assert len(shown.out.splitlines()) == 2
    assert shown.err.count("\n") == 1
    assert "'é'" in shown.err
    assert not shown.err.startswith("prompt 1")


def test_quit_ends_the_session() -> None:
    assert converse_through_pipes(["a", "/quit ", "b"]).out == text_of("a")


def test_redo_makes_the_next_sample_of_the_seed() -> None:
    shown = converse_through_pipes(["a", "/redo", "/redo", "b", "/redo"])
    expected = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert shown.out == "".join(text_of(text, sample=sample) for text, sample in expected)


def test_redo_uses_the_settings_as_they_are_now() -> None:
    shown = converse_through_pipes(["a", "/set max_new_tokens 2", "/redo", "/set seed 5", "/redo"])
    assert shown.out == (
        text_of("a")
        + text_of("a", sample=1, max_new_tokens=2)
        + text_of("a", seed=5, max_new_tokens=2)
    )


def test_redo_of_nothing_and_of_the_best_tokens_say_so() -> None:
    shown = converse_through_pipes(["/redo", "a", "/redo"], temperature=0.0)
    assert shown.out == 2 * text_of("a", temperature=0.0)
    first, second = shown.err.splitlines()
    assert "no prompt yet" in first
    assert "the same" in second


def test_a_seed_that_is_null_is_a_fresh_one_for_every_prompt_and_can_be_had_again() -> None:
    model = language_model()
    shown = converse_through_pipes(["a", "/set seed", "a", "/set seed"], model, seed=None)
    seeds = [int(line.rpartition("the last was ")[2].rstrip("]")) for line in
             shown.err.splitlines()]  # fmt: skip
    assert shown.out == "".join(text_of("a", seed=seed) for seed in seeds)
    assert len(set(seeds)) == 2
    shown = converse_through_pipes(["a", "/redo", "/set seed"], seed=None)
    seed = int(shown.err.rpartition("the last was ")[2].rstrip("]\n"))
    assert shown.out == text_of("a", seed=seed) + text_of("a", seed=seed, sample=1)


@pytest.mark.parametrize(
    ("line", "controls"),
    [
        ("/set temperature 0.5", {"temperature": 0.5}),
        ("/set temperature=0.5", {"temperature": 0.5}),
        ("/set  temperature =  0.5 ", {"temperature": 0.5}),
        ("/set top_k 3", {"top_k": 3}),
        ("/set use_cache no", {"use_cache": False}),
        ("/set start_of_document false", {"start_of_document": False}),
        ("/set stop_ids=104", {"stop_ids": [104]}),
        ("/set logit_bias a=b=-2.5", {"logit_bias": {"a=b": -2.5}}),
    ],
)
def test_a_setting_can_be_set(line: str, controls: dict[str, Any]) -> None:
    assert converse_through_pipes([line, "a"]).out == text_of("a", **controls)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["/set stop a b ", "/set stop= c"], ['stop="a b "', 'stop=" c"']),
        (["/set stop a", "/set stop+=b", "/set stop="], ['stop="a"', 'stop="a", "b"', "stop=none"]),
        (
            ["/set stop 床", "/set top_k 5", "/set top_k null"],
            ['stop="床"', "top_k=5", "top_k=null"],
        ),
    ],
)
def test_texts_are_literal_replaced_added_and_taken_away(lines: list[str], said: list[str]) -> None:
    assert converse_through_pipes(lines).err.splitlines() == said


def test_echo_can_be_set() -> None:
    assert converse_through_pipes(["/set echo off", "a"]).out == text_of("a")[1:]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature 2", "unknown setting temprature; the nearest is temperature"),
        ("/set temprature", "unknown setting temprature; the nearest is temperature"),
        ("/set temperature hot", "temperature=hot: must be float, at least 0"),
        ("/set temperature -1", "temperature=-1.0: must be float, at least 0"),
        ("/set temperature=", "temperature=: must be float"),
        ("/set temperature+=1", "temperature: has one value; write temperature=1"),
        ("/set seed nan", "seed=nan: must be int or null"),
        ("/set echo maybe", "echo=maybe: must be true or false"),
        ("/set stop+=", "stop=: must be text, not empty"),
        ("/set logit_bias the", "logit_bias=the: must be text, TEXT=BIAS"),
        ("/set stop_ids 999", "stop_ids=999: the model has tokens 0 to 256"),
        ("/set context_stride 99", "context_stride=99: "),
        ("/set min_new_tokens 6", "min_new_tokens=6: must be at most max_new_tokens=5"),
        ("/set num_samples 2", "num_samples: a prompt has one sample here; /redo makes another"),
        ("/set device cpu", "device: holds for the whole session"),
        ("/set =", "unknown setting"),
        ("/sett seed 3", "/sett seed 3: no command; there are /set, /settings, /redo, /help and"),
        ("/redo 2", "/redo 2: no command"),
        ("/", "/: no command"),
    ],
)
def test_what_is_wrong_is_one_line_and_changes_nothing(line: str, message: str) -> None:
    settings_before = converse_through_pipes(["/settings"]).err
    shown = converse_through_pipes(["a", line, "/settings", "/redo"])
    said, _, settings_after = shown.err.partition("\n")
    assert said.startswith(message)
    assert settings_after == settings_before
    assert shown.out == text_of("a") + text_of("a", sample=1)


def test_settings_that_are_wrong_from_the_start_are_refused() -> None:
    with pytest.raises(InputError, match="stop_ids=999"):
        converse(language_model(), GenerateConfig(stop_ids=["999"]))
    with pytest.raises(InputError, match="min_new_tokens=300"):
        converse(language_model(), GenerateConfig(min_new_tokens=300))


def test_all_settings_are_listed_with_what_differs_from_its_default() -> None:
    listed = converse_through_pipes(["/set", "/settings"], stop=["\n", "b"]).err.splitlines()
    assert len(listed) == 2 * len(SETTABLE)
    assert [line.split()[0] for line in listed[: len(SETTABLE)]] == list(SETTABLE)
    differing = {line.split()[0] for line in listed if "default" in line}
    assert differing == {"max_new_tokens", "seed", "stop"}
    assert any(line.split("  ")[1:] and '"\\n", "b"' in line for line in listed)


def test_one_setting_is_explained() -> None:
    (line,) = converse_through_pipes(["/set max_new_tokens"]).err.splitlines()
    assert line == "max_new_tokens=5: most tokens to generate [int, at least 0; default 256]"


def test_help_names_every_command() -> None:
    said = converse_through_pipes(["/help"]).err
    assert all(command in said for command in ("/set ", "/settings", "/redo", "/quit", "//"))


def test_a_notice_comes_after_the_text_and_once() -> None:
    long = "a" * (BLOCK_SIZE + 1)
    model = language_model()
    shown = converse_through_pipes([long, "/redo", "b"], model, max_new_tokens=40)
    assert shown.err.count("past the context") == 1
    assert shown.err.count("the last part is used") == 1
    assert shown.out.startswith(text_of(long, max_new_tokens=40))
    both = io.StringIO()
    with contextlib.redirect_stdout(both), contextlib.redirect_stderr(both):
        prompt = Prompt(long, GenerateConfig(seed=1, max_new_tokens=40), 1)
        show_streamed(language_model(), prompt)
    text, notice = text_of(long, max_new_tokens=40), "the prompt has"
    assert both.getvalue().startswith(text + notice)


def test_ctrl_c_stops_a_sample_and_the_session_goes_on() -> None:
    model = language_model()
    model.__class__ = Interrupted
    shown = converse_through_pipes(["é", "/redo", "/set seed 2", "b"], model)
    first_tokens = {"max_new_tokens": Interrupted.after}
    assert shown.out == (
        text_of("é", **first_tokens)
        + text_of("é", sample=1, **first_tokens)
        + text_of("b", seed=2, **first_tokens)
    )
    assert shown.err == "seed=2\n"


def test_a_closed_output_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdin", io.StringIO("a\nb\n"))
    monkeypatch.setattr(sys.stdout, "write", fail)
    with pytest.raises(BrokenPipeError):
        converse(language_model(), GenerateConfig(max_new_tokens=3))


PROMPTS = st.text("ab/ 床😀", max_size=4)
TURNS = st.lists(
    st.one_of(
        PROMPTS,
        st.just("/redo"),
        st.integers(0, 2).map(lambda seed: f"/set seed {seed}"),
        st.integers(0, 6).map(lambda n: f"/set max_new_tokens={n}"),
    ),
    max_size=6,
)


@given(TURNS)
@settings(max_examples=40)
def test_any_session_shows_what_the_model_streams(lines: list[str]) -> None:
    expected = ""
    controls = {"seed": 1, "max_new_tokens": 5}
    made: tuple[str, int, int] | None = None  # prompt, seed, sample
    for line in lines:
        if line.startswith("/set "):
            name, value = line.removeprefix("/set ").replace("=", " ").split()
            controls[name] = int(value)
            continue
        if line == "/redo" and made:
            text, seed, sample = made
            made = text, controls["seed"], sample + 1 if seed == controls["seed"] else 0
        elif line.startswith("//") or not line.startswith("/"):
            made = line.removeprefix("/"), controls["seed"], 0
        else:
            continue
        expected += text_of(made[0], sample=made[2], **controls)
    assert converse_through_pipes(lines).out == expected

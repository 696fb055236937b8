"""The session of `generate.py interactive=true`: each line is gone on from, one after another.

Generated text goes to standard output; all that is said beside it goes to standard error, so that
a session through pipes gives the text alone. A line that begins with `/` is a command (`HELP`).
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from minigpt.errors import InputError
from minigpt.generation.config import (
    Controls,
    GenerateConfig,
    check_controls,
    check_text,
)
from minigpt.generation.prompts import Prompt, seeded
from minigpt.generation.show import show_streamed
from minigpt.output import say
from minigpt.settings import Setting, nearest, range_text, read_value, settings, shown, value_of

if TYPE_CHECKING:
    from minigpt.generation.language_model import LanguageModel

SIGN = "> "

HELP = """\
  /set NAME VALUE   give a setting another value; a text is taken as it stands
  /set stop+=TEXT   one more text, of a setting that has several; /set stop= leaves none
  /set NAME         what a setting means, and its range
  /settings         what can be set, and the values
  /redo             another sample of the last prompt
  /quit             end, as Ctrl-D does
Any other line is a prompt, taken as it stands; an empty one starts a document, and //… is a prompt
that begins with /. Ctrl-C stops a sample."""

#: What `/set` can change, by name.
SETTABLE = {
    setting.key: setting
    for setting in settings(GenerateConfig)
    if setting.key in {*Controls.__annotations__, "echo"} - {"num_samples"}
}


class Last(NamedTuple):
    """What a sample was made from: its prompt, its seed, and its number among those of the seed."""

    text: str
    seed: int
    sample: int


@dataclass(slots=True)
class Session:
    """The settings as they are now, and what the last sample was made from (None: none yet)."""

    model: "LanguageModel"
    config: GenerateConfig
    last: Last | None = None


def converse(model: "LanguageModel", config: GenerateConfig) -> None:
    """Go on from the prompts of the command line, then from each line, until the lines end.

    What is wrong with a line is said in one, and the session goes on. Ctrl-C ends a sample, or
    drops the line that is being typed; only while a pipe is waited for it ends the session.
    Raises `InputError` for settings that are wrong from the start.
    """
    check_controls(config)
    session = Session(model, config)
    model.decoding(session.config)
    model.say = functools.cache(model.say)  # what holds for every long sample is said once
    say(model.model.shape())
    say("type a text to go on from; /help shows the commands, Ctrl-D ends")
    for text in config.prompt:
        _take_turn(lambda text=text: go_on(session, text))
    for line in typed_lines() if sys.stdin.isatty() else piped_lines():
        if line.rstrip() == "/quit":
            return
        _take_turn(lambda line=line: obey(session, line))


def _take_turn(work: Callable[[], None]) -> None:
    """Do what a line asks for; what is wrong with it is one line."""
    try:
        work()
    except KeyboardInterrupt:
        pass  # the sample has been ended
    except InputError as error:
        say(" ".join(str(error).splitlines()))


def typed_lines() -> Iterator[str]:
    """The lines typed at a terminal, with editing and history; Ctrl-C drops one, Ctrl-D ends."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # told where the line is looked at
    edited = sys.stdout.isatty()
    if edited:
        with contextlib.suppress(ImportError):  # not every system has it
            importlib.import_module("readline")  # from now on `input` edits
    while True:
        try:
            if not edited:  # `input` would write the sign among the text
                sys.stderr.write(SIGN)
                sys.stderr.flush()
            line = input(SIGN if edited else "")
        except KeyboardInterrupt:
            say("")
            continue
        except EOFError:
            say("")
            return
        yield line


def piped_lines() -> Iterator[str]:
    """The lines of standard input, UTF-8; only the newline is taken off."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    mark = "\ufeff"  # of the encoding, where some editors begin a file
    while line := sys.stdin.readline():
        yield line.removeprefix(mark).removesuffix("\n").removesuffix("\r")
        mark = ""


def obey(session: Session, line: str) -> None:
    """Do what a line asks for. Raises `InputError`."""
    if not line.startswith("/") or line.startswith("//"):
        go_on(session, line.removeprefix("/"))
        return
    command, _, rest = line.partition(" ")
    match command, bool(rest.strip()):
        case "/set", True:
            set_or_explain(session, rest.lstrip())
        case (("/set" | "/settings"), False):
            say("\n".join(setting_lines(session.config)))
        case "/redo", False:
            redo(session)
        case "/help", False:
            say(HELP)
        case _:
            raise InputError(
                f"{line.strip()}: no command; there are /set, /settings, /redo, /help and /quit,"
                " and //… is a prompt that begins with /"
            )


def go_on(session: Session, text: str) -> None:
    """Show the first sample of a prompt: of the seed that is set, or of a fresh one."""
    seed = seeded(session.config).seed
    assert seed is not None
    check_text(text, "the prompt")
    _make(session, Last(text, seed, 0))


def redo(session: Session) -> None:
    """Show the next sample of the last prompt, with the settings as they are now."""
    last = session.last
    if last is None:
        raise InputError("/redo: there is no prompt yet")
    seed = last.seed if session.config.seed is None else session.config.seed
    _make(session, Last(last.text, seed, last.sample + 1 if seed == last.seed else 0))
    if session.config.temperature == 0:
        say("temperature=0 takes the best token each time: all samples of a prompt are the same")


def _make(session: Session, made_from: Last) -> None:
    """Show a sample. What cannot be begun is not the last one."""
    text, seed, sample = made_from
    before, session.last = session.last, made_from
    try:
        prompt = Prompt(text, dataclasses.replace(session.config, seed=seed), 1)
        show_streamed(session.model, prompt, sample)
    except InputError:
        session.last = before
        raise


def set_or_explain(session: Session, text: str) -> None:
    """`NAME VALUE`, `NAME=VALUE` or `NAME+=VALUE` sets; `NAME` alone says what the setting is.

    Raises `InputError` for what cannot be set or does not fit the model; nothing is changed then.
    """
    found = re.fullmatch(r"(.*?)(\+=|=|\s|\Z)(.*)", text, re.DOTALL)
    assert found is not None
    name, sign, value = found.groups()
    setting = settable(name)
    if "=" not in sign and not value.strip():
        say(explained(setting, session))
        return
    config = changed(session.config, setting, value, more=sign == "+=")
    session.model.decoding(config)
    session.config = config
    say(f"{name}={_readable(value_of(config, name))}")


def settable(name: str) -> Setting:
    """The setting of this name; `InputError` if there is none, or none to be set here."""
    if name in SETTABLE:
        return SETTABLE[name]
    if name == "num_samples":
        raise InputError("num_samples: a prompt has one sample here; /redo makes another")
    if any(setting.key == name for setting in settings(GenerateConfig)):
        raise InputError(f"{name}: holds for the whole session, set it on the command line")
    near = nearest(name, GenerateConfig)
    raise InputError(f"unknown setting {name}; the nearest is {near} (/settings lists all)")


def changed(config: GenerateConfig, setting: Setting, text: str, *, more: bool) -> GenerateConfig:
    """A copy of `config` with the value that `text` means, or with this one more.

    An empty text leaves a setting of several values none. Raises `InputError`.
    """
    if setting.repeatable:
        before: list[str] = value_of(config, setting.key) if more else []
        value = [*before, text] if text or more else []
    elif more:
        raise InputError(f"{setting.key}: has one value; write {setting.key}={text}")
    else:
        value = read_value(setting, text.strip().removeprefix("=").strip())  # `NAME = VALUE` too
    config = dataclasses.replace(config, **{setting.key: value})
    check_controls(config)
    return config


def setting_lines(config: GenerateConfig) -> Iterator[str]:
    """All settings that can be set with their values; the default of those that differ from it."""
    width = max(map(len, SETTABLE))
    for key, setting in SETTABLE.items():
        value = value_of(config, key)
        differs = "" if value == setting.default else f"({_default(setting)})"
        yield f"  {key:<{width}}  {_readable(value):<8}  {differs}".rstrip()


def explained(setting: Setting, session: Session) -> str:
    """A setting's value, meaning, range and default, in a line."""
    value = value_of(session.config, setting.key)
    line = f"{setting.key}={_readable(value)}: {setting.meaning} [{range_text(setting)};"
    if setting.key == "seed" and value is None and session.last is not None:
        return f"{line} {_default(setting)}; the last was {session.last.seed}]"
    return f"{line} {_default(setting)}]"


def _default(setting: Setting) -> str:
    return f"default {_readable(setting.default)}"


def _readable(value: Any) -> str:
    """A value in a line; texts in quotation marks, since they may hold blanks and newlines."""
    if isinstance(value, list):
        texts = [json.dumps(text, ensure_ascii=False) for text in cast("list[str]", value)]
        return ", ".join(texts) or "none"
    return shown(value)

"""The commands that the documentation shows are ones that the program takes."""

import contextlib
import re
import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from minigpt.command_line import compose
from minigpt.config import TrainConfig
from minigpt.data.look.config import LookConfig
from minigpt.doctor.config import DoctorConfig
from minigpt.errors import InputError
from minigpt.evaluate.config import EvaluateConfig
from minigpt.export.config import ExportConfig
from minigpt.generation.config import GenerateConfig

PROJECT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/architecture.md",
    "docs/data.md",
    "docs/training.md",
    "docs/generation.md",
    "docs/speed.md",
    "docs/doctor.md",
    "docs/evaluation.md",
    "docs/exchange.md",
    "examples/README.md",
    "data/README.md",
    "bench/README.md",
)
COMMAND = re.compile(
    r"(?:\.venv/bin/)?python (?:(train|generate)\.py|-m minigpt\.(data|doctor|evaluate|export))"
    r"( .*)?"
)
#: Of each program, its settings and their name in `conf/`.
SCHEMAS = {
    "train": (TrainConfig, "train"),
    "generate": (GenerateConfig, "generate"),
    "data": (LookConfig, "look"),
    "doctor": (DoctorConfig, "doctor"),
    "evaluate": (EvaluateConfig, "evaluate"),
    "export": (ExportConfig, "export"),
}


def commands() -> list[tuple[str, str, bool]]:
    """(program, arguments, whether an error is shown) of each command in a code block."""
    found: list[tuple[str, str, bool]] = []
    for page in PAGES:
        text = (PROJECT / page).read_text(encoding="utf-8")
        for language, fenced, indented in re.findall(
            r"```(\w*)\n(.*?)```|((?:^ {4}.*\n)+)", text, re.DOTALL | re.MULTILINE
        ):
            # on a screen what is typed stands after a $
            typed = "\n".join(re.findall(r"^(?:\$|error:) .*", fenced, re.MULTILINE))
            block = (fenced if language == "sh" else typed) or indented
            lines = re.sub(r"\\\n\s*", "", block).splitlines()
            for line, following in pairwise([*lines, ""]):
                if match := COMMAND.search(line):
                    refused = following.startswith("error:")
                    found.append((match[1] or match[2], match[3] or "", refused))
    return found


def test_there_are_commands() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize(("program", "arguments", "refused"), commands())
def test_a_command_that_is_shown_is_taken(program: str, arguments: str, refused: bool) -> None:
    words = [word for word in shlex.split(arguments, comments=True) if word != "--help"]
    if "-m" in words:  # a list of values stands for one run with each
        words = [re.sub(r"=([^,]+),.*", r"=\1", word) for word in words if word != "-m"]
    with contextlib.suppress(InputError) if refused else contextlib.nullcontext():
        compose(*SCHEMAS[program], words)


def test_the_scripts_that_are_shown_exist() -> None:
    for page in PAGES:
        text = (PROJECT / page).read_text(encoding="utf-8")
        for script in re.findall(r"python ([a-z0-9_/]+\.py)", text):
            assert (PROJECT / script).is_file(), (page, script)


def test_the_targets_of_make_that_are_shown_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = (PROJECT / page).read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (page, target)


def test_the_files_that_are_linked_exist() -> None:
    for page in PAGES:
        text = (PROJECT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((PROJECT / page).parent / link).exists(), (page, link)


@pytest.mark.parametrize("page", ["README.md", "docs/generation.md"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # a small context
def test_the_python_that_is_shown_runs(
    page: str,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(checkpoint("runs/a/checkpoints/best.ckpt").parents[3])
    Path("runs", "latest").symlink_to("a")
    text = (PROJECT / page).read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})  # noqa: S102  it is the page's own
    assert len(capsys.readouterr().out) > 40

"""`compile=true` without a compiler is refused before anything is done."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from minigpt.command_line import run
from minigpt.compiler import check_compiler
from minigpt.config import TrainConfig
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from tests.conftest import Train

REFUSAL = (
    "compile=true: needs a C++ compiler, and no-such-c++ is not there or does not work; install"
    " one, name it in CXX, or leave compile out"
)


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")


def test_a_cpu_needs_one_and_a_gpu_has_its_own() -> None:
    with pytest.raises(InputError, match=f"^{re.escape(REFUSAL)}$"):
        check_compiler("cpu")
    check_compiler("cuda")


def test_one_that_does_not_work_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(InputError, match="and false is not there or does not work"):
        check_compiler("cpu")


def test_one_that_is_there_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "ls")
    check_compiler("cpu")


def test_training_and_generating_refuse(
    tmp_path: Path, checkpoint: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import generate
    import train

    folder = tmp_path / "run"
    settings = ["compile=true", "data.max_documents=300", f"run_dir={folder}"]
    assert run(train.main, TrainConfig, "train", [*settings, "trainer.accelerator=cpu"]) == 2
    assert not folder.exists()
    settings = ["compile=true", f"checkpoint={checkpoint()}", "device=cpu"]
    assert run(generate.main, GenerateConfig, "generate", settings) == 2
    assert capsys.readouterr().err.count(f"error: {REFUSAL}\n") == 2


def test_8_bits_are_not_compiled(
    checkpoint: Callable[[], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import generate

    monkeypatch.setenv("CXX", "ls")
    monkeypatch.setattr("minigpt.generation.language_model.check_quantize", lambda *_: None)
    settings = ["compile=true", "quantize=int8", f"checkpoint={checkpoint()}", "device=cpu"]
    assert run(generate.main, GenerateConfig, "generate", settings) == 2
    refusal = "compile=true: does not go with quantize=int8; leave one of them out"
    assert capsys.readouterr().err == f"error: {refusal}\n"


class CompileError(Exception):
    """As inductor raises where its compiler ended early."""

    __module__ = "torch._inductor.exc"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_signal_that_ends_the_compiler_stops_the_run(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    stopped: bool,
) -> None:
    def step(*_: object) -> None:
        if stopped:
            os.kill(os.getpid(), signal.SIGINT)
        raise CompileError("g++ …\n" * 1000)

    monkeypatch.setattr("minigpt.training.lightning_module.LanguageModel.training_step", step)
    status = train("data.max_documents=300", f"run_dir={tmp_path / 'run'}", "trainer.max_steps=2")
    told = capsys.readouterr().err.splitlines()[-1]
    if stopped:
        assert (status, told) == (130, "stopped before the first step: there is nothing to save")
    else:
        assert status == 1
        assert told.startswith("error: a fault of the program: CompileError: g++ …")
        assert len(told) < 600

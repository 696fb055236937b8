import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from minigpt.command_line import compose, nothing_thrown_away, run
from minigpt.config import TrainConfig
from minigpt.errors import InputError, RunError
from minigpt.generation.config import GenerateConfig

ROOT = Path(__file__).resolve().parent.parent

Run = tuple[int, list[tuple[Any, frozenset[str]]]]


def train(*argv: str, status: int | None = None) -> Run:
    """Run a command line as train.py would; the exit status and what `main` was called with."""
    calls: list[tuple[TrainConfig, frozenset[str]]] = []

    def main(config: TrainConfig, named: frozenset[str]) -> int | None:
        calls.append((config, named))
        return status

    return run(main, TrainConfig, "train", list(argv)), calls


def failing(error: BaseException) -> int:
    """The status of a command whose `main` raises."""

    def main(_config: GenerateConfig, _named: frozenset[str]) -> None:
        raise error

    return run(main, GenerateConfig, "generate", [])


# ------------------------------------------------------------------ from items to a config


def test_main_gets_the_config_and_the_keys_that_were_named() -> None:
    status, [(config, named)] = train("seed=3", "optim.lr=1e-4", "run_dir=a b")
    assert status == 0
    assert (config.seed, config.optim.lr, config.run_dir) == (3, 1e-4, "a b")
    assert named == {"seed", "optim.lr", "run_dir"}
    assert train()[1] == [(compose(TrainConfig, "train", [])[0], frozenset())]


def test_a_preset_names_the_settings_of_its_file() -> None:
    _, named = compose(TrainConfig, "train", ["model=small"])
    assert named == {"model.n_layer", "model.n_head", "model.n_embd", "model.block_size"}
    _, named = compose(TrainConfig, "train", ["experiment=shakespeare_char", "data.path=x"])
    assert {"experiment", "data.corpus", "tokenizer.kind", "data.path", "optim.lr"} <= named
    assert not {"seed", "data.max_documents"} & named


def test_values_go_over_presets_wherever_they_stand() -> None:
    for argv in (["model=small", "model.n_layer=2"], ["model.n_layer=2", "model=small"]):
        config, _ = compose(TrainConfig, "train", argv)
        assert (config.model.n_layer, config.model.n_embd) == (2, 384)


def test_an_experiments_preset_can_be_overridden() -> None:
    argv = ["experiment=shakespeare_char", "data.path=x", "tokenizer=bytes", "trainer.max_steps=5"]
    config, _ = compose(TrainConfig, "train", argv)
    assert (config.tokenizer.kind, config.trainer.max_steps) == ("bytes", 5)


@pytest.mark.parametrize(
    "text",
    [
        "a=b", "a,b", "it's", 'say "hi"', "#1", "a|b", "(a)", "[a]", "{a: b}", "null", "true",
        "123", "1e-4", "", " ", "  two  ", "é", "日本語", "🙂", "${seed}", "???", "\\n", "a\nb",
        "~x", "+x", "--help", "-m", "=", "%", "$HOME", "*",
    ],
)  # fmt: skip
def test_free_text_is_taken_literally(text: str) -> None:
    config, named = compose(GenerateConfig, "generate", [f"prompt={text}", f"checkpoint={text}"])
    assert (config.prompt, config.checkpoint) == ([text], text)
    assert named == {"prompt", "checkpoint"}


@settings(deadline=None, max_examples=15)
@given(texts=st.lists(st.text(), min_size=1, max_size=3))
def test_repeated_prompts_are_several_prompts(texts: list[str]) -> None:
    config, _ = compose(GenerateConfig, "generate", [f"prompt={text}" for text in texts])
    assert config.prompt == texts


def test_of_other_keys_the_last_counts() -> None:
    config, _ = compose(GenerateConfig, "generate", ["output=a", "seed=1", "seed=2", "output=b"])
    assert (config.output, config.seed) == ("b", 2)


def test_a_config_is_each_commands_own() -> None:
    first, _ = compose(TrainConfig, "train", ["data=text", "data.path=x", "model.n_layer=9"])
    second, _ = compose(TrainConfig, "train", [])
    assert (second.data.path, second.model.n_layer) == ([], 4)
    assert (first.data.path, first.model.n_layer) == (["x"], 9)


# ------------------------------------------------------------------ wrong input


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["+model.typo=1"], "error: unknown setting model.typo; the nearest is model."),
        (["modle=small"], "error: unknown setting modle; the nearest is model ("),
        (["tokenizer=chars"], "error: tokenizer=chars: must be one of bpe, bytes, char"),
        (["data.layout=pack"], "error: data.layout=pack: must be one of packed, padded (rows:"),
        (["model.n_layer=0"], "error: model.n_layer=0: must be int, at least 1"),
        (["model.n_layer=2.5"], "error: model.n_layer=2.5: must be int, at least 1"),
        (["optim.lr=nan"], "error: optim.lr=nan: must be float or null, above 0"),
        (["optim.lr=-1"], "error: optim.lr=-1.0: must be float or null, above 0"),
        (["optim.lr=inf"], "error: optim.lr=inf: must be float or null, above 0"),
        (["model.dropout=1"], "error: model.dropout=1.0: must be float, at least 0 and at most"),
        (["model.n_embd=130"], "error: model.n_embd=130: must be a multiple of model.n_head=4"),
        (["seed=-1"], "error: seed=-1: must be int, at least 0 and at most 4294967295"),
        (["seed=4294967296"], "error: seed=4294967296: must be int"),
        (["trainer.devices=0"], "error: trainer.devices=0: must be text, auto or at least 1"),
        (["trainer.max_time=1h"], "error: trainer.max_time=1h: must be text or null, of the form"),
        (["trainer.precision=fp8"], "error: trainer.precision=fp8: must be one of 32-true,"),
        (["tokenizer.vocab_size=10"], "error: tokenizer.vocab_size=10: must be int or null, at"),
        (["data.path="], "error: data.path=: must be text, not empty"),
        (["data.path=x"], "error: data.path=x: data=stories reads no file of yours; add data=text"),
        (["-m", "seed=1,x"], "error: seed=x: must be int"),
        (["-m", "model=tiny,huge"], "error: model=huge: must be one of"),
        (["seed=1\n2\n"], "error: seed=1 2 : must be int"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, calls = train(*argv)
    out, err = capsys.readouterr()
    assert (status, calls, out) == (2, [], "")
    assert err.startswith(message)
    assert err.count("\n") == 1


# ------------------------------------------------------------------ how a command ends


@pytest.mark.parametrize("status", [0, 1, 2, 130, 143])
def test_the_status_is_that_of_main(status: int) -> None:
    assert train(status=status)[0] == status


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("no such file"), 2, "error: no such file\n"),
        (RunError("the loss is not finite"), 1, "error: the loss is not finite\n"),
        (OSError(28, "No space left"), 1, "error: OSError: [Errno 28] No space left\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (
            KeyError("x\ny"), 1,
            "error: a fault of the program: KeyError: 'x\\ny' (MINIGPT_DEBUG=1 shows where)\n",
        ),
        (
            ValueError("x\ny"), 1,
            "error: a fault of the program: ValueError: x y (MINIGPT_DEBUG=1 shows where)\n",
        ),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, line: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("MINIGPT_DEBUG", raising=False)
    assert failing(error) == status
    assert capsys.readouterr() == ("", line)


def test_a_pipe_that_broke_elsewhere_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(BrokenPipeError(32, "Broken pipe")) == 1
    assert capsys.readouterr().err == "error: BrokenPipeError: [Errno 32] Broken pipe\n"


def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIGPT_DEBUG", "1")
    assert failing(InputError("no such file")) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("\nerror: no such file\n")


# ------------------------------------------------------------------ help


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["seed=1", "--help"], ["typo", "-h"]])
def test_help_is_shown_whatever_else_is_asked(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    started = time.process_time()
    status, calls = train(*argv)
    out, err = capsys.readouterr()
    assert (status, calls, err) == (0, [], "")
    assert out.startswith("python train.py [key=value ...]")
    assert time.process_time() - started < 1


# ------------------------------------------------------------------ sweeps


@pytest.fixture
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_sweep_calls_main_for_each_combination(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "untouched"])
    seen: list[list[str]] = []

    def main(config: TrainConfig, named: frozenset[str]) -> None:
        assert named == {"optim.lr", "model.bias", "run_dir", "logger.name"}
        seen.append([str(config.optim.lr), str(config.model.bias), config.run_dir, *sys.argv])

    argv = ["-m", "optim.lr=1e-3,3e-3", "model.bias=true", "run_dir=some/runs"]
    assert run(main, TrainConfig, "train", argv) == 0
    assert seen == [
        ["0.001", "True", "some/runs/0", "train.py", "optim.lr=0.001", "model.bias=true",
         "run_dir=some/runs/0", "logger.name=optim.lr=0.001"],
        ["0.003", "True", "some/runs/1", "train.py", "optim.lr=0.003", "model.bias=true",
         "run_dir=some/runs/1", "logger.name=optim.lr=0.003"],
    ]  # fmt: skip
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["job 1 of 2: optim.lr=0.001", "job 2 of 2: optim.lr=0.003"]
    assert sys.argv == ["train.py", "untouched"]


def test_without_run_dir_the_jobs_share_a_new_folder(in_an_empty_folder: Path) -> None:
    folders = [Path(config.run_dir) for config, _ in train("-m", "seed=1,2")[1]]
    assert [folder.name for folder in folders] == ["0", "1"]
    assert folders[0].parent == folders[1].parent
    assert folders[0].parent.parent == Path("runs")
    assert list(in_an_empty_folder.iterdir()) == []  # since no job has made its own


@pytest.mark.usefixtures("in_an_empty_folder")
def test_free_text_is_not_swept() -> None:
    argv = ("-m", "seed=1,2", "run_dir=a,b", "data=text", "data.path=c,d", "logger.name=e,f")
    _, calls = train(*argv)
    assert [config.run_dir for config, _ in calls] == ["a,b/0", "a,b/1"]
    assert all(config.data.path == ["c,d"] for config, _ in calls)
    assert all(config.logger.name == "e,f" for config, _ in calls)


@pytest.mark.parametrize(
    ("outcomes", "n_started", "status"),
    [
        ([0, 0, 0], 3, 0),
        ([0, 1, 0], 3, 1),
        ([InputError("x"), RunError("y"), 0], 3, 2),
        ([0, KeyboardInterrupt(), 0], 2, 130),
        ([143, 0, 0], 1, 143),
    ],
)
@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_sweep_ends_with_the_worst_status(
    outcomes: list[int | BaseException], n_started: int, status: int
) -> None:
    started: list[int] = []

    def main(config: TrainConfig, _named: frozenset[str]) -> int:
        started.append(config.seed)
        outcome = outcomes[config.seed]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    assert run(main, TrainConfig, "train", ["-m", "seed=0,1,2"]) == status
    assert len(started) == n_started


def test_a_sweep_with_a_wrong_job_starts_none(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path
) -> None:
    status, calls = train("-m", "model.n_head=4,3")
    assert (status, calls) == (2, [])
    assert "must be a multiple of model.n_head=3" in capsys.readouterr().err
    taken = in_an_empty_folder / "s" / "1" / "checkpoints"
    taken.mkdir(parents=True)
    (taken / "step_00000001.ckpt").write_bytes(b"")
    for wrong, says in (
        (("run_dir=s",), "run_dir=s/1: holds a checkpoint already; add resume=auto to go on"),
        (("resume=auto",), "-m resume=auto: name the folder of the sweep to go on with: run_dir="),
        (("run_dir=~no-such-user/s",), "run_dir=~no-such-user/s: "),
        (("run_dir=/proc/s",), "run_dir=/proc/s/0: /proc cannot be written to"),
    ):
        status, calls = train("-m", "seed=1,2", *wrong)
        assert (status, calls) == (2, [])
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert says in lines[0]
    assert len(train("-m", "seed=1,2", "run_dir=s", "resume=auto")[1]) == 2


def test_a_stopped_sweep_shows_what_is_left_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path
) -> None:
    def main(config: TrainConfig, _named: frozenset[str]) -> int:
        Path(config.run_dir).mkdir(parents=True)
        if config.seed == 1:
            summary = {"val_loss": 2.0, "val_bits_per_byte": 1.5, "tokens_per_second": 12345.6}
            Path(config.run_dir, "summary.json").write_text(json.dumps(summary))
            return 0
        if config.seed == 2:
            raise RunError("the loss is nan")
        return 130

    argv = ["-m", "seed=1,2,3,4", "data=text", "data.path=a b.txt"]
    assert run(main, TrainConfig, "train", argv) == 130
    (folder,) = (in_an_empty_folder / "runs").iterdir()
    said = capsys.readouterr().err.partition("\n\n")[2].splitlines()
    assert [line.split() for line in said[1:5]] == [
        ["*", "0", "seed=1", "2.0000", "1.5000", "12,346", f"runs/{folder.name}/0", "done"],
        ["1", "seed=2", "-", "-", "-", f"runs/{folder.name}/1", "failed:", "the", "loss", "is",
         "nan"],
        ["2", "seed=3", "-", "-", "-", f"runs/{folder.name}/2", "stopped"],
        ["3", "seed=4", "-", "-", "-", "not", "run"],
    ]  # fmt: skip
    going_on = shlex.split(said[5].partition("train.py")[2].lstrip("'"))
    assert going_on == [
        "-m", "data=text", "seed=1,2,3,4", "data.path=a b.txt", f"run_dir=runs/{folder.name}",
        "resume=auto",
    ]  # fmt: skip


def test_sigterm_outside_of_training_ends_a_sweep_with_its_table(
    capsys: pytest.CaptureFixture[str], in_an_empty_folder: Path
) -> None:
    def main(_config: TrainConfig, _named: frozenset[str]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        run(main, TrainConfig, "train", ["-m", "seed=1,2"])
    assert caught.value.code == 143
    table = capsys.readouterr().err.splitlines()[-3:]
    assert [line.split()[-1] for line in table[:2]] == ["stopped", "run"]
    assert table[2].startswith("go on with: python ")
    assert list(in_an_empty_folder.iterdir()) == []


def test_generation_is_not_swept(capsys: pytest.CaptureFixture[str]) -> None:
    def main(_config: GenerateConfig, _named: frozenset[str]) -> None:
        raise AssertionError

    assert run(main, GenerateConfig, "generate", ["-m", "seed=1,2"]) == 2
    assert capsys.readouterr().err == "error: -m: sweeps are for train.py\n"
    assert run(main, GenerateConfig, "generate", ["seed=1,2"]) == 2
    assert capsys.readouterr().err.startswith("error: seed=1,2: must be int or null")


# ------------------------------------------------------------------ as a process

PROGRAM = """
import sys
from minigpt.command_line import run
from minigpt.generation.config import GenerateConfig

def main(config, named):
    for i in range(100_000):
        print(config.prompt, i)

sys.exit(run(main, GenerateConfig, "generate"))
"""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a command in an empty folder."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    folder = tmp_path / "empty"
    folder.mkdir()

    def start(*argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(script), *argv], cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    return start


def test_a_reader_that_goes_away_ends_it_quietly(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = start("prompt=é🙂 #")
    assert process.stdout is not None
    assert process.stdout.readline().decode() == "['é🙂 #'] 0\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


def test_nothing_is_left_in_the_folder_it_was_started_in(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    out, err = start("temperature=warm").communicate()
    assert out == b""
    assert err.startswith(b"error: temperature=warm: must be float, at least 0 and at most 10000")
    assert list((tmp_path / "empty").iterdir()) == []


def test_where_nothing_can_be_lost_a_signal_ends_the_process_at_once() -> None:
    code = (
        "import os, signal\n"
        "from minigpt.command_line import ended_at_once\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "with ended_at_once():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)  # ignored, as the caller wants it\n"
        "assert signal.getsignal(signal.SIGINT) == signal.default_int_handler\n"
        "with ended_at_once():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except BaseException:\n"
        "        pass  # what swallows exceptions does not matter\n"
        "print('not reached')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


@pytest.mark.parametrize("broken", ["2>/dev/full", "2>&-", "2> >(exec true)"])
def test_a_standard_error_that_takes_nothing_ends_no_work(broken: str) -> None:
    code = (
        "import sys, time\n"
        "from minigpt.command_line import run\n"
        "from minigpt.generation.config import GenerateConfig\n"
        "def main(config, named):\n"
        "    for _ in range(9):\n"
        "        sys.stderr.write('beside the work\\n' * 1000)\n"
        "        sys.stderr.flush()\n"
        "    print('done')\n"
        "sys.exit(run(main, GenerateConfig, 'generate', []))\n"
    )
    done = subprocess.run(
        ["/bin/bash", "-c", f'"$0" -c "$1" {broken}', sys.executable, code],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_closed_standard_output_ends_no_work_that_writes_nothing_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def main(_config: GenerateConfig, _named: frozenset[str]) -> None:
        assert sys.stdout is None

    monkeypatch.setattr(sys, "stdout", None)
    assert run(main, GenerateConfig, "generate", []) == 0
    assert run(main, GenerateConfig, "generate", ["--help"]) == 1


# ------------------------------------------------------------------ start-up


def test_garbage_is_looked_for_again_however_a_block_ends() -> None:
    def fail() -> None:
        with nothing_thrown_away():
            assert not gc.isenabled()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert gc.isenabled()


def test_who_looks_for_no_garbage_goes_on_so() -> None:
    gc.disable()
    try:
        with nothing_thrown_away():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_what_was_imported_stays_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = gc.get_freeze_count()
    with nothing_thrown_away():
        pass
    assert gc.get_freeze_count() == kept
    (tmp_path / "a_module_of_this_test.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with nothing_thrown_away():
            __import__("a_module_of_this_test")
        assert gc.get_freeze_count() > kept
    finally:
        gc.unfreeze()
        sys.modules.pop("a_module_of_this_test")

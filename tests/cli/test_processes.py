"""Two processes as a user starts them: one folder, one voice, one end."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from minigpt.checkpoint import read_checkpoint
from minigpt.data.stream import is_made
from minigpt.run_folder import LAST
from tests.conftest import Train

PROJECT = Path(__file__).resolve().parents[2]
SMALL = (
    "data=text", "data.path=text.txt", "data.cache_dir=cache", "tokenizer=char",
    "model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.block_size=16",
    "data.batch_size=4", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu",
    "trainer.devices=2", "trainer.strategy=ddp",
)  # fmt: skip
ENDLESS = ("trainer.max_steps=1000000", "trainer.val_check_interval=500000")

Process: TypeAlias = "subprocess.Popen[str]"
Start: TypeAlias = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `train.py` on a small text; relative paths lie in the test's folder."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is it. " * 40, encoding="utf-8")

    def call(*settings: str, by: tuple[str, ...] = ()) -> Process:
        return subprocess.Popen(
            [sys.executable, *by, str(PROJECT / "train.py"), *SMALL, *settings],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    return call


def wait_for_training(process: Process, folder: Path) -> int:
    """Wait for some steps; the number of the second process."""
    metrics = folder / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(metrics.read_bytes().splitlines()) > 5):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return next(number for number in processes() if parent_of(number) == process.pid)


def processes() -> list[int]:
    """The numbers of all Python processes that run `train.py`."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(PROJECT / "train.py").encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


def parent_of(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_gone(number: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while is_running(number):
        assert time.monotonic() < deadline, f"process {number} is still there"
        time.sleep(0.1)


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").is_file(), reason="reads Linux's /proc to find the processes"
)


@needs_proc
def test_a_signal_to_the_first_stops_both_at_a_step_with_one_folder_and_one_voice(
    start: Start, tmp_path: Path
) -> None:
    """With workers that read ahead, which have nothing to say either."""
    process = start(*ENDLESS, "data.num_workers=2", "run_dir=runs/one")
    other = wait_for_training(process, tmp_path / "runs" / "one")
    process.terminate()
    lines = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 143
    assert_gone(other, 10)
    step = read_checkpoint(tmp_path / "runs" / "one" / LAST)["global_step"]
    assert lines[-2:] == [
        f"stopped and saved at step {step}; go on with:",
        f"python {shlex.quote(str(PROJECT / 'train.py'))} resume=runs/one",
    ]
    names = [re.match(r"(\w+(?: \w+)?):? ", line) for line in lines]
    assert all(names), "a line that nobody knows: " + "\n".join(lines)
    assert len(lines) == len(set(lines))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["latest", "one"]


@needs_proc
@pytest.mark.slow
def test_a_killed_process_takes_the_others_with_it(start: Start, tmp_path: Path) -> None:
    process = start(*ENDLESS, "run_dir=run")
    os.kill(wait_for_training(process, tmp_path / "run"), signal.SIGKILL)
    message = process.communicate(timeout=20)[1]
    assert process.returncode == 1
    expected = "error: process 1 ended too early, by SIGKILL, and the others with it"
    assert message.splitlines()[-1] == expected
    assert message.count("error") == 1


@needs_proc
@pytest.mark.slow
def test_the_others_end_where_the_first_is_killed(start: Start, tmp_path: Path) -> None:
    process = start(*ENDLESS, "run_dir=run")
    other = wait_for_training(process, tmp_path / "run")
    process.kill()
    assert_gone(other, 20)
    assert "rror" not in process.communicate()[1]


@needs_proc
@pytest.mark.slow
def test_a_signal_to_another_process_alone_stops_the_run_as_well(
    start: Start, tmp_path: Path
) -> None:
    process = start(*ENDLESS, "run_dir=run")
    os.kill(wait_for_training(process, tmp_path / "run"), signal.SIGTERM)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 143
    step = read_checkpoint(tmp_path / "run" / LAST)["global_step"]
    assert f"stopped and saved at step {step}" in message


@pytest.mark.slow
def test_what_all_processes_find_wrong_is_said_once(start: Start) -> None:
    """Divergence: each of the processes raises it."""
    process = start("optim.lr=1e30", "optim.warmup_steps=0", "trainer.max_steps=50", "run_dir=run")
    message = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert message.count("error: step ") == message.count("error") == 1


@pytest.mark.slow
def test_the_jobs_of_a_sweep_start_their_processes_anew(start: Start, tmp_path: Path) -> None:
    process = start("-m", "seed=1,2", "trainer.max_steps=3", "run_dir=sweep")
    message = process.communicate(timeout=200)[1]
    assert process.returncode == 0, message
    for job in ("0", "1"):
        assert read_checkpoint(tmp_path / "sweep" / job / LAST)["global_step"] == 3
    assert "rror" not in message


@pytest.mark.slow
def test_torchrun_starts_the_processes_of_a_run(start: Start, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    process = start("trainer.max_steps=3", "run_dir=run", by=torchrun)
    message = process.communicate(timeout=200)[1]
    assert process.returncode == 0, message
    assert read_checkpoint(tmp_path / "run" / LAST)["global_step"] == 3
    assert message.count("\nsteps:") == 1
    assert message.count("\nMore: ") == 1


@pytest.mark.slow
def test_torchrun_that_starts_too_few_is_refused_in_one_voice(start: Start, tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    process = start("trainer.devices=1", "run_dir=run", by=torchrun)
    message = process.communicate(timeout=200)[1]
    assert process.returncode
    said = [line for line in message.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert said[0].startswith("error: trainer.devices=1: torchrun says 2 processes a machine")
    assert not (tmp_path / "run").exists()


STREAM = ("data.streaming=true", "data.document=line", "tokenizer=bytes", "run_dir=run")


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True])
def test_two_processes_share_a_stream(start: Start, tmp_path: Path, torchrun: bool) -> None:
    lines = "\n".join(f"line {i} of the text, which goes on" for i in range(200))
    (tmp_path / "text.txt").write_text(lines, encoding="utf-8")
    by = ("-m", "torch.distributed.run", "--nproc-per-node", "2") if torchrun else ()
    process = start(*STREAM, "trainer.max_steps=4", by=by)
    message = process.communicate(timeout=200)[1]
    assert process.returncode == 0, message
    alone = start(*STREAM[:-1], "run_dir=alone", "trainer.max_steps=4", "trainer.devices=1")
    assert alone.communicate(timeout=200)[1].count("rror") == message.count("rror") == 0
    losses = [Train.losses(tmp_path / name) for name in ("run", "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert list((tmp_path / "cache" / "streams").iterdir()) == []


@needs_proc
@pytest.mark.slow
def test_the_maker_of_a_stream_ends_with_the_run(start: Start, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"line {i}" for i in range(200)), "utf-8")
    process = start(*STREAM, *ENDLESS, "trainer.devices=1", "trainer.strategy=auto")
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(metrics.read_bytes().splitlines()) > 5):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (folder,) = (tmp_path / "cache" / "streams").iterdir()
    assert is_made(folder)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while is_made(folder):
        assert time.monotonic() < deadline
        time.sleep(0.1)

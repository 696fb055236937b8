"""Which process this is, and what is refused before any of them works."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.errors import InputError, RunError
from minigpt.training import processes
from minigpt.training.processes import check_started, in_turn, is_first, launcher, together
from tests.conftest import Train

#: A process that another one has started: here, of the one that started the tests.
CHILD = {"LOCAL_RANK": "1", "MINIGPT_PARENT": str(os.getppid())}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # fmt: skip
SLURM = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0",
         "SLURM_JOB_NAME": "train", "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # fmt: skip
BY_HAND = {"NODE_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {*TORCHRUN, *SLURM, *BY_HAND}:
        monkeypatch.delenv(name, raising=False)


def use(monkeypatch: pytest.MonkeyPatch, *environments: dict[str, str]) -> None:
    for environment in environments:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "by", "first"),
    [
        ({}, "", True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, "", True),
        (CHILD | {"NODE_RANK": "0"}, "", False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, "", False),  # first on its machine alone
        ({"NODE_RANK": "1"}, "", False),
        (TORCHRUN, "torchrun", True),
        (TORCHRUN | {"RANK": "2", "LOCAL_RANK": "0"}, "torchrun", False),
        (SLURM, "SLURM", True),
        (SLURM | {"SLURM_PROCID": "2"}, "SLURM", False),
        (SLURM | TORCHRUN | {"RANK": "1"}, "torchrun", False),
        (SLURM | {"SLURM_PROCID": "2", "SLURM_JOB_NAME": "interactive"}, "", True),
    ],
)
def test_one_process_of_all_is_the_first(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], by: str, first: bool
) -> None:
    use(monkeypatch, environment)
    assert (launcher(), is_first()) == (by, first)


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM, BY_HAND])
def test_what_was_started_as_the_settings_say_is_taken(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    use(monkeypatch, environment)
    check_started(devices=2, num_nodes=2)


@pytest.mark.parametrize(
    ("environment", "devices", "num_nodes", "message"),
    [
        (TORCHRUN, 1, 1, "trainer.devices=1: torchrun says 2 processes a machine"),
        (TORCHRUN, 2, 1, "torchrun says 4 processes in all (WORLD_SIZE)"),
        (TORCHRUN, 4, 1, "trainer.devices=4: torchrun says 2 processes a machine"),
        (SLURM, 2, 1, "SLURM says 4 processes in all (start them with srun)"),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1"}, 2, 1, "1 processes a mach"),
        ({"SLURM_NTASKS": "2"}, 2, 1, "--ntasks-per-node=2, not --ntasks"),
        ({"WORLD_SIZE": "2"}, 1, 1, "the environment says 2 processes in all (WORLD_SIZE)"),
        ({}, 2, 2, "MASTER_ADDR is not set"),
        ({"MASTER_ADDR": "a"}, 2, 2, "MASTER_PORT is not set"),
        (BY_HAND | {"NODE_RANK": "2"}, 2, 2, "NODE_RANK=2 is not below it"),
    ],
)
def test_what_was_started_otherwise_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    devices: int,
    num_nodes: int,
    message: str,
) -> None:
    use(monkeypatch, environment)
    with pytest.raises(InputError) as error:
        check_started(devices, num_nodes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["trainer.strategy=fsdp"], "trainer.strategy=fsdp: divides a model over the memory of"),
        (["trainer.strategy=ddp_spawn"], "auto, ddp, fsdp"),
        (["trainer.devices=4"], "data.batch_size=6 rows a step cannot be divided"),
        (["trainer.devices=0"], "auto or at least 1"),
        (["trainer.devices=2", "trainer.num_nodes=3"], "MASTER_ADDR is not set"),
        (["trainer.devices=2", "overfit=true"], "one batch, which is not divided"),
    ],
)
def test_impossible_processes_are_one_line_and_leave_nothing(
    train: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    message: str,
) -> None:
    assert train(*settings, f"run_dir={tmp_path / 'run'}") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_torchrun_with_one_device_does_not_train_twice_in_one_folder(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(monkeypatch, TORCHRUN, {"WORLD_SIZE": "2"})
    assert train(f"run_dir={tmp_path / 'run'}") == 2
    assert "torchrun says 2 processes a machine" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# ---- one voice ----


def fail() -> int:
    sys.stderr.write("error: no such file\n")
    return 2


def test_another_process_speaks_last_and_says_who_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "TURN", 0.1)
    handler = signal.getsignal(signal.SIGTERM)
    use(monkeypatch, CHILD | {"NODE_RANK": "3"})
    assert in_turn(fail) == 2
    signal.signal(signal.SIGTERM, handler)
    assert capsys.readouterr().err == "process 1 of machine 3: error: no such file\n"


def test_what_another_process_says_on_the_way_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, CHILD)
    assert in_turn(lambda: fail() * 0) == 0
    assert not capsys.readouterr().err


# ---- together ----


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "other.py"
    path.write_text(text)
    return path


def test_the_others_are_started_with_their_numbers_and_end_with_the_block(tmp_path: Path) -> None:
    write = (
        "import os, sys\n"
        "told = (os.environ[name] for name in ('NODE_RANK', 'WORLD_SIZE', 'MASTER_PORT'))\n"
        "open(sys.argv[1] + os.environ['LOCAL_RANK'], 'w').write(' '.join(told))\n"
    )
    before = dict(os.environ)
    with together(3, 1, script(tmp_path, write), [f"{tmp_path}/"]):
        port = os.environ["MASTER_PORT"]
        assert is_first()
    assert [(tmp_path / n).read_text() for n in "12"] == [f"0 3 {port}"] * 2
    assert dict(os.environ) == before


def test_others_that_do_not_end_are_ended_where_the_block_fails(tmp_path: Path) -> None:
    wait = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    started = tmp_path / "pid"

    def work() -> None:
        with together(2, 1, script(tmp_path, wait), [str(started)]):
            while not (started.is_file() and started.read_text()):
                time.sleep(0.05)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.parametrize(
    ("end", "how"),
    [("sys.exit(3)", "with status 3"), ("os.kill(os.getpid(), 9)", "by SIGKILL")],
)
def test_a_process_that_ended_is_named(tmp_path: Path, end: str, how: str) -> None:
    with (
        pytest.raises(RunError, match=f"process 1 ended too early, {how}"),
        together(2, 1, script(tmp_path, f"import os, sys; {end}"), []),
    ):
        raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed")


def test_a_process_that_waits_for_one_that_is_gone_is_ended(tmp_path: Path) -> None:
    """As where a GPU waits inside NCCL: the block itself never comes back."""
    waiting = (
        "import pathlib, sys, time\n"
        "from minigpt.training import processes\n"
        "processes.GRACE = 0.5\n"
        f"with processes.together(2, 1, pathlib.Path({str(tmp_path / 'other.py')!r}), []):\n"
        "    time.sleep(600)\n"
    )
    script(tmp_path, "import os; os.kill(os.getpid(), 9)")
    done = subprocess.run(
        [sys.executable, "-c", waiting], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: process 1 ended too early, by SIGKILL, and the others with it\n"


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"LOCAL_RANK": "abc"}, "LOCAL_RANK=abc: this environment variable must be a number"),
        ({"NODE_RANK": "x"}, "NODE_RANK=x: this environment variable must be a number"),
        ({"WORLD_SIZE": "junk"}, "WORLD_SIZE=junk: "),
        ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1: .* neither has started this process"),
    ],
)
def test_what_others_left_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
) -> None:
    use(monkeypatch, environment)
    with pytest.raises(InputError, match=says):
        check_started(1, 1)
    assert in_turn(lambda: 2) == 2

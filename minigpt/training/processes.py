"""The processes of a run: which one this is, starting the others, and ending together.

`python train.py trainer.devices=2` starts the machine's other processes itself, from its own
command line. torchrun and SLURM start all of them, on one machine or many. The first of all speaks
and writes files. One that ends too early takes the others with it.
"""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from minigpt.errors import InputError, RunError

#: Seconds that a process has to notice by itself that another one is gone.
GRACE = 5.0
#: Seconds for which the first process may say first what all have found, and end the others.
TURN = 5.0
#: Status of a process that ended since another one did; it has nothing of its own to say.
PEER_LOST = 75
#: In the environment of a process that another one has started: the number of that one.
_PARENT = "MINIGPT_PARENT"
#: What tells the processes of a run about each other. Lightning and torch write there, too.
_VARIABLES = (
    "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
)  # fmt: skip


def launcher() -> str:
    """What has started this run's processes: torchrun, SLURM, or "" for this program itself.

    As Lightning tells them apart: torchrun first, since it may run inside a SLURM job; and a job
    named bash or interactive is a person's shell.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    in_a_shell = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return "SLURM" if "SLURM_NTASKS" in os.environ and not in_a_shell else ""


def is_first() -> bool:
    """Whether this is the run's first process, which alone speaks and writes files."""
    match launcher():
        case "torchrun":
            return _number("RANK") == 0
        case "SLURM":
            return _number("SLURM_PROCID") == 0
        case _:
            return not _number("NODE_RANK") and (_PARENT not in os.environ)


def check_started(devices: int, num_nodes: int) -> None:
    """Hold the processes that were started from outside against what the settings speak of.

    Raises `InputError` where they differ: each process might train alone then, in one folder.
    """
    by, wanted = launcher(), f"trainer.devices={devices} trainer.num_nodes={num_nodes}"
    if by == "SLURM":
        if _number("SLURM_NTASKS") > 1 and "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise InputError(f"{wanted}: give SLURM --ntasks-per-node={devices}, not --ntasks")
        _check("SLURM_NTASKS_PER_NODE", devices, f"trainer.devices={devices}", "a machine")
        _check("SLURM_NTASKS", devices * num_nodes, wanted, "in all (start them with srun)")
        return
    if not by and _PARENT not in os.environ and _number("LOCAL_RANK"):
        raise InputError(
            f"LOCAL_RANK={os.environ['LOCAL_RANK']}: this environment variable is torchrun's or"
            " SLURM's, and neither has started this process; unset it"
        )
    _check("LOCAL_WORLD_SIZE", devices, f"trainer.devices={devices}", "a machine")
    _check("WORLD_SIZE", devices * num_nodes, wanted, "in all")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if num_nodes > 1 and missing:
        raise InputError(
            f"trainer.num_nodes={num_nodes}: start a process on each machine with torchrun or"
            f" SLURM, which say how they find each other ({missing[0]} is not set)"
        )
    if not by and _number("NODE_RANK") >= num_nodes:
        raise InputError(
            f"trainer.num_nodes={num_nodes}: this machine's NODE_RANK={os.environ['NODE_RANK']}"
            " is not below it"
        )


def in_turn(work: Callable[[], int]) -> int:
    """Do the work of a command in this process; the status.

    Any process but the first keeps what it says to itself. If it fails, and the first has not
    ended it soon after, as it does where all fail alike, then it speaks.
    """
    if parent := os.environ.get(_PARENT):
        threading.Thread(target=_end_with, args=[int(parent)], daemon=True).start()
    try:
        speaks = is_first()
    except InputError:  # which the work meets with again, and says
        speaks = True
    if speaks or os.environ.get("MINIGPT_DEBUG") == "1":
        return work()
    with contextlib.redirect_stderr(io.StringIO()) as words:
        status = work()
    if status not in (0, PEER_LOST, 128 + signal.SIGINT, 128 + signal.SIGTERM):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(TURN)
        for line in words.getvalue().splitlines():
            sys.stderr.write(f"{_name()}: {line}\n")
    return status


@contextlib.contextmanager
def together(
    devices: int, num_nodes: int, script: Path, arguments: Sequence[str]
) -> Generator[None, None, None]:
    """Have the block done by all processes of the run, this one among them.

    Unless somebody else has started them, this machine's other `devices` - 1 are started here, as
    `script` with `arguments`. None of them outlives the block, nor does what torch and Lightning
    put into the environment: the next job of a sweep starts anew. Raises `RunError` if another
    process ended too early; in any process but the first it just ends then.
    """
    with _environment_restored():
        others: list[subprocess.Popen[bytes]] = []
        if not launcher() and _PARENT not in os.environ:
            os.environ["LOCAL_RANK"] = "0"
            os.environ.setdefault("NODE_RANK", "0")
            os.environ["WORLD_SIZE"] = str(devices * num_nodes)
            os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
            os.environ.setdefault("MASTER_PORT", str(_free_port()))
            others = [_start(local, script, arguments) for local in range(1, devices)]
        over = threading.Event()
        threading.Thread(target=_watch, args=[others, over], daemon=True).start()
        patience = 0.0
        try:
            yield
            patience = 60.0  # they have done all their work
        except RuntimeError as error:
            if not _is_about_a_peer(error):
                raise
            what = _what_ended(others, GRACE) if others else ""
            if not what and not is_first():
                raise SystemExit(PEER_LOST) from error
            raise RunError(what or _unexplained(error)) from error
        finally:
            over.set()
            _end(others, patience)


@contextlib.contextmanager
def _environment_restored() -> Generator[None, None, None]:
    """Leave no process group, and the environment and torch's threads as they were."""
    import torch
    import torch.distributed as dist

    before = {name: os.environ.get(name) for name in _VARIABLES}
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
        torch.set_num_threads(threads)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _start(local_rank: int, script: Path, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process in a group of its own: Ctrl-C is for the first, which tells the others."""
    return subprocess.Popen(  # noqa: S603  (this program again)
        [sys.executable, str(script), *arguments],
        env=os.environ | {"LOCAL_RANK": str(local_rank), _PARENT: str(os.getpid())},
        process_group=0 if os.name == "posix" else None,
    )


def _watch(others: Sequence["subprocess.Popen[bytes]"], over: threading.Event) -> None:
    """End this process where another one is gone and it waits for that one without end.

    gloo notices by itself; a GPU that waits inside NCCL may not, for as long as its timeout.
    """
    while not over.wait(0.2):
        if any(process.poll() for process in others):
            if not over.wait(GRACE):
                os.write(2, f"error: {_what_ended(others, 0.0)}\n".encode())
                _end(others, 0.0)
                os._exit(1)
            return


def _end_with(parent: int) -> None:
    """End this process once the one that has started it is gone, whatever this one waits for."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(PEER_LOST)


def _end(others: Sequence["subprocess.Popen[bytes]"], patience: float) -> None:
    """Give the others `patience` seconds to end, then ask them to, then make them."""
    for stop, seconds in ((None, patience), (signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        for process in others:
            if stop is not None and process.poll() is None:
                process.send_signal(stop)
        deadline = time.monotonic() + seconds
        for process in others:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))


def _what_ended(others: Sequence["subprocess.Popen[bytes]"], patience: float) -> str:
    """Which of the others ended, and how; "" if none does within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        for local_rank, process in enumerate(others, 1):
            status = process.poll()
            if status in (None, 0, PEER_LOST):
                continue
            how = f"with status {status}"
            if status < 0:
                how = f"by {signal.Signals(-status).name}"
            return f"process {local_rank} ended too early, {how}, and the others with it"
        if time.monotonic() >= deadline:
            return ""
        time.sleep(0.1)


def _unexplained(error: Exception) -> str:
    return f"the processes have lost each other: {str(error).splitlines()[0]}"


def _is_about_a_peer(error: RuntimeError) -> bool:
    """Whether torch could not reach another process; gloo's errors have no type of their own."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or "/gloo/" in str(error)


def _name() -> str:
    match launcher():
        case "torchrun":
            return f"process {os.environ['RANK']}"
        case "SLURM":
            return f"process {os.environ['SLURM_PROCID']}"
        case _:
            return f"process {_number('LOCAL_RANK')}" + (
                f" of machine {_number('NODE_RANK')}" * bool(_number("NODE_RANK"))
            )


def _number(variable: str) -> int:
    """A number in the environment, 0 where there is none; `InputError` if it is no number."""
    text = os.environ.get(variable) or "0"
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"{variable}={text}: this environment variable must be a number")
    return int(text)


def _check(variable: str, wanted: int, settings: str, what: str) -> None:
    if variable in os.environ and _number(variable) != wanted:
        raise InputError(
            f"{settings}: {launcher() or 'the environment'} says {os.environ[variable]} processes"
            f" {what} ({variable}); the two must agree"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

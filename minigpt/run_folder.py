"""Where a run's files are, and how a run or a checkpoint is found again.

A run folder holds `config.yaml`, `metrics.csv`, `summary.json`, `loss.png`, `samples.txt` and
`checkpoints/`. `runs/latest`, in the folder the command was started in, points at the newest run
that has a checkpoint.
"""

import contextlib
import datetime
import os
import shlex
from collections.abc import Generator
from pathlib import Path

from minigpt.errors import InputError
from minigpt.files import check_folder, locked
from minigpt.hub import hub_folder, is_hub_name

RUNS = Path("runs")
LATEST = RUNS / "latest"
BEST = Path("checkpoints", "best.ckpt")
LAST = Path("checkpoints", "last.ckpt")
#: Seconds to wait for a folder that another process holds.
_PATIENCE = 10.0
#: Files that hold a model and are no checkpoints, and what to do about it.
_NO_CHECKPOINTS = {
    ".safetensors": "is one file of a Hugging Face folder; name the folder",
    ".gguf": "a GGUF is written for other programs; name what it was made of",
}
#: What a run writes beside its checkpoints.
FILES = ("config.yaml", "metrics.csv", "summary.json", "loss.png", "samples.txt")

_PROJECT = Path(__file__).resolve().parents[1]


def shown_command(script: str, setting: str = "", value: str = "") -> str:
    """What to type, in the folder the command was started in, to run one of the scripts."""
    path = script if Path.cwd() == _PROJECT else shlex.quote(str(_PROJECT / script))
    return f"python {path}" + (f" {setting}={shlex.quote(value)}" if setting else "")


def _how_to_make_one() -> str:
    return f"train one with: {shown_command('train.py')}"


def expanded(setting: str, place: str) -> str:
    """The path `place` with `~` read as a shell reads it; a shell leaves it alone after `=`.

    Raises `InputError` that names the setting where there is no such home.
    """
    try:
        return str(Path(place).expanduser()) if place.startswith("~") else place
    except RuntimeError as error:
        raise InputError(f"{setting}={place}: {error}") from error


def check_run_dir(run_dir: str) -> None:
    """Raise `InputError` if a new run cannot have the folder `run_dir`; makes nothing."""
    if not run_dir:
        check_folder(RUNS, str(RUNS))
        return
    folder = Path(run_dir)
    if any(path.is_file() for path in (folder / LAST.parent).glob("*.ckpt")):
        raise InputError(
            f"run_dir={run_dir}: holds a checkpoint already; add resume=auto to go on with it,"
            " or name another folder"
        )
    check_writable(folder, f"run_dir={run_dir}")


@contextlib.contextmanager
def held(folder: Path) -> Generator[None, None, None]:
    """Keep other processes from training in `folder`, on systems that can lock one.

    Raises `InputError` if one does. What a killed process leaves running may hold it for a moment.
    """
    with contextlib.ExitStack() as holding:
        try:
            holding.enter_context(locked(folder, _PATIENCE))
        except BlockingIOError as error:
            raise InputError(f"{folder}: another process trains in this folder") from error
        yield


def check_writable(folder: Path, setting: str) -> None:
    """Raise `InputError`, which `setting` begins, if a run cannot write its files to `folder`."""
    check_folder(folder, setting)
    checkpoints = folder / LAST.parent
    if checkpoints.exists() or checkpoints.is_symlink():
        check_folder(checkpoints, setting)
    for path in (*(folder / name for name in FILES), folder / LAST, folder / BEST):
        if path.exists() and not path.is_file():
            raise InputError(f"{setting}: {path} stands where a file is to be written")


def create_run_folder(run_dir: str) -> Path:
    """Make the folder of a new run: `run_dir`, or one named by the time under `runs/`.

    Raises `InputError` if it cannot be made.
    """
    if not run_dir:
        return _create_by_time()
    folder = Path(run_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"run_dir={run_dir}: cannot be made: {error.strerror}") from error
    return folder


def _create_by_time() -> Path:
    stamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        folder = RUNS / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{RUNS}: cannot be written to: {error.strerror}") from error
        return folder
    raise InputError(f"{RUNS}: a thousand runs started in this second; name one with run_dir=")


def point_latest_at(folder: Path) -> None:
    """Let `runs/latest` mean this run: a symbolic link, or its path as text where there are none.

    The link is relative where the run lies under `runs/`, so that the folder can be moved. Where
    it cannot be written there is none: a run whose own folder is elsewhere does without.
    """
    with contextlib.suppress(OSError):
        _point_latest_at(folder)


def _point_latest_at(folder: Path) -> None:
    RUNS.mkdir(exist_ok=True)
    runs, target = RUNS.resolve(), folder.resolve()
    text = str(target.relative_to(runs)) if target.is_relative_to(runs) else str(target)
    temporary = LATEST.with_name(f".latest.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(text)
    except (OSError, NotImplementedError):
        temporary.write_text(text, encoding="utf-8")
    temporary.replace(LATEST)


def latest_run() -> Path | None:
    """The newest run that has a checkpoint, or None; a target that is gone counts as none."""
    folder = LATEST
    if LATEST.is_file():  # written as text
        folder = RUNS / LATEST.read_text(encoding="utf-8").strip()
    return folder.resolve() if folder.is_dir() else None


def find_checkpoint(place: str, *, for_resuming: bool = False) -> Path:
    """The checkpoint file, or the Hugging Face folder, that `place` means.

    `place` is a file, or a run folder: its best checkpoint for use, its newest for resuming;
    empty means the newest run. For use it may be a model folder too, or a name on the Hugging Face
    hub. Raises `InputError` where there is none.
    """
    folder: Path | None = Path(expanded("checkpoint", place)) if place else latest_run()
    if folder is None:
        raise InputError(f"no run found under {RUNS}{os.sep}; {_how_to_make_one()}")
    if folder == LATEST:
        folder = latest_run() or folder
    if folder.is_file():
        if folder.suffix in _NO_CHECKPOINTS:
            raise InputError(f"{place}: {_NO_CHECKPOINTS[folder.suffix]}")
        return folder
    if not folder.exists():
        if not for_resuming and is_hub_name(place):
            return hub_folder(place)
        raise InputError(
            f"{place or folder}: no such run folder, checkpoint or Hugging Face folder;"
            f" {_how_to_make_one()}"
        )
    if (checkpoint := _checkpoint_in(folder, for_resuming=for_resuming)) is not None:
        return checkpoint
    if not any(folder.glob("*.safetensors*")) and not (folder / "config.json").is_file():
        raise InputError(f"{place or folder}: no checkpoint in this folder; {_how_to_make_one()}")
    if for_resuming:
        raise InputError(
            f"{place}: a Hugging Face folder has no training to resume; start from it with"
            f" init_from={place}"
        )
    return folder


def _checkpoint_in(folder: Path, *, for_resuming: bool) -> Path | None:
    """The checkpoint of a run folder, or of its folder of checkpoints, if there is one."""
    for inside in (folder / LAST.parent, folder):
        last, best = inside / LAST.name, inside / BEST.name
        numbered = numbered_checkpoints(inside)[-1:]
        for candidate in (last, *numbered, best) if for_resuming else (best, last, *numbered):
            if candidate.is_file():
                return candidate
    return None


def numbered_name(step: int) -> str:
    """The file name of the checkpoint that is kept of a step (`saving.keep`)."""
    return f"step_{step:08}.ckpt"


def numbered_checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step_*.ckpt"), key=lambda path: (len(path.name), path.name))


def run_folder_of(checkpoint: Path) -> Path | None:
    """The run folder a checkpoint file lies in, or None if it stands by itself."""
    parent = checkpoint.resolve().parent
    return parent.parent if parent.name == LAST.parent.name else None


def report_path(checkpoint: Path | None, name: str) -> Path:
    """Where a report about a model goes: into its run's folder, or beside a checkpoint of no run.

    It goes here for a new model (None) and for a model folder, to which nothing is added.
    """
    if checkpoint is None or checkpoint.is_dir():
        return Path(name)
    return as_seen_from_here((run_folder_of(checkpoint) or checkpoint.parent) / name)


def as_seen_from_here(path: Path) -> Path:
    """A path below the current folder without the way to that folder."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else path

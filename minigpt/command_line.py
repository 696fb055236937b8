"""What every command shares: `key=value` in, a config for `main`, an exit status out.

Exit status: 0 the end was reached; 2 the input is wrong; 1 the end was not reached; 130 after
Ctrl-C. `MINIGPT_DEBUG=1` shows the traceback of an error as well.
"""

import contextlib
import dataclasses
import errno
import gc
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeVar, cast

from minigpt.arguments import Arguments, check_single, read_arguments, sweep
from minigpt.composition import compose_presets, keys_of_preset
from minigpt.config import check
from minigpt.errors import InputError, RunError
from minigpt.help import help_text
from minigpt.output import write_output
from minigpt.run_folder import check_run_dir, create_run_folder, expanded, shown_command
from minigpt.settings import read_value, set_value, settings, shortened
from minigpt.sweep import Job, sweep_table

Schema = TypeVar("Schema")
#: A command: the config, and the dotted keys that this command line set; an exit status or None.
Main = Callable[[Schema, frozenset[str]], int | None]

REACHED, FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
#: Characters that are shown of an error that nobody has put in words; a compiler's has thousands.
LONGEST = 500


def run(
    main: Main[Schema], schema: type[Schema], config_name: str, argv: list[str] | None = None
) -> int:
    """Compose the config that a command line asks for, call `main` with it; the exit status.

    `config_name` is a file of `conf/`; `argv` is the command line without the command itself.
    """
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  for the whole run
    previous = signal.signal(signal.SIGTERM, _terminate)
    beside = cast("TextIO", _Beside(sys.stderr))
    try:
        with contextlib.redirect_stderr(beside):
            return _with_status(lambda: _run(main, schema, config_name, argv))[0]
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Beside:
    """Standard error: what is said there beside the work never ends it.

    It may be closed, its reader may have gone, its disk may be full.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def ended_at_once() -> Generator[None, None, None]:
    """Let Ctrl-C and SIGTERM end the process where it stands, while nothing can be lost.

    An exception in the middle of an import can be swallowed by it, or crash the library.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        _say("stopped")
        os._exit(128 + number)

    watched = (signal.SIGINT, signal.SIGTERM)
    heeded = [number for number in watched if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def nothing_thrown_away() -> Generator[None, None, None]:
    """Import and load without looking for garbage: what a program is made of is none.

    Python looks each time that a number of objects has been made, which is a fifth of the time
    that large libraries take to import. They are left out of later looks too, the one at the
    program's end included; so is what lies about of earlier work, which is why a block that has
    imported nothing changes nothing.
    """
    known, collecting = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if collecting:
            gc.enable()


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End by an exception, so that what is half-made is cleared away."""
    del number, frame
    _say("stopped")
    sys.exit(TERMINATED)


def _run(main: Main[Schema], schema: type[Schema], config_name: str, argv: list[str]) -> int | None:
    if "-h" in argv or "--help" in argv:
        write_output("", help_text(schema, config_name))
        return REACHED
    arguments = read_arguments(argv, schema, config_name)
    if arguments.multirun:
        return _run_sweep(main, schema, config_name, arguments)
    return main(*_compose(arguments, schema, config_name))


def compose(
    schema: type[Schema], config_name: str, argv: list[str]
) -> tuple[Schema, frozenset[str]]:
    """The config that a command line asks for, and the dotted keys that it names.

    A preset (`model=small`) names every setting that its file gives a value. Raises `InputError`.
    """
    return _compose(read_arguments(argv, schema, config_name), schema, config_name)


def _compose(
    arguments: Arguments, schema: type[Schema], config_name: str
) -> tuple[Schema, frozenset[str]]:
    check_single(arguments, schema, config_name)
    config = compose_presets(schema, config_name, arguments.choices)
    known = {setting.key: setting for setting in settings(schema)}
    named = {key for choice in arguments.choices.items() for key in keys_of_preset(*choice)}
    named |= arguments.values.keys() | arguments.texts.keys()
    for key, text in arguments.values.items():
        set_value(config, key, read_value(known[key], text))
    for key, texts in arguments.texts.items():
        set_value(config, key, texts if known[key].repeatable else texts[-1])
    if "experiment" in arguments.choices:
        set_value(config, "experiment", arguments.choices["experiment"])
        named.add("experiment")
    check(config)
    return config, frozenset(named)


def _run_sweep(
    main: Main[Schema], schema: type[Schema], config_name: str, arguments: Arguments
) -> int:
    """Run every combination, one after another in this process; the worst status.

    All are composed before the first starts. Each has a run folder of its own, and `sys.argv`
    says what it is told, since processes that a job starts are started from there. A table of
    what became of them is shown at the end, whatever the end is.
    """
    if "run_dir" not in {setting.key for setting in settings(schema)}:
        raise InputError("-m: sweeps are for train.py")
    combinations = sweep(arguments)
    for job, _ in combinations:
        _compose(job, schema, config_name)
    folder, jobs = _jobs(arguments, [label for _, label in combinations])
    command = sys.argv
    try:
        for number, ((asked, label), job) in enumerate(zip(combinations, jobs, strict=True)):
            _say(f"job {number + 1} of {len(jobs)}: {label}")
            asked.texts["run_dir"] = [str(job.folder)]
            asked.texts.setdefault("logger.name", [label])  # its folder's name is a number
            sys.argv = [command[0], *asked.items()]
            composed = _compose(asked, schema, config_name)
            job.status = TERMINATED  # by SIGTERM, where nothing else is said
            job.status, job.message = _with_status(lambda c=composed: main(*c))
            if job.status in (INTERRUPTED, TERMINATED):
                break
    finally:
        sys.argv = command
        sys.stderr.write(f"\n{sweep_table(jobs)}\n")
        if any(job.status in (None, INTERRUPTED, TERMINATED) for job in jobs):
            going_on = {"run_dir": [str(folder)]}
            if "resume" not in arguments.texts:
                going_on["resume"] = ["auto"]
            again = dataclasses.replace(arguments, texts=arguments.texts | going_on)
            _say(f"go on with: {shown_command('train.py')} -m {shlex.join(again.items())}")
        if "run_dir" not in arguments.texts:
            with contextlib.suppress(OSError):  # unless a job has made its own in it
                os.removedirs(folder)
    return max(job.status or REACHED for job in jobs)


def _jobs(arguments: Arguments, labels: list[str]) -> tuple[Path, list[Job]]:
    """The folder of a sweep and its jobs, each with a folder in it that a run can have."""
    run_dir = expanded("run_dir", arguments.texts.get("run_dir", [""])[-1])
    resume = arguments.texts.get("resume", [""])[-1]
    if resume == "auto" and not run_dir:
        raise InputError("-m resume=auto: name the folder of the sweep to go on with: run_dir=…")
    folder = Path(run_dir) if run_dir else create_run_folder("")
    jobs = [Job(label, folder / str(number)) for number, label in enumerate(labels)]
    if not resume:
        for job in jobs:
            check_run_dir(str(job.folder))
    return folder, jobs


def _with_status(work: Callable[[], int | None]) -> tuple[int, str]:
    """Do the work; its status and, if it did not reach its end, why: a line on stderr too."""
    try:
        status = work()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _say("stopped")
        return INTERRUPTED, ""
    except Exception as error:  # noqa: BLE001  the last place that can turn it into a line
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            return REACHED, ""
        if os.environ.get("MINIGPT_DEBUG") == "1":
            traceback.print_exc()
        _say(f"error: {_explained(error)}")
        too_long = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
        wrong = too_long or isinstance(error, InputError)
        return WRONG_INPUT if wrong else FAILED, _explained(error)
    return status or REACHED, ""


def _explained(error: Exception) -> str:
    if isinstance(error, InputError | RunError):
        return str(error)
    line = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError | MemoryError):  # the machine's, not the program's
        return line
    return f"a fault of the program: {shortened(line, LONGEST)} (MINIGPT_DEBUG=1 shows where)"


def _say(message: str) -> None:
    sys.stderr.write(" ".join(message.splitlines()) + "\n")
    sys.stderr.flush()


def _reader_has_gone() -> bool:
    """Whether standard output is a closed pipe (`| head -1`); if so, later output is dropped."""
    try:  # what failed to be written is gone: only another write can tell
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False

"""The tracker beside metrics.csv: W&B or TensorBoard, through Lightning's loggers.

A tracker never asks a question, never needs an account or a network, and never ends a run.
"""

import contextlib
import json
import os
import shlex
import textwrap
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from minigpt.config import TrainConfig, plain
from minigpt.errors import InputError

if TYPE_CHECKING:
    from wandb import Run

#: Seconds that W&B may keep a run waiting: for its server at the start, for the upload at the end.
START_SECONDS, END_SECONDS = 20, 60
#: Seconds until W&B has on the disk what is logged: what a run that is killed may lose.
FLUSH_SECONDS = 1
#: Samples in W&B's table, the newest. Each sample writes the table anew.
TABLE_ROWS = 200


def build_tracker(
    config: TrainConfig, folder: Path, run_id: str, say: Callable[[str], None], *, first_step: int
) -> Logger | None:
    """The tracker that `logger.kind` asks for, with the run's settings in it; None for csv.

    Only the first process of a run may have one. `run_id` is W&B's id of the run; one that goes on
    keeps it. `first_step` is the step that the run starts from. Raises `InputError` if W&B cannot
    even work offline.
    """
    if config.logger.kind == "csv":
        return None
    if config.logger.kind == "wandb":
        run = _start_wandb(config, folder, run_id, say)
        return Wandb(run, folder, say)
    # what a run that was killed has logged past its checkpoint gives way to what is logged now
    purge_step = first_step + 1
    tracker = TensorBoardLogger(folder, name="tensorboard", version="", purge_step=purge_step)
    settings = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    tracker.experiment.add_text("config", _verbatim(settings), first_step)
    return tracker


def record_sample(trackers: Sequence[Logger], step: int, text: str) -> None:
    """Put a sample drawn at `step` beside those before it: W&B's table, TensorBoard's text."""
    for tracker in trackers:
        if isinstance(tracker, Wandb):
            # A whole table each time: one that grows in place can only be gone on with by asking
            # W&B's server, which a run that is offline does not have.
            earlier = [row for row in _rows_so_far(tracker) if row[0] < step]
            rows = [*earlier, [step, text]][-TABLE_ROWS:]
            tracker.log_table("samples", columns=["step", "text"], data=rows, step=step)
        elif isinstance(tracker, TensorBoardLogger):
            tracker.experiment.add_text("sample", _verbatim(text), step)


def record_summary(
    trackers: Sequence[Logger], summary: Mapping[str, float | int | str | None]
) -> None:
    """Put what `summary.json` says where the tracker shows results; its `steps` is their step."""
    for tracker in trackers:
        if isinstance(tracker, Wandb):
            tracker.attempt(lambda run: run.summary.update(dict(summary)))
        elif isinstance(tracker, TensorBoardLogger):
            text = yaml.safe_dump(dict(summary), sort_keys=False, allow_unicode=True)
            tracker.experiment.add_text("summary", _verbatim(text), summary["steps"])
            tracker.finalize("success")  # Lightning has closed the file at the end of training


@contextlib.contextmanager
def closed_at_the_end(trackers: Sequence[Logger]) -> Generator[None, None, None]:
    """End W&B's run however the work ends, failed if that is by an exception.

    The next run of this process is then another.
    """
    exit_code = 1
    try:
        yield
        exit_code = 0
    finally:
        for tracker in trackers:
            if isinstance(tracker, Wandb):
                tracker.end(exit_code)


def _verbatim(text: str) -> str:
    """Markdown that shows the text as it is."""
    return textwrap.indent(text, "    ", lambda _: True)


# ---- W&B ----


class Wandb(WandbLogger):
    """Lightning's logger of a run at W&B, which goes on without W&B where that stops working."""

    def __init__(self, run: "Run", folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(experiment=run, save_dir=folder, id=run.id)
        self._run: Run | None = run
        self._say = say

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log `metrics` with the trainer's `step` beside them."""
        log = super().log_metrics
        self.attempt(lambda _: log(metrics, step))

    def attempt(self, work: Callable[["Run"], object]) -> None:
        """Do `work` with the run; if W&B's own process has died, say so and forget the run."""
        if self._run is None:
            return
        try:
            work(self._run)
        except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
            self._say(f"warning: W&B has stopped ({_one_line(error)}); the run goes on without it")
            _forget(self._run)
            self._run = None

    def end(self, exit_code: int) -> None:
        """End the run, within `END_SECONDS`; what is not sent by then stays in the run's folder."""

        def finish(run: "Run") -> None:
            try:
                run.finish(exit_code)
            except TimeoutError:
                parts = f"{shlex.quote(str(self.save_dir))}/wandb/run-*"
                self._say(
                    f"W&B has not taken everything within {END_SECONDS} s;"
                    f" later: wandb sync --include-online {parts}"
                )

        self.attempt(finish)


def _forget(run: "Run | None") -> None:
    """Let W&B start anew in this process, after it or its server has failed."""
    import wandb

    if run is not None:
        with contextlib.suppress(Exception):
            run.finish(1)
    with contextlib.suppress(Exception):
        wandb.teardown()


def _start_wandb(
    config: TrainConfig, folder: Path, run_id: str, say: Callable[[str], None]
) -> "Run":
    """Begin or go on with a run at W&B: online if that works within `START_SECONDS`, else not."""
    # a program that shows nothing asks nothing either
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    logged = _logged_so_far(folder, run_id)

    def start(**how: Any) -> "Run":
        return wandb.init(
            project=config.logger.project,
            name=config.logger.name or folder.resolve().name,
            dir=folder,
            id=run_id,
            resume="allow",
            config=plain(config),
            settings=wandb.Settings(
                init_timeout=START_SECONDS,
                finish_timeout=END_SECONDS,
                finish_timeout_raises=True,
                x_transaction_log_flush_interval=FLUSH_SECONDS,
                reinit="finish_previous",
            ),
            **how,
        )

    reason = "as it was told to"
    try:
        run = start()
    except Exception as error:  # noqa: BLE001  no account, no network, a server's mood: many types
        reason = _one_line(error)
        _forget(None)  # a run that could not be started counts as running
        try:
            run = start(mode="offline")
        except Exception as second:
            raise InputError(
                f"logger=wandb: W&B cannot start: {_one_line(second)}; logger=csv does without it"
            ) from second
    if run.offline:
        parts = f"{shlex.quote(str(folder))}/wandb/offline-run-*"
        say(f"W&B works offline ({reason}); later: wandb sync {parts}")
    elif not run.disabled:
        say(f"W&B: {run.url}")
    run.log({}, step=max(run.step, logged), commit=False)
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return run


def _logged_so_far(folder: Path, run_id: str) -> int:
    """A number that no line of this run at W&B has yet, nor any higher one.

    W&B counts a run's lines, and drops one whose count is below another's. The trainer's step is
    no such count, since it goes back where a run was killed; the lines have it as a value. Lines
    that were written offline are unknown to W&B's server, so the count goes on from the size in
    bytes of what was written, which is more than the lines in it.
    """
    files = (folder / "wandb").glob(f"*run-*-{run_id}/*.wandb")
    return sum(file.stat().st_size for file in files)


def _rows_so_far(tracker: Wandb) -> list[list[Any]]:
    """The rows of the newest table of samples in the run's folder, from before a resume too."""
    wandb_folder = Path(str(tracker.save_dir), "wandb")
    tables = wandb_folder.glob(f"*run-*-{tracker.version}/files/media/table/samples_*.table.json")
    newest = max(tables, key=lambda file: int(file.name.split("_")[1]), default=None)
    return json.loads(newest.read_text(encoding="utf-8"))["data"] if newest else []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")

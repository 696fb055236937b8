"""The trackers get the run's numbers, and never need an account or a network.

What W&B wrote is read back from its own files; none of these tests reaches a server.
"""

import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import Logger

from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.config import TrainConfig
from minigpt.errors import InputError
from minigpt.run_folder import LAST
from minigpt.training import tracker as tracker_module
from minigpt.training.tracker import (
    START_SECONDS,
    build_tracker,
    closed_at_the_end,
    record_sample,
    record_summary,
)
from tests.conftest import PROJECT, Train

RUN_ID = "abcd1234"
SUMMARY = {"val_loss": 0.25, "valid_share": None, "steps": 4, "best_checkpoint": "checkpoints/best"}
AXIS = "trainer/global_step"

Start = Callable[..., Logger]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def start(tmp_path: Path, said: list[str]) -> Start:
    """Begin a run in `tmp_path / "run"`, or go on with it."""

    def start(kind: str, first_step: int = 0, run_id: str = RUN_ID) -> Logger:
        config = TrainConfig()
        config.logger.kind = kind
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        tracker = build_tracker(config, folder, run_id, said.append, first_step=first_step)
        assert tracker is not None
        return tracker

    return start


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """W&B as it finds itself on a machine where nobody has an account."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "false")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-settings"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    wandb.teardown()  # it reads its environment once
    yield
    wandb.teardown()


def log(tracker: Logger, *steps: int) -> None:
    """A line, and at even steps a sample, as a run logs them."""
    for step in steps:
        tracker.log_metrics({"train_loss": 1 / step, "floor_loss": 0.125}, step=step)
        if step % 2 == 0:
            record_sample([tracker], step, f"sample\n `{step}`")


# ---- TensorBoard ----


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingTypeStubs]
        EventAccumulator,
    )

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def texts(folder: Path, tag: str) -> dict[int, str]:
    logged = events(folder).Tensors(f"{tag}/text_summary")
    return {event.step: event.tensor_proto.string_val[0].decode() for event in logged}


def test_tensorboard_gets_what_metrics_csv_gets(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("logger=tensorboard", f"run_dir={run}", "trainer.max_steps=4") == 0
    found = events(run)
    logged = found.Scalars("train_loss")
    assert [event.step for event in logged] == [1, 2, 3, 4]
    assert [event.value for event in logged] == pytest.approx(train.losses(run), rel=1e-6)
    assert [event.step for event in found.Scalars("val_loss")] == [1, 2, 3, 4]
    assert "\n      n_embd: 16\n" in texts(run, "config")[0]


def test_tensorboard_shows_a_killed_and_resumed_run_as_one(start: Start, tmp_path: Path) -> None:
    killed: Any = start("tensorboard")
    log(killed, 1, 2, 3, 4)
    killed.experiment.flush()
    tracker = start("tensorboard", 2)
    with closed_at_the_end([tracker]):
        log(tracker, 3, 4, 5, 6)
        tracker.finalize("success")  # as Lightning does at the end of training
        record_summary([tracker], SUMMARY | {"steps": 6})
    run = tmp_path / "run"
    logged = events(run).Scalars("train_loss")
    assert [event.step for event in logged] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events(run).Scalars("floor_loss")] == [0.125] * 6
    assert texts(run, "sample") == {step: f"    sample\n     `{step}`" for step in (2, 4, 6)}
    assert "    valid_share: null\n" in texts(run, "summary")[6]


# ---- W&B ----


def records(file: Path) -> Iterator[Any]:
    """What is in a .wandb file: LevelDB's log format, of W&B's records."""
    from wandb.proto.wandb_internal_pb2 import (
        Record,  # pyright: ignore[reportAttributeAccessIssue]  (defined at run time)
    )

    data, at, whole = file.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def items(updates: Any) -> dict[str, Any]:
    return {
        "/".join([each.key, *each.nested_key]).strip("/"): json.loads(each.value_json)
        for each in updates
    }


class Written:
    """What W&B has written of a run, over all its parts, once its own process has ended."""

    def __init__(self, folder: Path, run_id: str = RUN_ID) -> None:
        import wandb

        wandb.teardown()
        self.files = sorted((folder / "wandb").glob(f"*run-*-{run_id}/*.wandb"))
        found = [record for file in self.files for record in records(file)]
        runs = [each.run for each in found if each.HasField("run")]
        self.ids = {run.run_id for run in runs}
        self.config = items(runs[-1].config.update) if runs else {}
        self.lines = [items(each.history.item) for each in found if each.HasField("history")]
        self.summary: dict[str, Any] = {}
        for each in found:
            if each.HasField("summary"):
                self.summary |= items(each.summary.update)
        self.x_axes = {each.metric.step_metric for each in found if each.HasField("metric")}
        self.exits = [each.exit.exit_code for each in found if each.HasField("exit")]

    def column(self, name: str) -> list[tuple[int, Any]]:
        return [(line[AXIS], line[name]) for line in self.lines if name in line]

    def samples(self) -> list[Any]:
        """The newest table."""
        path = [line["samples/path"] for line in self.lines if "samples/path" in line][-1]
        return json.loads((self.files[-1].parent / "files" / path).read_text())["data"]


@pytest.mark.usefixtures("no_account")
def test_wandb_has_everything_of_a_run_and_of_its_resumption(
    start: Start, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "TABLE_ROWS", 3)
    run = tmp_path / "run"
    before, after = range(1, 7), range(5, 9)
    with closed_at_the_end([killed := start("wandb")]):
        log(killed, *before)
    assert Written(run).exits == [0]
    with closed_at_the_end([tracker := start("wandb", 4)]):
        log(tracker, *after)
        record_summary([tracker], SUMMARY)
    offline = [line for line in said if line.startswith("W&B works offline (No API key")]
    assert offline == said
    assert said[0].endswith(f"later: wandb sync {run}/wandb/offline-run-*")
    written = Written(run)
    assert written.ids == {RUN_ID}
    assert len(written.files) == 2
    assert written.column("train_loss") == [(step, 1 / step) for step in (*before, *after)]
    assert {value for _, value in written.column("floor_loss")} == {0.125}
    counts = [line["_step"] for line in written.lines]
    assert counts == sorted(set(counts))
    assert written.x_axes == {AXIS}
    assert written.samples() == [[step, f"sample\n `{step}`"] for step in (4, 6, 8)]
    assert written.config["model"]["n_embd"] == 128
    assert {key: written.summary[key] for key in SUMMARY} == SUMMARY
    assert written.exits == [0, 0]


@pytest.mark.usefixtures("no_account")
@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({"WANDB_MODE": "disabled"}, []),
        ({"WANDB_MODE": "offline"}, ["W&B works offline (as it was told to); later: wandb sync"]),
        ({"WANDB_API_KEY": "short"}, ["W&B works offline (WANDB_API_KEY invalid: API key must"]),
    ],
)
def test_wandb_does_as_its_environment_says(
    variables: dict[str, str],
    lines: list[str],
    start: Start,
    tmp_path: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with closed_at_the_end([tracker := start("wandb")]):
        log(tracker, 1, 2)
        record_summary([tracker], SUMMARY)
    assert len(said) == len(lines)
    assert all(line.startswith(begin) for line, begin in zip(said, lines, strict=True))
    assert capfd.readouterr() == ("", "")
    assert len(Written(tmp_path / "run").lines) == (3 if lines else 0)


@pytest.mark.usefixtures("no_account")
def test_what_wandb_cannot_start_with_is_said_in_a_line(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(InputError, match=r"^logger=wandb: .*; logger=csv does without it$"):
        start("wandb")


@pytest.mark.usefixtures("no_account")
def test_a_run_that_ends_by_an_exception_has_failed_at_wandb(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), closed_at_the_end([start("wandb")]):
        _ = 1 // 0
    assert Written(tmp_path / "run").exits == [1]


@pytest.mark.usefixtures("no_account")
def test_a_run_that_was_left_open_is_not_the_next_one(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log(start("wandb"), 1, 3)
    with closed_at_the_end([tracker := start("wandb", run_id="next1234")]):
        log(tracker, 5)
    run = tmp_path / "run"
    assert [step for step, _ in Written(run).column("train_loss")] == [1, 3]
    assert [step for step, _ in Written(run, "next1234").column("train_loss")] == [5]


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_wandb_with_a_key_and_no_network_works_offline_soon(
    start: Start, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    assert START_SECONDS <= 20
    monkeypatch.setattr(tracker_module, "START_SECONDS", 4)
    began = time.monotonic()
    with closed_at_the_end([tracker := start("wandb")]):
        log(tracker, 1, 2)
    assert 4 <= time.monotonic() - began < 20
    assert len(said) == 1
    assert said[0].startswith("W&B works offline (")
    assert "127.0.0.1:9" in said[0]
    assert Written(tmp_path / "run").column("train_loss") == [(1, 1.0), (2, 0.5)]


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_a_run_outlives_wandbs_own_process(
    start: Start, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with closed_at_the_end([tracker := start("wandb")]):
        log(tracker, 1)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        (core,) = (
            int(child)
            for child in children
            if "wandb-core" in Path(f"/proc/{child}/cmdline").read_text()
        )
        os.kill(core, signal.SIGKILL)
        time.sleep(0.5)
        log(tracker, *range(2, 9))
        record_summary([tracker], SUMMARY)
    assert len(said) == 2
    assert said[1].startswith("warning: W&B has stopped (")
    with closed_at_the_end([tracker := start("wandb", run_id="next1234")]):
        log(tracker, 1, 2)
    assert said[2].startswith("W&B works offline (as it was told to)")  # and for no other reason
    assert len(Written(tmp_path / "run", "next1234").column("train_loss")) == 2


KILLED = """
import os, signal, sys, time
from pathlib import Path
from minigpt.config import TrainConfig
from minigpt.training.tracker import build_tracker
for kind in ("wandb", "tensorboard"):
    config = TrainConfig()
    config.logger.kind = kind
    tracker = build_tracker(config, Path(sys.argv[1]), "abcd1234", print, first_step=0)
    for step in (1, 2, 3):
        tracker.log_metrics({"train_loss": 1 / step}, step=step)
time.sleep(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_what_was_logged_two_seconds_before_a_kill_is_on_the_disk(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=PROJECT, check=False)
    assert done.returncode == -signal.SIGKILL
    expected = [(step, 1 / step) for step in (1, 2, 3)]
    assert Written(tmp_path).column("train_loss") == expected
    logged = [(event.step, event.value) for event in events(tmp_path).Scalars("train_loss")]
    assert logged == [(step, pytest.approx(loss)) for step, loss in expected]


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_wandb_asks_nothing_on_a_terminal(tmp_path: Path) -> None:
    script = KILLED.replace('("wandb", "tensorboard")', '("wandb",)')
    script = script.replace("os.kill(os.getpid(), signal.SIGKILL)", "print('the end')")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path],
        cwd=PROJECT, stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown, until = b"", time.monotonic() + 60
    while b"the end" not in shown and time.monotonic() < until:
        if select.select([ours], [], [], 1)[0]:
            shown += os.read(ours, 4096)
    process.kill()
    process.wait()
    os.close(ours)
    first, *rest = shown.decode().splitlines()
    assert first.startswith("W&B works offline (No API key configured")
    assert rest == ["the end"]


# ---- the program ----


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_a_resumed_run_is_one_run_at_wandb(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    common = ("logger=wandb", "optim.decay_steps=6")
    assert train(*common, f"run_dir={run}", "trainer.max_steps=3") == 0
    assert "W&B works offline" in capsys.readouterr().err
    run_id = read_checkpoint(run / LAST)[RECORD]["run_id"]
    assert train(*common, f"resume={run}", "trainer.max_steps=6") == 0
    written = Written(run, run_id)
    assert written.ids == {run_id}
    assert written.column("train_loss") == list(enumerate(train.losses(run), start=1))
    assert written.config["trainer"]["max_steps"] == 6


@pytest.mark.slow
@pytest.mark.usefixtures("no_account")
def test_each_job_of_a_sweep_is_a_run_of_its_own(train: Train, tmp_path: Path) -> None:
    assert train(f"run_dir={tmp_path / 'first'}", "trainer.max_steps=2") == 0
    sweep = ("-m", "logger=wandb", "optim.lr=0.01,0.02")
    assert train(*sweep, f"run_dir={tmp_path / 'new'}", "trainer.max_steps=2") == 0
    going_on = (f"resume={tmp_path / 'first'}", f"run_dir={tmp_path / 'on'}")
    assert train(*sweep, *going_on, "trainer.max_steps=4") == 0
    ids: set[str] = set()
    for name in ("new/0", "new/1", "on/0", "on/1"):
        folder = tmp_path / name
        run_id = read_checkpoint(folder / LAST)[RECORD]["run_id"]
        assert len(list((folder / "wandb").glob("*run-*"))) == 1
        losses = [loss for _, loss in Written(folder, run_id).column("train_loss")]
        assert losses == train.losses(folder)[-2:]
        ids.add(run_id)
    assert len(ids) == 4

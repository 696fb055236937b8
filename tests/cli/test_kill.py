"""Law 7 at any moment: a run that `kill -9` ended where it happened to be, perhaps in the middle of
a save, and that was resumed, has the bits of the run that was not stopped."""

import contextlib
import itertools
import multiprocessing
import multiprocessing.forkserver
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from minigpt.checkpoint import read_checkpoint
from minigpt.command_line import run
from minigpt.config import TrainConfig
from minigpt.run_folder import BEST, LAST
from tests.conftest import PROJECT, Train
from tests.laws.test_law_07_resume import assert_same_bits, everything_that_counts

#: Processes that are forked from one in which everything is imported: that takes seconds.
CONTEXT = multiprocessing.get_context("forkserver")
IMPORTED_ONCE = (
    __name__, "train", "minigpt.composition", "minigpt.training.callbacks",
    "minigpt.training.tracker", "minigpt.training.summary", "matplotlib.pyplot",
)  # fmt: skip

STEPS = 150
SETTINGS = (
    "data.layout=padded",
    "trainer.accumulate_grad_batches=2",
    "model.dropout=0.2",
    "trainer.val_check_interval=7",
    "saving.every_n_steps=5",
    f"trainer.max_steps={STEPS}",
    "resume=auto",
)
#: Few steps with several saves, and a rate at which the best validation is one before the last,
#: at a step that is saved for going on as well.
FEW_STEPS = (
    "trainer.max_steps=9",
    "trainer.val_check_interval=3",
    "saving.every_n_steps=2",
    "saving.keep=2",
    "optim=adamw",
    "optim.lr=0.7",
    "optim.schedule=constant",
)
BEST_STEP = 6
#: A kill comes so many steps before the end or earlier, and so many seconds after its step.
MARGIN, DELAY = 30, 0.03
KILLS, KILLS_IN_EVERY_RUN = 20, 3


def in_this_process(settings: list[str], log: Path) -> None:
    """Be `train.py`, with what it prints in a file."""
    from train import main

    os.chdir(log.parent)
    with log.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.exit(run(main, TrainConfig, "train", settings))


def killed_at_a_rename(settings: list[str], log: Path, number: int) -> None:
    """The same, until just after a file has got its name for the `number`-th time."""
    rename, count = os.replace, itertools.count(1)

    def replace(source: Path, target: Path) -> None:
        rename(source, target)
        if next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace  # what `Path.replace` calls
    in_this_process(settings, log)


def train_in(
    folder: Path, settings: tuple[str, ...], kill_at: int | None = None, delay: float = 0.0
) -> int | None:
    """Train or go on in `folder`; the exit status, `-SIGKILL` for a run that was killed.

    That happens `delay` seconds after a step `kill_at` or later is in its metrics file.
    """
    metrics, log = folder / "metrics.csv", folder.with_name("log.txt")
    earlier = metrics.stat().st_ino if metrics.exists() else None
    process = started(in_this_process, [*settings, f"run_dir={folder}"], log)
    if kill_at is not None:
        while process.is_alive() and last_step(metrics, earlier) < kill_at:
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
    process.join(120)
    return process.exitcode


def started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def last_step(metrics: Path, earlier: int | None) -> int:
    """The last step in a metrics file; -1 while the file is the one that was there earlier."""
    with contextlib.suppress(FileNotFoundError):
        if metrics.stat().st_ino != earlier:
            lines = metrics.read_bytes().splitlines()
            return int(lines[-1].partition(b",")[0]) if len(lines) > 1 else 0
    return -1


@pytest.fixture(scope="module")
def settings(train: Train) -> tuple[str, ...]:
    CONTEXT.set_forkserver_preload(list(IMPORTED_ONCE))
    with contextlib.chdir(PROJECT):  # where it imports from
        multiprocessing.forkserver.ensure_running()
    return (*train.settings, *SETTINGS)


@pytest.fixture(scope="module")
def straight(settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert train_in(folder, settings) == 0
    return folder


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed >= KILLS_IN_EVERY_RUN else ())
        for seed in range(KILLS)
    ],
)
def test_a_killed_run_goes_on_to_the_same_bits(
    settings: tuple[str, ...], straight: Path, tmp_path: Path, seed: int
) -> None:
    draw, folder = random.Random(seed), tmp_path / "run"
    killed_once = False
    while not killed_once or draw.random() < 1 / 3:
        status = train_in(folder, settings, draw.randint(0, STEPS - MARGIN), draw.uniform(0, DELAY))
        assert status == -signal.SIGKILL
        killed_once = True
    assert train_in(folder, settings) == 0, (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert_same_bits(everything_that_counts(folder), everything_that_counts(straight))
    best, reference_best = (read_checkpoint(each / BEST) for each in (folder, straight))
    assert_same_bits(best["state_dict"], reference_best["state_dict"])
    assert {each.name for each in folder.rglob("*")} == {each.name for each in straight.rglob("*")}


@pytest.mark.slow
def test_a_kill_between_any_two_renames_costs_nothing(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    settings = (*settings, *FEW_STEPS)
    straight = tmp_path / "straight" / "run"
    straight.parent.mkdir()
    assert train_in(straight, settings) == 0
    reference = everything_that_counts(straight)
    assert read_checkpoint(straight / BEST)["global_step"] == BEST_STEP
    number, ended = 0, False
    while not ended:
        number += 1
        folder = tmp_path / str(number) / "run"
        folder.parent.mkdir()
        log = folder.with_name("log.txt")
        process = started(killed_at_a_rename, [*settings, f"run_dir={folder}"], log, number)
        process.join(120)
        assert process.exitcode in {0, -signal.SIGKILL}
        ended = process.exitcode == 0
        assert ended or train_in(folder, settings) == 0, log.read_text(encoding="utf-8")
        assert_same_bits(everything_that_counts(folder), reference, f"rename {number}: ")
        best, reference_best = (read_checkpoint(each / BEST) for each in (folder, straight))
        assert_same_bits(best["state_dict"], reference_best["state_dict"], f"rename {number}")
    assert number > 12


def test_what_a_kill_in_a_save_has_left_is_cleared_away(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=2") == 0
    whole = (run / LAST).read_bytes()
    for name in (".last.ckpt.0f.part", ".best.ckpt.1e.part"):
        (run / LAST).with_name(name).write_bytes(whole[: len(whole) // 2])
    (run / ".metrics.csv.2d.part").write_text("step,tok")
    assert train(f"run_dir={run}", "trainer.max_steps=4", "resume=auto") == 0
    assert read_checkpoint(run / LAST)["global_step"] == 4
    assert not list(run.rglob("*.part"))

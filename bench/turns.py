"""Contestants that take turns on one machine: each a process of its own, one running at a time.

What else the machine does then falls on all of them alike. A contestant says `ready` on its
standard output, and for every line with a number does so many steps and says how long they took.
Between its turns it is stopped, so that threads that wait for work take nothing from the others.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from statistics import median
from typing import Any

from record import PROJECT


class Contestant:
    """A process that does steps when told to; `start_seconds` is how long it took to begin."""

    def __init__(self, command: Sequence[str]):
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self._answer("ready")
        self.start_seconds = time.perf_counter() - started

    def _answer(self, expected: str = "") -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line or (expected and line != expected):
            sys.exit(f"{' '.join(map(str, self.process.args))}: {line or 'ended early'}")  # pyright: ignore[reportArgumentType]
        self.process.send_signal(signal.SIGSTOP)
        return line

    def turn(self, steps: int) -> float:
        """Seconds of so many steps."""
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self._answer())


@contextlib.contextmanager
def contest(commands: Mapping[str, Sequence[str]]) -> Generator[dict[str, Contestant]]:
    """The contestants by name, started one after the other; they end with the block."""
    contestants: dict[str, Contestant] = {}
    try:
        for name, command in commands.items():
            contestants[name] = Contestant(command)
        yield contestants
    finally:
        for contestant in contestants.values():
            contestant.process.kill()
            contestant.process.wait()


def seconds_a_step(
    contestants: Mapping[str, Contestant], steps: int, rounds: int
) -> dict[str, list[float]]:
    """What a step took, of every contestant in every round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            times[name].append(contestant.turn(steps) / steps)
    return times


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """The median, and the least and the greatest."""
    return {"median": median(numbers), "least": min(numbers), "greatest": max(numbers)}


def ratios(slower: Sequence[float], faster: Sequence[float]) -> dict[str, float]:
    """How much faster the second one is, round by round."""
    return spread([a / b for a, b in zip(slower, faster, strict=True)])


class Turns:
    """A contestant's own side: `wait` for a turn of so many steps, and say what it took."""

    def __init__(self) -> None:
        self._left = 0
        self._started: float | None = None

    def step_begins(self) -> None:
        """Call before every step; waits there when a turn is over."""
        if self._left == 0:
            took = None if self._started is None else time.perf_counter() - self._started
            print("ready" if took is None else took, flush=True)
            line = sys.stdin.readline()
            if not line:
                sys.exit()
            self._left = int(line)
            self._started = time.perf_counter()
        self._left -= 1


def take_turns(step: Callable[[], Any], warm_up: int) -> None:
    """Be a contestant whose step is a function."""
    for _ in range(warm_up):
        step()
    turns = Turns()
    while True:
        turns.step_begins()
        step()

"""A session at a terminal: editing, history, Ctrl-C and Ctrl-D."""

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

# A stand-in whose samples are endless.
AT_A_TERMINAL = """
    import signal, sys, time
    from itertools import count
    from types import SimpleNamespace
    from minigpt.command_line import run
    from minigpt.generation.config import GenerateConfig
    from minigpt.generation.session import converse

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it

    def write(prompt, sample, say):
        def pieces():
            for number in count():
                yield f"<{number}>"
                time.sleep(0.01)
        return SimpleNamespace(ids=[], finish=lambda: "."), pieces()

    model = SimpleNamespace(
        model=SimpleNamespace(shape=lambda: "a stand-in"),
        decoding=lambda config: None, say=print, write=write,
    )
    sys.exit(run(lambda config, _: converse(model, config), GenerateConfig, "generate", []))
"""


@dataclass
class Terminal:
    """A process at a terminal of its own."""

    process: subprocess.Popen[bytes]
    master: int
    seen: str = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, then: str) -> None:
        """Press Ctrl-C until the text is shown.

        One that comes just after a key, before readline waits for the next, is not looked at until
        then: a person presses again.
        """
        for _ in range(30):
            self.process.send_signal(signal.SIGINT)
            if self.shown(then, seconds=2):
                return
        pytest.fail(f"no {then!r} in {self.seen!r}")

    def wait_for(self, text: str) -> None:
        assert self.shown(text, seconds=60), f"no {text!r} in {self.seen!r}"

    def shown(self, text: str, *, seconds: float) -> bool:
        """Whether the text is shown within so many seconds; it is seen once."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            if not select.select([self.master], [], [], max(0, until - time.monotonic()))[0]:
                return False
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # all there was has been read
                pytest.fail(f"no {text!r} in {self.seen!r}")
        self.seen = self.seen.partition(text)[2]
        return True


@pytest.fixture
def terminal() -> Iterator[Callable[[], Terminal]]:
    opened: list[Terminal] = []

    def start() -> Terminal:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(AT_A_TERMINAL)],
            cwd=PROJECT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "dumb", "INPUTRC": os.devnull, "PYTHONUTF8": "1"},
        )  # fmt: skip
        os.close(slave)
        opened.append(Terminal(process, master))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()
        os.close(each.master)


def test_at_a_terminal_ctrl_c_stops_a_sample_or_drops_a_line_and_ctrl_d_ends(
    terminal: Callable[[], Terminal],
) -> None:
    shell = terminal()
    shell.wait_for("> ")
    shell.type("床前\n")
    shell.wait_for("床前<0><1>")  # the echo
    shell.interrupt(then=".\r\n> ")
    shell.type("dropped")
    shell.wait_for("dropped")
    shell.interrupt(then="> ")
    shell.type("\x1b[A\n")  # the line before, from the history
    shell.wait_for("床前<0>")
    shell.interrupt(then=".\r\n> ")
    shell.type("\x04")
    assert shell.process.wait(timeout=60) == 0

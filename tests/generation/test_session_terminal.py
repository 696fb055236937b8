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

# A stand-in that needs no torch, so that a process starts at once. Its samples are endless.
AT_A_TERMINAL = """
    import sys, time
    from itertools import count
    from types import SimpleNamespace
    from minigpt.command_line import run
    from minigpt.generation.config import GenerateConfig
    from minigpt.generation.session import converse

    def write(prompt, sample):
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

    def wait_for(self, text: str) -> str:
        """What is shown until the text has been; it is seen once."""
        until = time.monotonic() + 60
        while text not in self.seen:
            assert select.select([self.master], [], [], until - time.monotonic())[0], self.seen
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # all there was has been read
                pytest.fail(f"no {text!r} in {self.seen!r}")
        before, found, self.seen = self.seen.partition(text)
        return before + found


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
    shell.process.send_signal(signal.SIGINT)
    shell.wait_for(".\r\n> ")
    shell.type("dropped")
    shell.wait_for("dropped")
    shell.process.send_signal(signal.SIGINT)
    shell.wait_for("> ")
    shell.type("\x1b[A\n")  # the line before, from the history
    shell.wait_for("床前<0>")
    shell.process.send_signal(signal.SIGINT)
    shell.wait_for(".\r\n> ")
    shell.type("\x04")
    assert shell.process.wait(timeout=60) == 0

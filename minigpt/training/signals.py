"""Ctrl-C and SIGTERM as a request that training reads at its next step boundary."""

import signal
import sys
import time
from types import FrameType
from typing import Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
#: Seconds in which more signals are the same request: they often come in pairs.
ONE_REQUEST = 1.0


class StopSignals:
    """While it is open, the first SIGINT or SIGTERM is noted and a later one ends the program.

    `number` is the signal that was noted, 0 before. Several processes agree on theirs.
    """

    def __init__(self) -> None:
        self.number = 0
        self._came = 0.0

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        now = time.monotonic()
        if not self.number:
            self.number, self._came = number, now
        elif now - self._came >= ONE_REQUEST:
            sys.exit(128 + number)

    def __enter__(self) -> Self:
        self._previous = [signal.signal(number, self._note) for number in _NUMBERS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(_NUMBERS, self._previous, strict=True):
            signal.signal(number, handler)

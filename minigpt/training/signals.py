"""Ctrl-C and SIGTERM as a request that training reads at its next step boundary."""

import contextlib
import signal
from collections.abc import Generator
from types import FrameType


class StopRequest:
    """Holds the first stop signal that came, or None."""

    signal_number: int | None = None

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process ended by the signal: 130 or 143."""
        return 0 if self.signal_number is None else 128 + self.signal_number


@contextlib.contextmanager
def stop_on_signals(request: StopRequest) -> Generator[None, None, None]:
    """Note SIGINT and SIGTERM in `request` instead of dying; a second one acts at once."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        request.signal_number = number
        for each, handler in previous.items():
            signal.signal(each, handler)

    for number in previous:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

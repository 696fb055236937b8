"""How far counted work has come: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from typing import NoReturn

from tqdm import tqdm

#: Seconds before a bar is shown: what takes less needs none.
DELAY = 1.0
#: Seconds between plain lines where there is no terminal.
PLAIN_INTERVAL = 15.0


class Count:
    """Shows on standard error how many of `total` are done, the rate and the time left.

    `unit` is a plural, or B for bytes; without a `total` there is no time left.
    """

    def __init__(self, total: int | None, doing: str, unit: str) -> None:
        self._total, self._doing, self._unit = total, doing, unit
        self._done = 0
        self._began = self._last_shown = time.monotonic()
        self._bar: tqdm[NoReturn] | None = None
        if sys.stderr.isatty():
            scaled = unit == "B"
            self._bar = tqdm(
                total=total,
                desc=doing,
                unit=f" {unit}",
                unit_scale=scaled,
                dynamic_ncols=True,
                delay=DELAY,
            )

    def add(self, n: int) -> None:
        """So many more are done."""
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
            return
        now = time.monotonic()
        if now - self._last_shown >= PLAIN_INTERVAL:
            self._last_shown = now
            rate = self._done / (now - self._began)
            of, left = "", ""
            if self._total is not None:
                of = f"/{self._shown(self._total)}"
                left = f", {clock(max(0, self._total - self._done) / rate)} left"
            unit = "MB" if self._unit == "B" else self._unit
            sys.stderr.write(
                f"{self._doing}: {self._shown(self._done)}{of} {unit},"
                f" {self._shown(rate, 1)} a second{left}\n"
            )
            sys.stderr.flush()

    def _shown(self, number: float, digits: int = 0) -> str:
        return f"{number / 1e6 if self._unit == 'B' else number:.{digits}f}"

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

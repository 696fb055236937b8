"""What training shows while it runs: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from typing import Any, NoReturn

from tqdm import tqdm

from minigpt.progress import PLAIN_INTERVAL, clock


class Progress:
    """Shows step, loss, rate and time left on standard error; other lines go around the bar."""

    def __init__(self, *, first_step: int, max_steps: int, shown: bool):
        self.max_steps = max_steps
        self.shown = shown
        self._bar: tqdm[NoReturn] | None = None
        if shown and sys.stderr.isatty():
            self._bar = tqdm(
                total=max_steps,
                initial=first_step,
                desc="training",
                unit="step",
                dynamic_ncols=True,
                bar_format="{desc} {n_fmt}/{total_fmt} |{bar}| {postfix}",
            )
        self._started = self._last_shown = time.monotonic()
        self._first_step = first_step

    def due(self) -> bool:
        """Whether it is time to show something: looking at the loss may wait for the device."""
        interval = PLAIN_INTERVAL if self._bar is None else 0.2
        return self.shown and time.monotonic() - self._last_shown >= interval

    def step(self, step: int, *, loss: float, tokens_per_second: float) -> None:
        """Show where the run is."""
        self._last_shown = time.monotonic()
        elapsed = self._last_shown - self._started
        done = step - self._first_step
        left = clock(elapsed / done * (self.max_steps - step)) if done else "?"
        text = f"loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s, {left} left"
        if self._bar is None:
            self.line(f"step {step}/{self.max_steps}: {text}")
        else:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.n = step
            self._bar.refresh()

    def line(self, text: str) -> None:
        """Print a line of its own."""
        if not self.shown:
            return
        if self._bar is None:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        else:
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Rate:
    """Tokens per second of training, time for validation, samples and saving left out."""

    def __init__(self, record: dict[str, Any]):
        """Watch a record's `tokens` and `train_seconds`."""
        self.record = record
        self._tokens, self._seconds = record["tokens"], record["train_seconds"]

    def since_last(self) -> float:
        """The rate since the last call, or since the start."""
        tokens, seconds = self.record["tokens"], self.record["train_seconds"]
        rate = (tokens - self._tokens) / max(seconds - self._seconds, 1e-9)
        self._tokens, self._seconds = tokens, seconds
        return rate


def table(lines: dict[str, str]) -> str:
    """Names and what is to be said of each, a line each, aligned."""
    return "\n".join(f"{name + ':':<12}{text}" for name, text in lines.items())

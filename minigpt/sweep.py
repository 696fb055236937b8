"""The end of a sweep: what each of its jobs has reached, side by side.

A job is one run with its own folder; its numbers are those of its `summary.json`.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from minigpt.settings import shortened

_WORDS = {None: "not run", 0: "done", 1: "failed", 2: "refused", 130: "stopped", 143: "stopped"}
#: Most characters of what went wrong.
_MESSAGE = 60

_TITLES = ("", "job", "settings", "loss", "bits/byte", "tokens/s", "folder", "status")


@dataclass(slots=True)
class Job:
    """One job of a sweep: what was chosen for it, its run folder, and how it ended.

    `status` is the exit status of its run, None before that; `message` is what went wrong.
    """

    settings: str
    folder: Path
    status: int | None = None
    message: str = ""


def sweep_table(jobs: Sequence[Job]) -> str:
    """A line a job: those that are done, the best first and marked, then the others in order.

    The best is that of the fewest bits per byte, which do not depend on the tokenizer; where a
    job has none (`overfit=true`), of the lowest validation loss. Files that are not there or not
    whole leave their numbers out.
    """
    summaries = [_summary(job) for job in jobs]
    done = [summary for job, summary in zip(jobs, summaries, strict=True) if job.status == 0]
    by = "val_bits_per_byte" if all("val_bits_per_byte" in each for each in done) else "val_loss"
    order = sorted(range(len(jobs)), key=lambda i: (summaries[i].get(by, math.inf), i))
    rows: list[tuple[str, ...]] = [_TITLES]
    for place, i in enumerate(order):
        job, numbers = jobs[i], summaries[i]
        rows.append(
            (
                "*" if place == 0 and by in numbers else "",
                str(i),
                job.settings,
                _shown(numbers, "val_loss", ".4f"),
                _shown(numbers, "val_bits_per_byte", ".4f"),
                _shown(numbers, "tokens_per_second", ",.0f"),
                "" if job.status is None else str(job.folder),
                _status(job),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _summary(job: Job) -> dict[str, float]:
    """The finite numbers in a finished job's summary."""
    if job.status != 0:
        return {}
    try:
        summary: Any = json.loads((job.folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(summary, dict):
        return {}
    numbers = cast("dict[str, Any]", summary).items()
    return {k: v for k, v in numbers if isinstance(v, int | float) and math.isfinite(v)}


def _shown(numbers: dict[str, float], name: str, form: str) -> str:
    return format(numbers[name], form) if name in numbers else "-"


def _status(job: Job) -> str:
    word = _WORDS.get(job.status, "failed")
    if not job.message:
        return word
    message = shortened(job.message, _MESSAGE)
    return f"{word}: {message}"

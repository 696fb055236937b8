"""`metrics.csv`: one line a logged step, on the disk as soon as it is written."""

import contextlib
import csv
import io
from pathlib import Path
from typing import TextIO

from minigpt.errors import InputError, RunError
from minigpt.files import written_whole

#: Columns that differ between two runs that are otherwise the same to the bit.
TIMING_FIELDS = ("seconds", "tokens_per_second")


def metric_fields(n_layer: int) -> tuple[str, ...]:
    """The columns for a model of `n_layer` blocks; what each means is in docs/training.md."""
    entropies = (f"attention_entropy_{layer}" for layer in range(n_layer))
    training = ("step", "tokens", "train_loss", "lr", "grad_norm", "real_share", *TIMING_FIELDS)
    return (*training, "skipped_steps", "val_loss", "val_bits_per_byte", "logit_rms", *entropies)


class MetricsFile:
    """Appends lines of numbers; columns a line has no number for stay empty."""

    def __init__(self, path: Path, fields: tuple[str, ...], *, last_step: int):
        """Open `path`, keeping the lines of steps up to `last_step` (a resumed run's past)."""
        self.path = path
        kept = [row for row in read_metrics(path) if int(row["step"]) <= last_step]
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, fields, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        try:
            with written_whole(path) as file:
                file.write(lines.getvalue().encode())
            self._file: TextIO = path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}") from error
        self._writer = csv.DictWriter(self._file, fields, restval="", extrasaction="ignore")

    def append(self, row: dict[str, float]) -> None:
        """Write one line. Raises `RunError` if the disk does not take it."""
        try:
            self._writer.writerow(row)
            self._file.flush()
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file; a line written after that is an error."""
        with contextlib.suppress(OSError):  # a line the disk has not taken, as `append` has said
            self._file.close()


def read_metrics(path: Path) -> list[dict[str, str]]:
    """The lines of a metrics file as text by column; none if there is no file.

    A last line that a kill cut short is left out. Raises `InputError` if the file is no CSV.
    """
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a file of metrics: {error}; move it away") from error
    steps = ((row.get("step") or "") for row in rows)
    return [
        row
        for row, step in zip(rows, steps, strict=True)
        if step.isascii() and step.isdecimal() and None not in row.values()
    ]


def column(rows: list[dict[str, str]], name: str) -> list[tuple[int, float]]:
    """(step, number) of each line that has a number in a column."""
    return [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]

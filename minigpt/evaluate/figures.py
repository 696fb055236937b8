"""The figures of a measurement, and how far they would move with other documents.

What is measured of each document stands in columns (D,): `nats`, `tokens`, `bytes`, `characters`;
`floor`, the nats that no model can go below, where the corpus knows them; of a second model
`other_nats`, `more_nats` (what these exceed `nats` by) and, where it reads other tokens,
`other_tokens`. A figure is a sum over a sum, never a mean of means. Shapes: D documents, R
resamples, K columns.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from minigpt.evaluate.scoring import Floats
from minigpt.training.loss import perplexity

#: Numbers that a resampling may hold at a time.
ROOM = 1 << 22


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its interval; `low` and `high` are None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    def data(self) -> dict[str, float | None]:
        """As plain data; what is not finite is None, as JSON has no other."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {
            name: number if number is not None and math.isfinite(number) else None
            for name, number in numbers.items()
        }


def from_sums(sums: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that sums of the columns give: numbers, or arrays (R,) of them.

    `bits_per_byte` is summed loss over summed bytes, and so does not depend on the tokenizer; a
    difference is the second model's figure less the first's, the gap the loss less its floor.
    """
    found = {
        "nats_per_token": sums["nats"] / sums["tokens"],
        "bits_per_byte": sums["nats"] / math.log(2) / sums["bytes"],
        "bits_per_character": sums["nats"] / math.log(2) / sums["characters"],
    }
    if "floor" in sums:
        found["floor"] = sums["floor"] / sums["tokens"]
        found["gap"] = (sums["nats"] - sums["floor"]) / sums["tokens"]
    if "other_nats" in sums:
        other_tokens = sums.get("other_tokens", sums["tokens"])
        found["other_nats_per_token"] = sums["other_nats"] / other_tokens
        found["other_bits_per_byte"] = sums["other_nats"] / math.log(2) / sums["bytes"]
        found["difference_in_bits_per_byte"] = sums["more_nats"] / math.log(2) / sums["bytes"]
        if "other_tokens" not in sums:
            found["difference_in_nats_per_token"] = sums["more_nats"] / sums["tokens"]
    return found


def figures(
    columns: Mapping[str, Floats], *, resamples: int, confidence: float, seed: int
) -> dict[str, Figure]:
    """Each figure of `from_sums`, and `perplexity`, with its interval.

    There is one where there are resamples, and two documents. It is the percentile bootstrap's
    (Efron 1979): the documents are drawn anew with replacement, as many as there are, and the
    figures of each draw are looked at. All columns are drawn together, so that a difference of two
    models is paired.
    """
    values = from_sums({name: float(column.sum()) for name, column in columns.items()})
    table = np.stack(list(columns.values()), axis=1)
    drawn: dict[str, Floats] = {}
    if resamples and len(table) > 1:
        sums = resampled_sums(table, resamples, seed)
        drawn = from_sums(dict(zip(columns, sums.T, strict=True)))
    tail = (1 - confidence) / 2
    found: dict[str, Figure] = {}
    for name, value in values.items():
        low = float(np.quantile(drawn[name], tail)) if drawn else None
        high = float(np.quantile(drawn[name], 1 - tail)) if drawn else None
        found[name] = Figure(float(value), low, high)
    loss = found["nats_per_token"]
    low = None if loss.low is None else perplexity(loss.low)
    high = None if loss.high is None else perplexity(loss.high)
    return found | {"perplexity": Figure(perplexity(loss.value), low, high)}


def resampled_sums(table: Floats, resamples: int, seed: int) -> Floats:
    """Sums over documents drawn with replacement: of a table (D, K), (R, K)."""
    draw = np.random.default_rng(seed)
    D = len(table)
    at_a_time = max(1, ROOM // D)
    parts: list[Floats] = []
    for first in range(0, resamples, at_a_time):
        rows = min(at_a_time, resamples - first)
        drawn = draw.integers(D, size=(rows, D)) + D * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * D).reshape(rows, D)
        parts.append(times @ table)
    return np.concatenate(parts)


def share(part: int, whole: int, confidence: float) -> Figure:
    """A share with the interval of Wilson (1927), which holds near 0 and 1 too."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = part / whole
    middle = (p + z * z / (2 * whole)) / (1 + z * z / whole)
    half = z * math.sqrt(p * (1 - p) / whole + (z / (2 * whole)) ** 2) / (1 + z * z / whole)
    low = middle - half if part else 0.0  # exactly, where rounding would leave a little
    return Figure(p, low, middle + half if part < whole else 1.0)


def verdict(difference: Figure, names: tuple[str, str]) -> str:
    """What a difference in bits per byte, the second model's less the first's, says in a line."""
    size, better = abs(difference.value), names[difference.value < 0]
    if difference.low == difference.high and difference.value == 0:
        return "the two are equal on these documents"
    if difference.low is None or difference.high is None:
        return f"{better} is better by {size:.4f} bits per byte; there is no interval to judge it"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    if difference.low <= 0 <= difference.high:
        return (
            f"no difference that these documents could show: {difference.value:+.4f} bits per byte"
            f" ({difference.low:+.4f} to {difference.high:+.4f}), the interval includes 0"
        )
    return (
        f"{better} is better by {size:.4f} bits per byte ({low:.4f} to {high:.4f}): the interval"
        " excludes 0"
    )

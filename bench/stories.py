"""What `make train` gives: the default model on the built-in stories, over several seeds.

python bench/stories.py [rounds=3] [small=0]

Round r has the seed 1337 + r. With small=1 it is `model=small`.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from record import FIRST_SEED, keep, machine, options, train

#: What every run is to reach on two cores of a CPU: loss over the floor that no model can beat,
#: share of sampled stories that the grammar could have told, and seconds for the process
#: (by whether it is `model=small`).
RATIO, VALID_SHARE, SECONDS = 1.05, 0.9, (300, 900)


def main(rounds: int, small: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    settings = ("model=small",) if small else ()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            train(Path(folder) / str(number), *settings, f"seed={FIRST_SEED + number}")
            for number in range(rounds)
        ]
    figures: dict[str, list[Any]] = {
        "ratio": [each["val_loss"] / each["floor_loss"] for each in runs],
        "valid_share": [each["valid_share"] for each in runs],
        "command_seconds": [each["command_seconds"] for each in runs],
        "tokens_per_second": [each["tokens_per_second"] for each in runs],
    }
    keep(
        "stories-small" if small else "stories",
        facts,
        figures
        | {"median": {name: median(values) for name, values in figures.items()}}
        | {
            "runs": runs,
            "reached": {
                "loss": max(figures["ratio"]) <= RATIO,
                "valid stories": min(figures["valid_share"]) >= VALID_SHARE,
                "time": max(figures["command_seconds"]) <= SECONDS[small],
            },
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=3, small=0))

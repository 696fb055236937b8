"""What `make train` gives: the default model on the built-in stories.

python bench/stories.py [seed=1337]
"""

import sys
import tempfile
from pathlib import Path

from record import keep, machine, options, train

#: What the default run is to reach on two cores of a CPU: loss over the floor that no model can
#: beat, share of sampled stories that the grammar could have told, and seconds for the process.
RATIO, VALID_SHARE, SECONDS = 1.15, 0.5, 300


def main(seed: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    with tempfile.TemporaryDirectory() as folder:
        summary = train(Path(folder) / "run", f"seed={seed}")
    ratio = summary["val_loss"] / summary["floor_loss"]
    keep(
        "stories",
        facts,
        summary
        | {
            "ratio": ratio,
            "reached": {
                "loss": ratio <= RATIO,
                "valid stories": summary["valid_share"] >= VALID_SHARE,
                "time": summary["command_seconds"] <= SECONDS,
            },
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], seed=1337))

"""The frozen preset `experiment=shakespeare_char` against a plain script of the same sizes.

Both run in turns, so that what else the machine does falls on both: A B A B ... Round r has the
seed 1337 + r: the loss that such a small run ends at differs between seeds by a hundredth.

    python bench/shakespeare_char.py [steps=2000] [rounds=3]
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from record import FIRST_SEED, keep, machine, options, run, shared_data, train

#: What the preset is to reach at its own seed, the first: loss over the whole validation part
#: after all its steps, in nats a character; and in all rounds, the plain script's seconds.
LOSS, ALL_STEPS = 1.90, 2000


def main(steps: int, rounds: int) -> None:
    """Measure, show and keep."""
    text, facts = str(shared_data("tinyshakespeare.txt")), machine()
    ours: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            settings = ("experiment=shakespeare_char", f"data.path={text}")
            run_dir, seed = Path(folder) / str(number), FIRST_SEED + number
            ours.append(train(run_dir, *settings, f"trainer.max_steps={steps}", f"seed={seed}"))
            output = run("bench/plain_char.py", text, str(steps), str(seed))
            plain.append(json.loads(output.splitlines()[-1]))
    seconds = [each["train_seconds"] for each in ours]
    plain_seconds = [each["train_seconds"] for each in plain]
    ratio = median(seconds) / median(plain_seconds)
    losses = [each["val_loss"] for each in ours]
    keep(
        "shakespeare_char",
        facts,
        {
            "steps": steps,
            "train_seconds": seconds,
            "plain_seconds": plain_seconds,
            "median_train_seconds": median(seconds),
            "median_plain_seconds": median(plain_seconds),
            "ratio": ratio,
            "wall_seconds": [each["wall_seconds"] for each in ours],
            "val_losses": losses,
            "plain_val_losses": [each["val_loss"] for each in plain],
            "reached": {
                "loss": losses[0] <= LOSS if steps == ALL_STEPS else None,
                "as fast as the plain script": ratio <= 1.0,
            },
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], steps=ALL_STEPS, rounds=3))

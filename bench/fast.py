"""Time to quality: `experiment=fast` against the frozen recipe `experiment=shakespeare_char`.

python bench/fast.py [rounds=5]

Both run in turns, round r with the seed 1337 + r. The preset ends at the steps that it needs for
1.90 nats a character over the whole validation part, in windows of 64; the seconds of all its
training steps are held against those of the recipe's 2,000. Validation is in neither.
"""

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from record import FIRST_SEED, keep, machine, options, shared_data, train

#: The median loss to reach, and the largest share of the recipe's training time.
LOSS, SHARE = 1.90, 0.2
RECIPES = ("fast", "shakespeare_char")


def main(rounds: int) -> None:
    """Measure, show and keep."""
    text, facts = str(shared_data("tinyshakespeare.txt")), machine()
    runs: dict[str, list[dict[str, Any]]] = {recipe: [] for recipe in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for recipe in RECIPES:
                run_dir = Path(folder) / f"{recipe}-{number}"
                summary = train(
                    run_dir, f"experiment={recipe}", f"data.path={text}",
                    f"seed={FIRST_SEED + number}", "trainer.accelerator=cpu",
                )  # fmt: skip
                runs[recipe].append(summary)
    figures = {
        recipe: {
            name: [each[name] for each in summaries]
            for name in (
                "val_loss",
                "train_seconds",
                "wall_seconds",
                "tokens",
                "parameters",
                "steps",
            )
        }
        for recipe, summaries in runs.items()
    }
    fast, plain = (figures[recipe] for recipe in RECIPES)
    shares = [a / b for a, b in zip(fast["train_seconds"], plain["train_seconds"], strict=True)]
    loss = median(fast["val_loss"])
    keep(
        "fast",
        facts,
        {
            **figures,
            "median_val_loss": loss,
            "share_of_train_seconds": {"median": median(shares), "of_each_round": shares},
            "reached": {
                "loss": loss <= LOSS,
                "time": median(shares) <= SHARE,
                "no more parameters": fast["parameters"][0] <= plain["parameters"][0],
            },
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=5))

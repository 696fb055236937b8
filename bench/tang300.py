"""Chinese poems by characters: 366 of them, so the question is what is learned before overfitting.

python bench/tang300.py [seed=1337]
"""

import sys
import tempfile
from pathlib import Path

from record import keep, machine, options, run, shared_data, train

#: What is to be reached on held-out poems, in nats a character. Counting characters gives 6.33.
LOSS = 6.1

SETTINGS = ("tokenizer=char", "data=jsonl")


def main(seed: int) -> None:
    """Measure, show and keep."""
    poems, facts = shared_data("tang300.jsonl"), machine()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        summary = train(run_dir, *SETTINGS, f"data.path={poems}", f"seed={seed}")
        poem = run("generate.py", f"checkpoint={run_dir}", f"seed={seed}", "max_new_tokens=200")
    keep(
        "tang300",
        facts,
        summary
        | {
            "settings": " ".join(SETTINGS),
            "sample": poem.splitlines(),
            "reached": {"loss": summary["val_loss"] <= LOSS},
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], seed=1337))

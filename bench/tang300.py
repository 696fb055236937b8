"""Chinese poems by characters: 366 of them, so what counts is what is learned before overfitting.

python bench/tang300.py [seed=1337]
"""

import json
import math
import sys
import tempfile
from pathlib import Path

from record import keep, machine, options, run, shared_data, train

#: What is to be reached on held-out poems, in nats a character. Counting characters gives 6.33.
LOSS = 6.1

#: A poem a row, and few steps with much dropout: the corpus is small.
SETTINGS = (
    "tokenizer=char",
    "data=jsonl",
    "data.layout=padded",
    "data.batch_size=8",
    "model.dropout=0.3",
    "optim.lr=2e-3",
    "trainer.max_steps=400",
)


def main(seed: int) -> None:
    """Measure, show and keep."""
    poems, facts = shared_data("tang300.jsonl"), machine()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        summary = train(run_dir, *SETTINGS, f"data.path={poems}", f"seed={seed}")
        poem = run("generate.py", f"checkpoint={run_dir}", f"seed={seed}", "temperature=0.8")
    # The summary averages over end tokens too; here their nats are charged to the characters.
    text = "".join(json.loads(line)["text"] for line in poems.open(encoding="utf-8"))
    bytes_per_character = len(text.encode()) / len(text)
    loss = summary["val_bits_per_byte"] * math.log(2) * bytes_per_character
    keep(
        "tang300",
        facts,
        summary
        | {
            "nats_per_character": loss,
            "settings": " ".join(SETTINGS),
            "sample": poem.splitlines(),
            "reached": {"loss": loss <= LOSS},
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], seed=1337))

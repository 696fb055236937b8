"""The plan's prediction of a run's peak memory against the peak that the run then has.

python bench/memory.py [steps=6] [first=0] [last=99]

Each shape is a fresh process of train.py on a CPU; its summary.json has both numbers. `first` and
`last` choose among the shapes.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from record import keep, machine, options, train

#: The prediction is to be within this share of the peak.
TOLERANCE = 0.15
_CODE = ("data=stdlib", "data.max_documents=40")
_WIDE = ("tokenizer=bytes", "model=gpt2", "model.n_layer=4", "model.block_size=256")
SHAPES = {
    "tiny, stories": ("data.max_documents=400",),
    "tiny, packed, document mask, dropout": (
        *_CODE, "tokenizer=bytes", "data.document_mask=true", "model.dropout=0.1",
    ),
    "tiny, large vocabulary": (*_CODE, "tokenizer.vocab_size=16000", "data.batch_size=16"),
    "small": (*_CODE, "tokenizer=bytes", "model=small"),
    "small, activation checkpointing": (
        *_CODE, "tokenizer=bytes", "model=small", "activation_checkpointing=true",
    ),
    "small, four micro-batches": (
        *_CODE, "tokenizer=bytes", "model=small", "trainer.accumulate_grad_batches=4",
    ),
    "small, bfloat16": (
        *_CODE, "tokenizer=bytes", "model=small", "trainer.precision=bf16-mixed",
    ),
    "four layers of gpt2, 2 rows": (*_CODE, *_WIDE, "data.batch_size=2"),
    "four layers of gpt2, 8 rows": (*_CODE, *_WIDE, "data.batch_size=8"),
}  # fmt: skip


def main(steps: int, first: int, last: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    measured: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, settings) in list(enumerate(SHAPES.items()))[first : last + 1]:
            summary = train(
                Path(folder) / str(number), *settings,
                f"trainer.max_steps={steps}", f"trainer.val_check_interval={max(1, steps // 2)}",
                "trainer.accelerator=cpu", "trainer.limit_val_batches=1",
            )  # fmt: skip
            predicted, peak = summary["memory_predicted_bytes"], summary["memory_peak_bytes"]
            ratio = predicted / peak
            print(f"{name:<40}{predicted / 1e9:6.2f} GB {peak / 1e9:6.2f} GB {ratio:5.2f}")
            measured[name] = {"predicted": predicted, "peak": peak, "ratio": ratio}
    worst = max(abs(each["ratio"] - 1) for each in measured.values())
    keep("memory", facts, {"shapes": measured, "worst": worst, "reached": worst <= TOLERANCE})


if __name__ == "__main__":
    main(**options(sys.argv[1:], steps=6, first=0, last=99))

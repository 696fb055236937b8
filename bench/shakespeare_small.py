"""`experiment=shakespeare_small` against the recipe it comes from, step by step.

python bench/shakespeare_small.py [steps=300] [batch=8] [every=50]

Both train the same sizes on the same batches of `tinyshakespeare.txt`, with a schedule over the
same steps; the plain recipe is GPT-2's model, AdamW and a cosine. Losses are of the whole
validation part. Where there is a GPU, the preset runs whole besides, and is to reach 1.45 nats.
"""

import datetime
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from record import FIRST_SEED, PROJECT, RESULTS, keep, machine, options, shared_data, train

sys.path.insert(0, str(PROJECT))

from minigpt.training.metrics_file import read_metrics

#: Best validation loss that is published for this size, and the one to reach on a GPU.
PUBLISHED, TARGET = 1.4697, 1.45
PLAIN = (
    "optim=adamw", "optim.lr=1e-3", "optim.beta2=0.99", "optim.schedule=cosine",
    "model.position=learned", "model.qk_norm=false", "model.activation=gelu",
)  # fmt: skip


def curve(folder: Path) -> dict[int, float]:
    """Validation losses of a run by their step."""
    rows = read_metrics(folder / "metrics.csv")
    return {int(row["step"]): float(row["val_loss"]) for row in rows if row.get("val_loss")}


def draw(curves: dict[str, dict[int, float]], path: Path) -> None:
    """The losses over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, losses in curves.items():
        axes.plot(list(losses), list(losses.values()), "o-", label=name)
    axes.set(xlabel="step", ylabel="validation loss, nats a character")
    axes.set_title("6 layers, 6 heads, 384 wide, 256 characters of context")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(steps: int, batch: int, every: int) -> None:
    """Measure, show and keep."""
    facts, text = machine(), shared_data("tinyshakespeare.txt")
    common = ("experiment=shakespeare_small", f"data.path={text}", f"seed={FIRST_SEED}")
    short = (
        f"data.batch_size={batch}", f"trainer.max_steps={steps}", f"optim.decay_steps={steps}",
        f"trainer.val_check_interval={every}", "trainer.accelerator=cpu",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs = {
            "shakespeare_small": train(folder / "shakespeare_small", *common, *short),
            "plain recipe": train(folder / "plain recipe", *common, *short, *PLAIN),
        }
        curves = {name: curve(folder / name) for name in runs}
        whole = train(folder / "whole", *common) if torch.cuda.is_available() else None
    today = datetime.datetime.now().astimezone().date().isoformat()
    draw(curves, RESULTS / f"{today}-shakespeare_small.png")
    ours, plain = curves.values()
    measured: dict[str, Any] = {
        "published": PUBLISHED,
        "val_losses": curves,
        "parameters": {name: run["parameters"] for name, run in runs.items()},
        "train_seconds": {name: run["train_seconds"] for name, run in runs.items()},
        "on a GPU": whole and {name: whole[name] for name in ("val_loss", "train_seconds")},
        "reached": {
            "below at equal steps": all(ours[step] < plain[step] for step in ours),
            "on a GPU": whole and whole["val_loss"] <= TARGET,
        },
    }
    keep("shakespeare_small", facts, measured)


if __name__ == "__main__":
    main(**options(sys.argv[1:], steps=300, batch=8, every=50))

"""What checkpoints cost training: the time it waits for them, and for the disk if it had to.

python bench/saving.py [tiny=200] [small=20] [gpt2=4]

Each is a number of steps at the preset's default batch, with five saves; 0 leaves a preset out.
Runs that go on while a file is written alternate with runs that wait for it.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import lightning as L  # noqa: N812  (Lightning's own name for it)
from record import PROJECT, keep, machine, options

sys.path.insert(0, str(PROJECT))

import train
from minigpt.command_line import run
from minigpt.config import TrainConfig
from minigpt.training.metrics_file import column, read_metrics
from minigpt.training.saving import CheckpointWriter

SAVES = 5
#: Settings beside the preset's own; gpt2's vocabulary is filled by no corpus that is at hand.
SETTINGS = {
    "tiny": (),
    "small": (),
    "gpt2": ("model.block_size=256", "data.batch_size=1", "data.max_documents=2000"),
}


def measure(preset: str, steps: int, folder: Path, *, waits: bool) -> dict[str, float]:
    """Seconds a save holds training up, and a step's; `waits` for the disk each time if asked."""
    held_up: list[float] = []
    save = CheckpointWriter.save

    def timed(self: CheckpointWriter, trainer: L.Trainer, paths: Sequence[Path]) -> None:
        started = time.perf_counter()
        save(self, trainer, paths)
        if waits:
            self.wait()
        held_up.append(time.perf_counter() - started)

    CheckpointWriter.save = timed
    settings = (
        f"model={preset}", *SETTINGS[preset], f"run_dir={folder}", f"trainer.max_steps={steps}",
        f"saving.every_n_steps={steps // SAVES or 1}", f"trainer.val_check_interval={steps}",
        "trainer.limit_val_batches=1", "trainer.log_every_n_steps=1",
    )  # fmt: skip
    try:
        if status := run(train.main, TrainConfig, "train", list(settings)):
            sys.exit(status)
    finally:
        CheckpointWriter.save = save
    seconds = dict(column(read_metrics(folder / "metrics.csv"), "seconds"))
    return {
        "save_seconds": median(held_up),
        "step_seconds": (seconds[steps] - seconds[1]) / (steps - 1),
        "megabytes": (folder / "checkpoints" / "last.ckpt").stat().st_size / 1e6,
    }


def main(**presets: int) -> None:
    """Measure, show and keep."""
    facts, measured = machine(), dict[str, Any]()
    for preset, steps in presets.items():
        rounds: dict[str, list[dict[str, float]]] = {"goes on": [], "waits": []}
        for number in range(3 if steps else 0):
            for name, results in rounds.items():
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder) / str(number)
                    results.append(measure(preset, steps, path, waits=name == "waits"))
        if steps:
            measured[preset] = {
                name: {key: median(each[key] for each in results) for key in results[0]}
                for name, results in rounds.items()
            }
    keep("saving", facts, measured)


if __name__ == "__main__":
    main(**options(sys.argv[1:], tiny=200, small=20, gpt2=4))

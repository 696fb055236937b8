"""What a checkpoint costs training: the time that it waits, and that of the disk beside it.

python bench/saving.py [rounds=5]

The state of training of each preset is given to the program's own writer. `share` holds the wait
against the steps between two saves by default, at the preset's own batch (gpt2: one row of 256).
"""

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from record import PROJECT, keep, machine, options

sys.path.insert(0, str(PROJECT))

from minigpt.composition import compose_presets
from minigpt.config import TrainConfig
from minigpt.defaults import fill, find_device
from minigpt.model.gpt import GPT
from minigpt.training.loss import summed_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.saving import CheckpointWriter

#: Rows and length of a step, where the preset's own would take too long.
SHORTER = {"gpt2": (1, 256)}


def measure(preset: str, rounds: int) -> dict[str, Any]:
    """Medians over `rounds` of a step, of the wait for a save, and of the writing beside it."""
    config = fill(compose_presets(TrainConfig, "train", {"model": preset}), find_device("cpu"))
    assert config.tokenizer.vocab_size is not None
    assert config.data.batch_size is not None
    assert config.trainer.val_check_interval is not None
    model = GPT(config.model, config.tokenizer.vocab_size).train()
    optimizer = build_optimizer(model, config.optim, fused=True)
    shape = SHORTER.get(preset, (config.data.batch_size, config.model.block_size))
    tokens = torch.randint(0, model.vocab_size, (shape[0], shape[1] + 1))
    writer = CheckpointWriter(keep=0)
    steps: list[float] = []
    waits: list[float] = []
    writes: list[float] = []
    # in a folder of its own, where runs/latest is no run's
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = Path(folder) / "checkpoints" / "last.ckpt"
        for _ in range(rounds):
            started = time.perf_counter()
            loss = summed_loss(model(tokens[:, :-1]), tokens[:, 1:]) / tokens[:, 1:].numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(time.perf_counter() - started)
            state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            started = time.perf_counter()
            writer.save_checkpoint(state, path)
            waits.append(time.perf_counter() - started)
            writer.wait()
            writes.append(time.perf_counter() - started - waits[-1])
        megabytes = path.stat().st_size / 1e6
    writer.close()
    between = median(steps) * config.trainer.val_check_interval
    return {
        "parameters": model.parameter_count(),
        "megabytes": megabytes,
        "step_seconds": median(steps),
        "wait_seconds": median(waits),
        "write_seconds": median(writes),
        "share": median(waits) / between,
        "share_if_it_waited_for_the_disk": (median(waits) + median(writes)) / between,
    }


def main(rounds: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    keep("saving", facts, {name: measure(name, rounds) for name in ("tiny", "small", "gpt2")})


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=5))

"""What the training loop costs beside the training: all that is not forward, backward or update.

python bench/loop.py [blocks=40]

`train.py` with its defaults, and in the same process, in turns of 10 steps, a bare loop over the
same batches, made beforehand: forward, backward, clipping and AdamW on a second copy of the model.
Turns so short let what else the machine does fall on both. By the wall clock, or on one thread
(OMP_NUM_THREADS=1) by the process's CPU seconds, which a busy machine changes less. Logging is on;
validation, samples and saving come after the measured steps.
"""

import copy
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast
from unittest.mock import patch

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from record import FIRST_SEED, PROJECT, keep, machine, options

sys.path.insert(0, str(PROJECT))

import train
from minigpt.command_line import run
from minigpt.config import TrainConfig
from minigpt.data.batches import Batch
from minigpt.training.datamodule import CorpusBatches
from minigpt.training.lightning_module import LanguageModel
from minigpt.training.loss import batch_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.schedule import learning_rate

#: The loop's own share of a step.
SHARE = 0.05
#: Steps of a turn: as many as have one line in the metrics file.
TURN = 10
#: Turns that do not count.
WARM_UP = 3

clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


class BareLoop:
    """The same training with nothing around it, on a copy of the model."""

    def __init__(self, module: LanguageModel, batches: CorpusBatches):
        self.model = copy.deepcopy(module.model)
        self.optim = module.optim
        self.optimizer = build_optimizer(self.model, module.optim, fused=True)
        self.batches = batches.training_batches()

    def seconds(self, first: int, count: int) -> float:
        """Train on `count` steps from the step `first`; how long that took."""
        made: list[Batch] = [self.batches[step] for step in range(first, first + count)]
        started = clock()
        for step, batch in enumerate(made, first):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(step, self.optim)
            self.optimizer.zero_grad()
            loss = batch_loss(self.model, batch, 1 / batch.step_targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.grad_clip)
            self.optimizer.step()
        return clock() - started


class InTurns(L.Callback):
    """Before every turn of the run, the bare loop has the same one; seconds of both."""

    def __init__(self) -> None:
        self.real: list[float] = []
        self.bare: list[float] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Copy the model before it is trained."""
        batches = cast("Any", trainer).datamodule  # which fit has set
        assert isinstance(batches, CorpusBatches)
        assert isinstance(pl_module, LanguageModel)
        self.bare_loop = BareLoop(pl_module, batches)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """At the start of a turn: the run's last one is over, the bare loop's next is due."""
        del pl_module, batch
        if batch_idx % TURN:
            return
        if self.bare:
            self.real.append(clock() - self.started)
        if batch_idx + TURN < trainer.max_steps:
            self.bare.append(self.bare_loop.seconds(batch_idx, TURN))
        self.started = clock()


def measure(blocks: int) -> InTurns:
    """Run both in turns; what they took."""
    turns, build = InTurns(), train.build_trainer

    def with_turns(*arguments: Any) -> L.Trainer:
        trainer = build(*arguments)
        cast("Any", trainer).callbacks.append(turns)
        return trainer

    steps = (WARM_UP + blocks) * TURN + 1
    with tempfile.TemporaryDirectory() as folder, patch.object(train, "build_trainer", with_turns):
        status = run(
            train.main,
            TrainConfig,
            "train",
            [
                f"run_dir={Path(folder) / 'run'}", f"trainer.max_steps={steps}",
                f"trainer.val_check_interval={steps}", "trainer.accelerator=cpu",
                f"seed={FIRST_SEED}",
            ],
        )  # fmt: skip
    if status != 0:
        sys.exit(f"train.py: status {status}")
    return turns


def main(blocks: int) -> None:
    """Measure, show and keep."""
    facts, turns = machine(), measure(blocks)
    real, bare = turns.real[WARM_UP:], turns.bare[WARM_UP:]
    shares = [1 - without / with_it for with_it, without in zip(real, bare, strict=True)]
    share = median(shares)
    keep(
        "loop",
        facts,
        {
            "clock": "CPU" if clock is time.process_time else "wall",
            "turns": len(shares),
            "steps_a_turn": TURN,
            "milliseconds_a_step": 1000 * median(real) / TURN,
            "bare_milliseconds_a_step": 1000 * median(bare) / TURN,
            "share": share,
            "share_quartiles": quantiles(shares, n=4)[::2],
            "share_by_sums": 1 - sum(bare) / sum(real),
            "milliseconds_of_the_loop": 1000
            * median(a - b for a, b in zip(real, bare, strict=True))
            / TURN,
            "reached": {"share": share < SHARE},
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], blocks=40))

"""Peak memory of training steps of GPT-2's size at a full context, against the peers'.

python bench/step_memory.py [steps=2]

`gpt2` (12 layers, 768 wide, 50,257 tokens) at B 4, T 1024 in float32 with AdamW on a CPU. Each
contestant is a process of its own, and what counts is the most that it held in memory in so many
steps (VmHWM), less what was there before the model was made (VmRSS: Python and the libraries).
This program is the real train.py, without and with activation checkpointing. The peers are
`transformers` with its own loss, also with its own checkpointing, and `litgpt` with its chunked
head and loss, in a plain loop.

All but `litgpt`, which has no such positions, begin with the same weights and the same batch, and
have to give the same loss.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest.mock import patch

import torch
from record import FIRST_SEED, PROJECT, keep, machine, options, shared_data
from shapes import SHAPES
from torch import Tensor
from trainers import litgpt_model
from training import gpt2_folder

sys.path.insert(0, str(PROJECT))

from minigpt.training.memory import peak_bytes, resident_bytes

SHAPE = SHAPES["gpt2"]._replace(T=1024, B=4)
OURS = {"minigpt": "false", "minigpt, checkpointing": "true"}
#: How much of the best peer's memory is allowed; none of the peers' own checkpointing counts.
TARGETS = {"minigpt": 0.7, "minigpt, checkpointing": 0.5}
PEERS = ("transformers", "litgpt")
CONTESTANTS = (*OURS, *PEERS, "transformers, checkpointing")
#: Relative difference of two losses of the same weights.
SAME = 1e-5


def told(before: int, losses: list[float]) -> NoReturn:
    """Say what this process held before its model and at most, and end it at once."""
    peak = peak_bytes("cpu")
    found = {"before": before, "peak": peak, "taken": peak - before, "first_loss": losses[0]}
    print(json.dumps(found), flush=True)
    os._exit(0)


def ours(folder: Path, steps: int, checkpointing: str) -> None:
    """train.py itself, from the weights in `folder`; it leaves its first batch there."""
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    import train
    from minigpt.command_line import run
    from minigpt.config import TrainConfig
    from minigpt.data.batches import Batch
    from minigpt.model.gpt import GPT

    losses: list[float] = []
    before: list[int] = []

    class Watch(L.Callback):
        def on_train_batch_start(
            self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
        ) -> None:
            del trainer, pl_module
            if batch_idx == 0:
                torch.save((batch.inputs, batch.targets), folder / "batch.pt")

        def on_train_batch_end(
            self,
            trainer: L.Trainer,
            pl_module: L.LightningModule,
            outputs: Any,
            batch: Batch,
            batch_idx: int,
        ) -> None:
            del trainer, outputs, batch
            losses.append(cast("Any", pl_module).step_loss.item())
            if batch_idx + 1 == steps:
                told(before[0], losses)

    build, made = train.build_trainer, GPT.__init__

    def watched(*arguments: Any) -> L.Trainer:
        trainer = build(*arguments)
        cast("Any", trainer).callbacks.append(Watch())
        return trainer

    def noted(model: GPT, *arguments: Any) -> None:
        before.append(resident_bytes())
        made(model, *arguments)

    settings = [
        "data=text", f"data.path={shared_data('tinyshakespeare.txt')}", "trainer.accelerator=cpu",
        f"init_from={folder / 'gpt2'}", f"data.cache_dir={folder / 'cache'}",
        f"run_dir={folder / f'run {checkpointing}'}", f"data.batch_size={SHAPE.B}",
        f"activation_checkpointing={checkpointing}", "trainer.precision=32-true",
        "trainer.max_steps=1000", "trainer.val_check_interval=1000",
    ]  # fmt: skip
    with patch.object(train, "build_trainer", watched), patch.object(GPT, "__init__", noted):
        sys.exit(run(train.main, TrainConfig, "train", settings))


def transformers_loss(
    folder: Path, *, checkpointing: bool
) -> tuple[Any, Callable[[Tensor, Tensor], Tensor]]:
    """GPT-2 of `transformers`, and its own loss of a batch."""
    from transformers import GPT2LMHeadModel

    model: Any = GPT2LMHeadModel.from_pretrained(folder / "gpt2")
    if checkpointing:
        model.activation_checkpointing_enable()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return model(inputs, labels=targets, shift_labels=targets, use_cache=False).loss

    return model, loss


def litgpt_loss() -> tuple[Any, Callable[[Tensor, Tensor], Tensor]]:
    """The model of litgpt, and the loss that it is trained with where memory is short."""
    model = cast("Any", litgpt_model(SHAPE)[0])
    chunked: Any = importlib.import_module("litgpt.utils").chunked_cross_entropy

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return chunked(model(inputs, lm_head_chunk_size=128), targets, chunk_size=128)

    return model, loss


def peer(name: str, folder: Path, steps: int) -> None:
    """A peer's model in the plain loop, on the batch that train.py began with."""
    inputs, targets = torch.load(folder / "batch.pt", weights_only=True)
    library, _, checkpointing = name.partition(", ")
    importlib.import_module(library)
    before = resident_bytes()
    if library == "litgpt":
        model, loss_of = litgpt_loss()
    else:
        model, loss_of = transformers_loss(folder, checkpointing=bool(checkpointing))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    told(before, losses)


def contestant(name: str, folder: Path, steps: int) -> None:
    """Be one of them."""
    torch.manual_seed(FIRST_SEED)
    if name in OURS:
        ours(folder, steps, OURS[name])
    else:
        peer(name, folder, steps)


def measured(name: str, folder: Path, steps: int) -> dict[str, Any]:
    """What a contestant tells of itself."""
    done = subprocess.run(
        [sys.executable, __file__, "contestant", name, str(folder), str(steps)],
        stdout=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{name}: status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{name:<28}{found['taken'] / 1e9:6.2f} GB and {found['before'] / 1e9:.2f} GB before the"
        f" model, first loss {found['first_loss']:.5f}",
        flush=True,
    )
    return found


def main(steps: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpt2_folder(SHAPE, folder)
        found = {each: measured(each, folder, steps) for each in CONTESTANTS}
    first = found["minigpt"]["first_loss"]
    for each in CONTESTANTS:
        apart = abs(found[each]["first_loss"] - first) / first
        assert apart < SAME or each == "litgpt", (
            f"{each}: the loss of the first step is {apart} off"
        )
    best = min(PEERS, key=lambda each: found[each]["taken"])
    ratios = {each: found[each]["taken"] / found[best]["taken"] for each in CONTESTANTS}
    keep(
        "step_memory",
        facts,
        {
            "shape": SHAPE._asdict(),
            "steps": steps,
            "bytes": found,
            "peers": {each: version(each) for each in PEERS},
            "best_peer": best,
            "over_best_peer": ratios,
            "targets": TARGETS,
            "reached": {each: ratios[each] <= most for each, most in TARGETS.items()},
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["contestant"]:
        contestant(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main(**options(sys.argv[1:], steps=2))

"""What is about to be done, shown before the first step."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from minigpt.config import TrainConfig
from minigpt.defaults import Device, device_count
from minigpt.model.gpt import GPT
from minigpt.progress import clock
from minigpt.run_folder import LAST, as_seen_from_here
from minigpt.training.memory import Memory, gigabytes, suggestions
from minigpt.training.optimizer import optimizer_name
from minigpt.training.progress import table
from minigpt.training.resume import Start
from minigpt.training.schedule import learning_rate

#: The share of a device's matrix rate that a training step of a small model reaches; only for
#: the plan's estimate of the time.
_REACHED = 0.4


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the plan says of the data; `train_tokens` is None of a stream."""

    description: str
    train_tokens: int | None
    validation_tokens: int
    rows_per_step: int
    tokens_per_step: int
    row_length: int


def plan(
    model: GPT,
    config: TrainConfig,
    device: Device,
    data: DataFacts,
    folder: Path,
    start: Start,
    *,
    memory: Memory,
) -> str:
    """The plan as lines of text."""
    parameters = model.parameter_count()
    steps = config.trainer.max_steps
    assert steps is not None
    first_step = start.record.get("step", 0)
    seconds = (steps - first_step) * _step_seconds(model, data.tokens_per_step)
    lines = {"run": f"{folder}"}
    if start.checkpoint is not None:
        changes = ", ".join(start.changes) or "no setting changed"
        lines["goes on"] = f"from step {first_step} of {start.checkpoint}; {changes}"
        if start.folder is not None and start.checkpoint.name != LAST.name:
            lines["goes on"] += "; what the run had after that step is given up"
    elif config.init_from:
        lines["begins as"] = str(as_seen_from_here(Path(config.init_from)))
    lines |= {
        "data": data.description,
        "tokens": f"{_amount(data.train_tokens)} to train on, {data.validation_tokens:,} held out",
        "model": model.shape(),
        "positions": _positions(config),
        "parameters": (
            f"{parameters:,}, {model.parameter_count(embeddings=False):,} without embeddings"
        ),
        "steps": (
            f"{steps:,} of {data.rows_per_step} row{'s' * (data.rows_per_step != 1)},"
            f" about {data.tokens_per_step:,} tokens each"
        ),
        "optimizer": (
            f"{optimizer_name(config.optim.kind)}, learning rate {config.optim.lr:.3g}"
            + (f" ({learning_rate(first_step, config.optim):.3g} now)" if first_step else "")
        ),
        "device": f"{device.name}, {config.trainer.precision}{_processes(config, device)}",
        "memory": _memory(memory),
        "time": f"about {clock(seconds)}, without validation and the samples at the end",
    }
    if config.compile:
        lines["time"] += "; before it the model is compiled, which may take a minute or more"
    return table(lines)


def _processes(config: TrainConfig, device: Device) -> str:
    count = device_count(config.trainer.devices, device) * config.trainer.num_nodes
    return f", {count} processes; memory is that of each" if count > 1 else ""


def _amount(tokens: int | None) -> str:
    return "a stream" if tokens is None else f"{tokens:,}"


def _positions(config: TrainConfig) -> str:
    """The positional table, and what an odd width makes of it."""
    odd = config.model.position == "sinusoidal" and config.model.n_embd % 2
    note = "; the width is odd, so the last sine has no cosine" if odd else ""
    return f"{config.model.position}{note}"


def _memory(memory: Memory) -> str:
    """The peak and the room for it; a line more where that is too little."""
    needed, room = gigabytes(memory.predicted), gigabytes(memory.room)
    line = f"about {needed} at the peak; there is room for {room}"
    if memory.predicted > memory.room:
        line += f"\nwarning: memory may run out. Lower one of: {suggestions(memory)}"
    return line


def _step_seconds(model: GPT, tokens: int) -> float:
    """Time of a step at the matrix rate that the machine shows at the model's width.

    A step is 6 operations a parameter and token (Kaplan et al. 2020, section 2.1).
    """
    weight = next(model.parameters())
    width = model.config.n_embd
    a = torch.randn(1024, width, device=weight.device, dtype=weight.dtype)
    b = torch.randn(width, 4 * width, device=weight.device, dtype=weight.dtype)
    seconds: list[float] = []
    for _ in range(10):  # the best of them: the first ones wait for threads and memory
        started = time.perf_counter()
        (a @ b).sum().item()
        seconds.append(time.perf_counter() - started)
    rate = 2 * a.numel() * b.shape[1] / min(seconds)
    return 6 * model.parameter_count() * tokens / (rate * _REACHED)

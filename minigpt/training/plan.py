"""What is about to be done, shown before the first step."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from minigpt.config import TrainConfig
from minigpt.defaults import Device
from minigpt.model.gpt import GPT
from minigpt.training.progress import clock, table
from minigpt.training.resume import Start

_BYTES = {"32-true": 4, "64-true": 8, "bf16-mixed": 2, "16-mixed": 2}
#: The share of a device's matrix rate that a training step of a small model reaches; only for
#: the plan's estimate of the time.
_REACHED = 0.4


@dataclass(frozen=True, slots=True)
class DataFacts:
    """What the plan says of the data."""

    description: str
    train_tokens: int
    validation_tokens: int
    rows_per_step: int
    tokens_per_step: int
    row_length: int


def plan(
    model: GPT, config: TrainConfig, device: Device, data: DataFacts, folder: Path, start: Start
) -> str:
    """The plan as lines of text."""
    parameters = model.parameter_count()
    steps = config.trainer.max_steps
    assert steps is not None
    first_step = start.record.get("step", 0)
    seconds = (steps - first_step) * _step_seconds(model, data.tokens_per_step)
    processes = int(config.trainer.devices) if config.trainer.devices.isdigit() else 1
    lines = {"run": f"{folder}"}
    if start.checkpoint is not None:
        changes = ", ".join(start.changes) or "no setting changed"
        lines["goes on"] = f"from step {first_step} of {start.checkpoint}; {changes}"
    lines |= {
        "data": data.description,
        "tokens": f"{data.train_tokens:,} to train on, {data.validation_tokens:,} held out",
        "model": model.shape(),
        "positions": _positions(config),
        "parameters": (
            f"{parameters:,}, {model.parameter_count(embeddings=False):,} without embeddings"
        ),
        "steps": (
            f"{steps:,} of {data.rows_per_step} row{'s' * (data.rows_per_step != 1)},"
            f" about {data.tokens_per_step:,} tokens each, learning rate {config.optim.lr:.3g}"
        ),
        "device": f"{device.name}, {config.trainer.precision}",
        "memory": f"about {_memory(model, config, data, processes) / 1e9:.2g} GB",
        "time": f"about {clock(seconds)}, without validation and the samples at the end",
    }
    return table(lines)


def _positions(config: TrainConfig) -> str:
    """The positional table, and what an odd width makes of it."""
    odd = config.model.position == "sinusoidal" and config.model.n_embd % 2
    note = "; the width is odd, so the last sine has no cosine" if odd else ""
    return f"{config.model.position}{note}"


def _memory(model: GPT, config: TrainConfig, data: DataFacts, processes: int) -> float:
    """Bytes: weights, gradients and AdamW's two moments, and one micro-batch's activations.

    A block keeps about 17 values of the width for its backward pass: two norms with their inputs
    (4), queries, keys and values (3), attention's output (1), the residual sums (1) and the MLP
    before and after its nonlinearity (8). The head keeps logits, probabilities and gradient.
    """
    assert config.trainer.precision is not None
    rows = data.rows_per_step / config.trainer.accumulate_grad_batches / processes
    positions = rows * data.row_length
    shape = config.model
    activations = positions * 17 * shape.n_embd * shape.n_layer
    full = 8 if config.trainer.precision == "64-true" else 4
    logits = positions * model.vocab_size * 3
    return (
        4 * full * model.parameter_count()
        + _BYTES[config.trainer.precision] * activations
        + full * logits
    )


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

"""The settings that depend on the model's size or on the device, filled in one place.

`fill` runs once, after composition and before anything slow; what it chose is shown in the plan
and saved with the config, and a resume uses the saved values.
"""

import dataclasses
import math

from minigpt.compiler import check_compiler
from minigpt.config import TrainConfig, TrainerConfig
from minigpt.errors import InputError

#: The share of a new model's learning rate and steps that one has which starts from another's.
FINE_TUNING = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What training runs on: `kind` is cpu, cuda or mps; `fast_bf16` whether it has bfloat16."""

    kind: str
    name: str
    count: int
    fast_bf16: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Preset:
    """Defaults for models up to a width."""

    below_width: float
    optimizer: str
    vocab_size: int
    batch_size: int
    max_steps: int
    batch_size_cpu: int
    max_steps_cpu: int


_PRESETS = (
    _Preset(256, "muon", 1024, 64, 4000, 32, 1250),
    _Preset(768, "muon", 4096, 64, 4000, 32, 450),
    _Preset(float("inf"), "adamw", 50257, 32, 100_000, 8, 2000),
)


def find_device(accelerator: str) -> Device:
    """The device that `trainer.accelerator` means on this machine.

    Raises `InputError` if it asks for one that is not there.
    """
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        fast_bf16 = torch.cuda.get_device_capability()[0] >= 8
        count = torch.cuda.device_count()
        return Device("cuda", torch.cuda.get_device_name(), count, fast_bf16)
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return Device("mps", "Apple GPU", 1, fast_bf16=False)
    if accelerator in ("auto", "cpu"):
        # float32 is a CPU's fast type unless it has matrix units, which torch does not tell of
        threads = torch.get_num_threads()
        name = f"CPU, {threads} thread{'s' * (threads != 1)}"
        return Device("cpu", name, 1, fast_bf16=False)
    raise InputError(f"trainer.accelerator={accelerator}: this machine has none; use cpu or auto")


def fill(config: TrainConfig, device: Device) -> TrainConfig:
    """A copy of `config` with no null left that depends on size or device.

    Raises `InputError` for a precision, a strategy, a number of processes or a compiler that cannot
    be had.
    """
    from minigpt.data.order import rows_per_micro_batch

    if config.compile:
        check_compiler(device.kind)
    on_cpu = device.kind == "cpu"
    preset = next(p for p in _PRESETS if config.model.n_embd < p.below_width)
    share = FINE_TUNING if config.init_from else 1.0
    vocab_size = config.tokenizer.vocab_size
    if config.tokenizer.kind == "bpe":  # the others have the tokens that they have
        vocab_size = vocab_size or preset.vocab_size
    steps = preset.max_steps_cpu if on_cpu else preset.max_steps
    max_steps = config.trainer.max_steps or round(share * steps)
    decay_steps = config.optim.decay_steps or max_steps
    warmup = config.optim.warmup_steps
    batch_size = config.data.batch_size
    if batch_size is None:
        batch_size = preset.batch_size_cpu if on_cpu else preset.batch_size
    processes = device_count(config.trainer.devices, device) * config.trainer.num_nodes
    _check_strategy(config.trainer, device, processes)
    fsdp = config.trainer.strategy == "fsdp"
    if config.optim.kind == "muon" and fsdp:
        raise InputError("optim.kind=muon: needs whole matrices, which fsdp divides; use ddp")
    # a model goes on best with the optimizer that most of the published ones were trained with
    optimizer = config.optim.kind or ("adamw" if fsdp or config.init_from else preset.optimizer)
    if config.overfit and config.trainer.accumulate_grad_batches != 1:
        raise InputError("trainer.accumulate_grad_batches: overfit=true trains on one batch; use 1")
    if config.overfit and processes != 1:
        raise InputError(
            f"trainer.devices={config.trainer.devices}: overfit=true trains on one batch, which is"
            " not divided; use trainer.devices=1 trainer.num_nodes=1"
        )
    if not config.overfit:
        rows_per_micro_batch(batch_size, config.trainer.accumulate_grad_batches, processes)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, batch_size=batch_size),
        tokenizer=dataclasses.replace(config.tokenizer, vocab_size=vocab_size),
        optim=dataclasses.replace(
            config.optim,
            kind=optimizer,
            lr=config.optim.lr or share * peak_learning_rate(config.model.n_embd, optimizer),
            decay_steps=decay_steps,
            warmup_steps=min(500, decay_steps // 20) if warmup is None else warmup,
        ),
        trainer=dataclasses.replace(
            config.trainer,
            max_steps=max_steps,
            precision=_precision(config.trainer.precision, device),
            val_check_interval=config.trainer.val_check_interval or max(1, max_steps // 10),
        ),
    )


def peak_learning_rate(n_embd: int, kind: str) -> float:
    """A learning rate for the optimizer `optim.kind` at a width.

    It falls as the width grows, since the spread of a layer's output for a given change of its
    weights grows with it: as fast for AdamW, whose changes of different inputs' weights point the
    same way (Yang et al. 2022, "Tensor Programs V"), and with its root for Muon, whose changes are
    orthogonal.
    """
    return min(4e-3, 0.045 / math.sqrt(n_embd) if kind == "muon" else 0.5 / n_embd)


def device_count(devices: str, device: Device) -> int:
    """How many processes a machine runs; any number on a CPU.

    Raises `InputError` if it has fewer devices.
    """
    if devices == "auto":
        return device.count
    count = int(devices)
    if device.kind != "cpu" and count > device.count:
        raise InputError(f"trainer.devices={count}: this machine has {device.count}")
    return count


def _check_strategy(trainer: TrainerConfig, device: Device, processes: int) -> None:
    if trainer.strategy == "fsdp" and device.kind != "cuda":
        raise InputError(
            f"trainer.strategy=fsdp: divides a model over the memory of CUDA GPUs, this is"
            f" {device.name}; use ddp"
        )
    if trainer.strategy == "fsdp" and trainer.precision == "64-true":
        raise InputError("trainer.strategy=fsdp: has no float64; use trainer.precision=32-true")
    if device.kind == "mps" and (processes > 1 or trainer.strategy != "auto"):
        raise InputError(
            f"trainer.strategy={trainer.strategy}: an Apple GPU works alone; use"
            " trainer.strategy=auto trainer.num_nodes=1, or trainer.accelerator=cpu"
        )


def _precision(asked: str | None, device: Device) -> str:
    if asked is None:
        if device.kind == "cuda":
            return "bf16-mixed" if device.fast_bf16 else "16-mixed"
        return "32-true"
    if asked == "16-mixed" and device.kind != "cuda":
        raise InputError(
            f"trainer.precision=16-mixed: needs a CUDA GPU, this is {device.name}; use 32-true"
        )
    if asked == "bf16-mixed" and device.kind != "cpu" and not device.fast_bf16:
        raise InputError(
            f"trainer.precision=bf16-mixed: {device.name} has no bfloat16; use 32-true"
            + (" or 16-mixed" if device.kind == "cuda" else "")
        )
    if asked == "64-true" and device.kind == "mps":
        raise InputError("trainer.precision=64-true: an Apple GPU has no float64; use 32-true")
    return asked

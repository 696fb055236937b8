"""Train a mini-GPT: `python train.py`, every setting as key=value; `--help` lists them."""

import contextlib
import ctypes
import dataclasses
import logging
import os
import sys
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.command_line import run
from minigpt.config import TrainConfig
from minigpt.errors import RunError

#: Options of glibc's `mallopt`, from its malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

if TYPE_CHECKING:
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    from minigpt.checkpoint import LoadedModel
    from minigpt.data.token_store import PreparedData
    from minigpt.defaults import Device
    from minigpt.model.gpt import GPT
    from minigpt.training.callbacks import Milestones
    from minigpt.training.datamodule import CorpusBatches
    from minigpt.training.lightning_module import LanguageModel
    from minigpt.training.resume import Start


def main(config: TrainConfig, named: Collection[str]) -> int:
    """Train as the config says; `named` are the keys that this command set. The exit status."""
    started = time.monotonic()
    from minigpt.data.token_store import prepare
    from minigpt.defaults import fill, find_device
    from minigpt.training.resume import find_start, load_origin

    start = find_start(config, named)
    if config.resume and start.checkpoint is None:
        say(f"resume={config.resume}: there is no checkpoint yet; a new run begins")
    device = find_device(start.config.trainer.accelerator)
    config = fill(start.config, device)
    if start.is_finished(config):
        say(
            f"nothing to do: {start.checkpoint} is at step {start.record['step']} and"
            f" trainer.max_steps={config.trainer.max_steps}"
            + (f", its loss {start.record['train_loss']:.5f}" if config.overfit else "")
        )
        return 0
    origin = load_origin(start, named)
    if origin is not None:
        config = dataclasses.replace(config, model=origin.model.config)
    data = prepare(
        config.data,
        origin.tokenizer if origin else config.tokenizer,
        trained_on=start.record.get("data"),
        say=say,
    )

    return fit(config, start, origin, data, device, started)


def fit(
    config: TrainConfig,
    start: "Start",
    origin: "LoadedModel | None",
    data: "PreparedData",
    device: "Device",
    started: float,
) -> int:
    """Build, train, report; the exit status. `started` is the process's `time.monotonic()`."""
    from minigpt.run_folder import create_run_folder, shown_command
    from minigpt.training.callbacks import Milestones
    from minigpt.training.datamodule import CorpusBatches
    from minigpt.training.lightning_module import LanguageModel
    from minigpt.training.plan import plan
    from minigpt.training.summary import write_config
    from minigpt.training.tracker import closed_at_the_end

    keep_freed_memory()
    module = LanguageModel.for_run(config, data, start, origin)
    batches = CorpusBatches(data, config)
    if config.doctor and not is_child():
        examine(module.model, batches, fresh=origin is None)
    folder = start.folder or create_run_folder(config.run_dir)
    milestones = Milestones(config, folder, batches, writes_files=not is_child())
    trainer = build_trainer(config, folder, milestones, module.record["run_id"])
    if trainer.is_global_zero:
        write_config(folder, config)
        say(plan(module.model, config, device, batches.facts(), folder, start))
    with milestones, closed_at_the_end(config.logger.kind):
        trainer.fit(module, datamodule=batches, ckpt_path=start.checkpoint, weights_only=True)
    if not trainer.is_global_zero:
        return 0
    if not trainer.global_step:
        raise RunError(f"trainer.max_time={config.trainer.max_time} was over before the first step")
    if status := milestones.stop.exit_status:
        say(f"stopped and saved at step {trainer.global_step}; go on with:")
        say(shown_command("train.py", "resume", str(folder)))
        return status
    report(config, folder, module, batches, device.kind, started=started)
    return 0


def report(
    config: TrainConfig,
    folder: Path,
    module: "LanguageModel",
    batches: "CorpusBatches",
    device: str,
    *,
    started: float,
) -> None:
    """Judge what the run has made, write it down and say it."""
    from minigpt.training.summary import finish, finish_overfit

    if batches.overfit is not None:
        finish_overfit(
            folder, module.record, batches.data, batches.overfit,
            device=device, started=started, say=say,
        )  # fmt: skip
    else:
        finish(
            config, folder, module.record, batches.data, batches.validation,
            device=device, started=started, say=say,
        )  # fmt: skip


def examine(model: "GPT", batches: "CorpusBatches", *, fresh: bool) -> None:
    """Look for faults in what takes a moment to look at; `RunError` if there is one."""
    from minigpt.doctor.examination import examine_before_training
    from minigpt.doctor.finding import Subject

    first = batches.training_batches()[0]
    examine_before_training(Subject.of(model, first, fresh=fresh, store=batches.data.train), say)


def build_trainer(
    config: TrainConfig, folder: Path, milestones: "Milestones", run_id: str
) -> "L.Trainer":
    """Lightning's Trainer with the run's own milestones in place of its saving and validation."""
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    from minigpt.training.callbacks import AtomicCheckpointIO
    from minigpt.training.tracker import build_tracker

    quiet_lightning()
    settings = config.trainer
    devices = int(settings.devices) if settings.devices.isdigit() else settings.devices
    if devices != 1 and not is_child():
        # Lightning starts the other processes by this command line: they share the folder
        sys.argv.append(f"run_dir={folder}")
    return L.Trainer(
        accelerator=settings.accelerator,
        devices=devices,
        num_nodes=settings.num_nodes,
        strategy=settings.strategy,
        precision=settings.precision,  # pyright: ignore[reportArgumentType]  (checked by the schema)
        max_steps=settings.max_steps or -1,
        max_epochs=-1,
        max_time=settings.max_time,
        accumulate_grad_batches=settings.accumulate_grad_batches,
        deterministic=settings.deterministic,
        benchmark=settings.benchmark,
        detect_anomaly=settings.detect_anomaly,
        profiler=settings.profiler,
        logger=build_tracker(config, folder, run_id, say) or False,
        callbacks=[milestones],
        plugins=[AtomicCheckpointIO()],
        limit_val_batches=0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def quiet_lightning() -> None:
    """Leave what a run says to this program's own plan and progress."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    # reading a batch from the memory-mapped store is far cheaper than sending it between processes
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # Lightning's own use of torch
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one.

    By default it gives large blocks back to the system at once, which then has to clear each page
    of them again: tens of thousands of page faults a step at `model=small` on a CPU.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # older versions take no more than 32 MiB
        if mallopt(M_MMAP_THRESHOLD, 2**31 - 1) or mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def is_child() -> bool:
    """Whether this is a process that another one of the same run has started."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0


def say(text: str) -> None:
    """Print for a person, once however many processes there are."""
    if not is_child():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run(main, TrainConfig, "train"))

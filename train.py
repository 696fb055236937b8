"""Train a mini-GPT: `python train.py`, every setting as key=value; `--help` lists them."""

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt.command_line import nothing_thrown_away, run
from minigpt.config import TrainConfig
from minigpt.errors import RunError
from minigpt.training.processes import check_started, in_turn, is_first, together

if TYPE_CHECKING:
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    from minigpt.checkpoint import LoadedModel
    from minigpt.data.preparation import PreparedData
    from minigpt.defaults import Device
    from minigpt.model.gpt import GPT
    from minigpt.training.callbacks import Milestones
    from minigpt.training.datamodule import CorpusBatches
    from minigpt.training.resume import Start
    from minigpt.training.summary import RunEnd


def main(config: TrainConfig, named: Collection[str]) -> int:
    """Train as the config says; `named` are the keys that this command set. The exit status."""
    started = time.monotonic()
    with nothing_thrown_away():
        from minigpt.data.preparation import prepare
        from minigpt.defaults import device_count, fill, find_device
        from minigpt.training.origin import load_origin, with_settings_of
        from minigpt.training.resume import find_start, load_resumed

    start = find_start(config, named)
    if config.resume and start.checkpoint is None:
        say(f"resume={config.resume}: there is no checkpoint yet; a new run begins")
    device = find_device(start.config.trainer.accelerator)
    config, origin = start.config, None
    if start.checkpoint is None and (origin := load_origin(config, named, say)) is not None:
        config = with_settings_of(origin, config)
    config = fill(config, device)
    check_started(device_count(config.trainer.devices, device), config.trainer.num_nodes)
    if start.is_finished(config) and not start.lacks_report():
        say(
            f"nothing to do: {start.checkpoint} is at step {start.record['step']} and"
            f" trainer.max_steps={config.trainer.max_steps}"
            + (
                f", its loss {start.record['train_loss']:.5f}"
                if config.overfit
                else "; a larger one goes on"
            )
        )
        return 0
    origin = origin or load_resumed(start)
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
    with nothing_thrown_away():
        from minigpt.defaults import device_count
        from minigpt.run_folder import create_run_folder, held
        from minigpt.training.callbacks import Milestones
        from minigpt.training.datamodule import CorpusBatches
        from minigpt.training.heap import keep_freed_memory
        from minigpt.training.lightning_module import LanguageModel
        from minigpt.training.memory import check_room, explained_out_of_memory, memory_of_run
        from minigpt.training.plan import plan
        from minigpt.training.summary import RunEnd, write_config
        from minigpt.training.tracker import closed_at_the_end

    module = LanguageModel.for_run(config, data, start, origin)
    batches = CorpusBatches(data, config)
    devices = device_count(config.trainer.devices, device)
    largest = batches.largest_batches(devices * config.trainer.num_nodes)
    memory = memory_of_run(config, module.model, largest, device.kind)
    check_room(memory)
    keep_freed_memory(keep=memory.kept)
    if config.doctor and is_first():
        examine(module.model, batches, fresh=origin is None)
    folder = (start.folder or create_run_folder(config.run_dir)) if is_first() else None
    milestones = Milestones(config, folder, start, batches)
    with contextlib.ExitStack() as ended:
        if folder is not None:
            ended.enter_context(held(folder))
        ended.callback(batches.close)
        trainer = build_trainer(config, devices, folder, milestones, module.record)
        ended.enter_context(closed_at_the_end(trainer.loggers))
        if folder is not None:
            write_config(folder, config)
            facts = batches.facts()
            say(plan(module.model, config, device, facts, folder, start, memory=memory))
        # the others start from what this one has found, whatever has changed since
        command = [*sys.argv[1:], f"resume={start.checkpoint or ''}"]
        others = together(devices, config.trainer.num_nodes, Path(__file__), command)
        if not start.is_finished(config):
            with others, milestones, explained_out_of_memory(memory):
                trainer.fit(
                    module, datamodule=batches, ckpt_path=start.checkpoint, weights_only=True
                )
        if folder is None:
            return 0
        record, trackers = module.record, trainer.loggers
        end = RunEnd(config, folder, record, data, memory, trackers, started, say)
        return conclude(end, milestones.exit_status, batches)


def conclude(end: "RunEnd", stopped: int, batches: "CorpusBatches") -> int:
    """Say how to go on with a run that a signal stopped, or judge what a run at its end has made.

    `stopped` is the exit status of the signal, 0 without one.
    """
    from minigpt.run_folder import shown_command
    from minigpt.training.summary import finish, finish_overfit

    step = end.record.get("step")
    if stopped and step:
        say(f"stopped and saved at step {step}; go on with:")
        say(shown_command("train.py", "resume", str(end.folder)))
    elif stopped:
        say("stopped before the first step: there is nothing to save")
    elif not step:
        limit = end.config.trainer.max_time
        raise RunError(f"trainer.max_time={limit} was over before the first step")
    elif batches.overfit is not None:
        finish_overfit(end, batches.overfit)
    else:
        finish(end, batches.validation, floor=batches.floor_loss)
    return stopped


def examine(model: "GPT", batches: "CorpusBatches", *, fresh: bool) -> None:
    """Look for faults in what takes a moment to look at; `RunError` if there is one."""
    from minigpt.doctor.examination import examine_before_training
    from minigpt.doctor.finding import Subject

    first = batches.training_batches()[0]
    examine_before_training(Subject.of(model, first, fresh=fresh, store=batches.data.train), say)


def build_trainer(
    config: TrainConfig,
    devices: int,
    folder: Path | None,
    milestones: "Milestones",
    record: dict[str, Any],
) -> "L.Trainer":
    """Lightning's Trainer with the run's own milestones in place of its saving and validation."""
    import lightning as L  # noqa: N812  (Lightning's own name for it)

    from minigpt.training.strategy import build_strategy, cluster_environment
    from minigpt.training.tracker import build_tracker

    quiet_lightning()
    settings = config.trainer
    tracker = None
    if folder is not None:
        first_step = record.get("step", 0)
        tracker = build_tracker(config, folder, record["run_id"], say, first_step=first_step)
    return L.Trainer(
        accelerator=settings.accelerator,
        devices=devices,
        num_nodes=settings.num_nodes,
        strategy=build_strategy(settings.strategy, devices * settings.num_nodes),
        precision=settings.precision,  # pyright: ignore[reportArgumentType]  (checked by the schema)
        max_steps=settings.max_steps or -1,
        max_epochs=-1,
        max_time=settings.max_time,
        accumulate_grad_batches=settings.accumulate_grad_batches,
        deterministic=settings.deterministic,
        benchmark=settings.benchmark,
        detect_anomaly=settings.detect_anomaly,
        profiler=settings.profiler,
        logger=tracker or False,
        callbacks=[milestones],
        plugins=[milestones.writer, cluster_environment()],
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


def say(text: str) -> None:
    """Print for a person, once however many processes there are."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(in_turn(lambda: run(main, TrainConfig, "train")))

"""Where a run starts: afresh, or from a checkpoint, with the settings that then hold."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minigpt.checkpoint import RECORD, LoadedModel, load_model, read_checkpoint
from minigpt.config import TrainConfig, check, from_plain
from minigpt.errors import InputError
from minigpt.run_folder import (
    BEST,
    LAST,
    check_run_dir,
    find_checkpoint,
    latest_run,
    run_folder_of,
)
from minigpt.settings import set_value, shown, value_of
from minigpt.training.samples import OVERFIT_LOSS

#: What a resumed run may be told anew. The rest (the model, the tokenizer, the data and their
#: order, the seed) makes it the run it is.
MAY_CHANGE = (
    "optim.",
    "saving.",
    "trainer.",
    "logger.",
    "compile",
    "data.num_workers",
    "data.cache_dir",
    "data.path",  # the text has to be the same: `prepare` sees to it
    "data.val_path",
    "sample_every_n_steps",
)
#: Where the run is and what to do with it; no part of what it is.
_OF_THE_COMMAND = ("run_dir", "resume", "init_from", "doctor")


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """The settings a run has and, if it goes on, its folder, checkpoint, and what was changed."""

    config: TrainConfig
    folder: Path | None = None
    checkpoint: Path | None = None
    record: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    changes: tuple[str, ...] = ()

    def is_finished(self, config: TrainConfig) -> bool:
        """Whether the checkpoint is at the last step already, or has learned its one batch."""
        assert config.trainer.max_steps is not None
        if self.checkpoint is None:
            return False
        learned = config.overfit and self.record["train_loss"] < OVERFIT_LOSS
        return learned or self.record["step"] >= config.trainer.max_steps


def find_start(config: TrainConfig, named: Iterable[str]) -> Start:
    """Decide where a run starts; makes nothing.

    A resumed run's settings are those in its checkpoint; of `config` only the keys in `named`
    count, and each that differs must be one that may change. Raises `InputError` otherwise, where
    an explicit `resume` has no checkpoint, or where a new run's folder is taken.
    """
    checkpoint = _checkpoint_to_resume(config)
    if checkpoint is None:
        check(dataclasses.replace(config, resume=""))
        check_run_dir(config.run_dir)
        return Start(config)
    record = read_checkpoint(checkpoint)[RECORD]
    resumed, changes = merge(record["config"], config, named)
    folder = run_folder_of(checkpoint)
    if config.run_dir and folder != Path(config.run_dir).resolve():
        check_run_dir(config.run_dir)
        folder = None
    if folder is None or not (folder / BEST).is_file():  # its loss is that of a file left behind
        record = {key: value for key, value in record.items() if not key.startswith("best_")}
    return Start(resumed, folder, checkpoint, record, tuple(changes))


def _checkpoint_to_resume(config: TrainConfig) -> Path | None:
    if not config.resume:
        return None
    if config.resume != "auto":
        return find_checkpoint(config.resume, for_resuming=True)
    folder = Path(config.run_dir) if config.run_dir else latest_run()
    if folder is None or not any((folder / LAST.parent).glob("*.ckpt")):
        return None
    return find_checkpoint(str(folder), for_resuming=True)


def merge(
    saved: dict[str, Any], config: TrainConfig, named: Iterable[str]
) -> tuple[TrainConfig, list[str]]:
    """The saved settings with what the command line names put over them, and what changed.

    Raises `InputError` for a change that would make it another run.
    """
    merged = from_plain(TrainConfig, saved | {"resume": ""})
    changes: list[str] = []
    for key in sorted(named):
        old, asked = value_of(merged, key), value_of(config, key)
        if key in _OF_THE_COMMAND or asked is None or asked == old:
            continue
        if not key.startswith(MAY_CHANGE):
            raise InputError(
                f"{key}={shown(asked)}: a resumed run keeps {key}={shown(old)};"
                " start a new run to change it"
            )
        set_value(merged, key, asked)
        changes.append(f"{key}: {shown(old)} -> {shown(asked)}")
    check(merged)
    for key in _OF_THE_COMMAND:
        set_value(merged, key, value_of(config, key))
    return merged, changes


def load_origin(start: Start, named: Iterable[str]) -> LoadedModel | None:
    """The model and tokenizer that a run starts from: its own, those of `init_from`, or None.

    A resumed run gets its weights again from Lightning, with the optimizer's state. Raises
    `InputError` for settings that `init_from` has decided.
    """
    if start.checkpoint is not None:
        return load_model(start.checkpoint)
    if not start.config.init_from:
        return None
    for key in sorted(named):
        if key.startswith(("model.", "tokenizer.")):
            raise InputError(
                f"{key}: init_from={start.config.init_from} brings its own; leave it out"
            )
    return load_model(find_checkpoint(start.config.init_from))

"""Where a run starts: afresh, or from a checkpoint, with the settings that then hold."""

import copy
import dataclasses
import glob
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minigpt.checkpoint import (
    RECORD,
    LoadedModel,
    build_model,
    check_record,
    read_checkpoint,
    settings_of,
)
from minigpt.config import TrainConfig, check
from minigpt.errors import InputError
from minigpt.run_folder import (
    BEST,
    LAST,
    check_run_dir,
    check_writable,
    expanded,
    find_checkpoint,
    latest_run,
    run_folder_of,
)
from minigpt.settings import set_value, shown, value_of
from minigpt.training.origin import place_of_origin
from minigpt.training.samples import OVERFIT_LOSS
from minigpt.training.training_state import check_training_state

#: What a resumed run may be told anew: settings, and groups that end in a dot. The rest (the model,
#: the tokenizer, the data and their order, the seed) makes it the run it is.
MAY_CHANGE = (
    "optim.",
    "saving.",
    "trainer.",
    "logger.",
    "compile",
    "activation_checkpointing",
    "data.num_workers",
    "data.cache_dir",
    "data.path",  # the text has to be the same: `prepare` sees to it
    "data.val_path",
    "data.name",
    "data.revision",
    "sample_every_n_steps",
)
#: What stays as it was in a group that may change: the state is that optimizer's.
KEPT = ("optim.kind",)
#: Where the run is and what to do with it; no part of what it is.
OF_THE_COMMAND = ("run_dir", "resume", "doctor")
#: What null stands for a derived value of (`defaults.fill`): named as null, they stay as they are.
DERIVED = (
    "data.batch_size",
    "tokenizer.vocab_size",
    "optim.kind",
    "optim.lr",
    "optim.decay_steps",
    "optim.warmup_steps",
    "trainer.max_steps",
    "trainer.precision",
    "trainer.val_check_interval",
)
#: What a checkpoint's record holds besides, for training to go on.
_TO_GO_ON: dict[str, type] = {
    "config": dict,
    "step": int,
    "tokens": int,
    "train_seconds": float,
    "train_loss": float,
    "run_id": str,
}


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

    def lacks_report(self) -> bool:
        """Whether the run ended, or was killed, after its last checkpoint and before its report."""
        if self.folder is None or not (self.folder / BEST).is_file():
            return False
        try:
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return summary["steps"] != self.record["step"]
        except (OSError, ValueError, TypeError, KeyError):
            return True


def find_start(config: TrainConfig, named: Iterable[str]) -> Start:
    """Decide where a run starts; makes nothing.

    A resumed run's settings are those in its checkpoint; of `config` only the keys in `named`
    count, and each that differs must be one that may change. Raises `InputError` otherwise, where
    an explicit `resume` has no checkpoint, or where the run's folder is taken or of no use.
    """
    config = with_full_paths(config)
    checkpoint = _checkpoint_to_resume(config)
    if checkpoint is None:
        check(dataclasses.replace(config, resume=""))
        check_run_dir(config.run_dir)
        return Start(config)
    record = read_checkpoint(checkpoint)[RECORD]
    resumed, changes = merge(_saved_config(checkpoint, record), config, named)
    folder = run_folder_of(checkpoint)
    if config.run_dir and folder != Path(config.run_dir).resolve():
        check_run_dir(config.run_dir)
        folder = None
    elif folder is not None:
        check_writable(folder, f"resume={config.resume}")
    measured_anew = any(each.startswith("trainer.limit_val_batches:") for each in changes)
    if folder is None or measured_anew or not _best_is_of(folder, checkpoint, record):
        record = {key: value for key, value in record.items() if not key.startswith("best_")}
    if folder is None:  # another run from here on, to a tracker too
        record = {key: value for key, value in record.items() if key != "run_id"}
    return Start(resumed, folder, checkpoint, record, tuple(changes))


def _best_is_of(folder: Path, checkpoint: Path, record: dict[str, Any]) -> bool:
    """Whether the folder's best checkpoint is the one that the record tells the loss of.

    It is not where the file was left behind, is damaged, or is of a later step than the one that
    the run goes back to.
    """
    best = folder / BEST
    if not best.is_file():
        return False
    if best.samefile(checkpoint):
        return True
    try:
        return read_checkpoint(best)[RECORD].get("step") == record.get("best_step")
    except InputError:
        return False


def with_full_paths(config: TrainConfig) -> TrainConfig:
    """The same with paths of data that mean the same from any folder, and `~` read in all.

    Raises `InputError` for a `~` that is nobody's home.
    """
    own = {key: expanded(key, value_of(config, key)) for key in ("run_dir", "resume", "init_from")}
    data = dataclasses.replace(
        config.data,
        path=[_full("data.path", place) for place in config.data.path],
        val_path=[_full("data.val_path", place) for place in config.data.val_path],
        name=_full_if_here("data.name", config.data.name),
        cache_dir=_full("data.cache_dir", config.data.cache_dir) if config.data.cache_dir else "",
    )
    path = _full_if_here("tokenizer.path", config.tokenizer.path)
    tokenizer = dataclasses.replace(config.tokenizer, path=path)
    return dataclasses.replace(config, **own, data=data, tokenizer=tokenizer)


def _full(key: str, place: str) -> str:
    """A path from the root. A glob stays one; the folder it is looked for in is taken literally."""
    path = Path(expanded(key, place))
    if path.is_absolute():
        return str(path)
    here = str(Path.cwd())
    return str(Path(here if path.exists() else glob.escape(here), path))


def _full_if_here(key: str, place: str) -> str:
    """A path from the root, if it is one: it may be a name at Hugging Face."""
    return _full(key, place) if place and Path(expanded(key, place)).exists() else place


def _saved_config(checkpoint: Path, record: dict[str, Any]) -> TrainConfig:
    """The settings in a checkpoint's record; `InputError` if training cannot go on from it."""
    check_record(checkpoint, record, _TO_GO_ON)
    optional = ("val_loss", "best_val_loss", "best_train_loss", "val_step", "best_step")
    check_record(checkpoint, record, {name: float for name in optional if name in record})
    try:
        return settings_of(record)
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(
            f"{checkpoint}: its settings cannot be used, perhaps it is of a newer version: {error}"
        ) from error


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
    saved: TrainConfig, config: TrainConfig, named: Iterable[str]
) -> tuple[TrainConfig, list[str]]:
    """The saved settings with what the command line names put over them, and what changed.

    Raises `InputError` for a change that would make it another run.
    """
    merged = with_full_paths(copy.deepcopy(saved))
    changes: list[str] = []
    for key in sorted(named):
        old, asked = value_of(merged, key), value_of(config, key)
        if key == "init_from":
            same = place_of_origin(config.init_from) == place_of_origin(merged.init_from)
        else:
            same = asked == old or (asked is None and key in DERIVED)
        if key in OF_THE_COMMAND or same:
            continue
        if not may_change(key):
            raise InputError(
                f"{key}={shown(asked)}: a resumed run keeps {key}={shown(old)};"
                " start a new run to change it"
            )
        set_value(merged, key, asked)
        changes.append(f"{key}: {shown(old)} -> {shown(asked)}")
    check(merged)
    for key in OF_THE_COMMAND:
        set_value(merged, key, value_of(config, key))
    return merged, changes


def may_change(key: str) -> bool:
    """Whether a resumed run may be told a setting anew."""
    in_group = f"{key.partition('.')[0]}." in MAY_CHANGE
    return key in MAY_CHANGE or (in_group and key not in KEPT)


def load_resumed(start: Start) -> LoadedModel | None:
    """The model and tokenizer of the checkpoint that a run goes on from, or None for a new run.

    Lightning gives it its weights again, with the optimizer's state.
    """
    if start.checkpoint is None:
        return None
    contents = read_checkpoint(start.checkpoint)
    loaded = build_model(start.checkpoint, contents)
    check_training_state(start.checkpoint, contents, loaded.model, start.config)
    return loaded

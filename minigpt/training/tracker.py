"""The tracker beside metrics.csv: W&B or TensorBoard, through Lightning's loggers."""

import contextlib
import netrc
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from minigpt.config import TrainConfig, plain


def build_tracker(
    config: TrainConfig, folder: Path, run_id: str, say: Callable[[str], None]
) -> Logger | None:
    """The tracker that `logger.kind` asks for; None for csv, which every run writes anyway.

    `run_id` is W&B's id of the run; one that goes on keeps it, so that its steps go on too.
    """
    match config.logger.kind:
        case "wandb":
            return _wandb(config, folder, run_id, say)
        case "tensorboard":
            from lightning.pytorch.loggers import TensorBoardLogger

            return TensorBoardLogger(folder, name="tensorboard", version="")
        case _:
            return None


@contextlib.contextmanager
def closed_at_the_end(kind: str) -> Generator[None, None, None]:
    """End W&B's run however training ends, so that the next run of this process is another."""
    try:
        yield
    finally:
        if kind == "wandb":
            import wandb

            wandb.finish()


def wandb_has_key() -> bool:
    """Whether W&B can go online without asking anybody: a key in the environment or in .netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = os.environ.get("NETRC") or Path.home() / ".netrc"
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _wandb(config: TrainConfig, folder: Path, run_id: str, say: Callable[[str], None]) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    offline = os.environ.get("WANDB_MODE") == "offline" or not wandb_has_key()
    if offline:
        say(f"W&B works offline, for want of a key; later: wandb sync {folder}/wandb/latest-run")
    mode = "offline" if offline else "online"
    arguments: dict[str, Any] = {"config": plain(config), "resume": "allow", "mode": mode}
    os.environ.setdefault("WANDB_SILENT", "true")
    return WandbLogger(
        project=config.logger.project,
        name=config.logger.name or folder.resolve().name,
        save_dir=folder,
        id=run_id,
        **arguments,
    )

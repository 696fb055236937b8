"""Checkpoints that are written while training goes on."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from minigpt.checkpoint import RECORD, read_checkpoint, write_checkpoint
from minigpt.errors import RunError
from minigpt.files import link_whole
from minigpt.run_folder import numbered_checkpoints, numbered_name, point_latest_at

#: The keys of a checkpoint that a run goes on from; the last is float16's loss scaling.
_RESTORED = ("state_dict", "optimizer_states", "global_step", RECORD, "MixedPrecision")


class CheckpointWriter(TorchCheckpointIO):
    """Lightning's way to the disk: a copy is made at once, and written by a thread of its own.

    One file is in the making at a time, whole or not at all (`write_checkpoint`). What went wrong
    in the thread is raised by the next call.
    """

    def __init__(self, *, keep: int):
        """Keep the newest `keep` numbered checkpoints; 0 leaves alone what there is."""
        self.keep = keep
        self._links: Sequence[Path] = ()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, trainer: L.Trainer, paths: Sequence[Path]) -> None:
        """Write the state of training, once, under each of `paths`; every process calls this.

        Raises `RunError` if the checkpoint before could not be written.
        """
        self._links = paths[1:]
        trainer.save_checkpoint(paths[0])

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Called by Lightning in the one process that writes."""
        del storage_options
        self.wait()
        contents = _copied(checkpoint)
        self._pending = self._thread.submit(self._write, contents, Path(path), self._links)

    def _write(self, contents: dict[str, Any], path: Path, links: Sequence[Path]) -> None:
        write_checkpoint(path, contents)
        try:
            for link in links:
                link_whole(path, link)
            if self.keep:
                newest = numbered_name(contents["global_step"])
                numbered = numbered_checkpoints(path.parent)
                # those of later steps are from before the run went back
                past = [each for each in numbered if each.name <= newest]
                for old in past[: -self.keep]:
                    old.unlink()
        except OSError as error:
            raise RunError(f"cannot keep the checkpoint {path}: {error}") from error
        point_latest_at(path.parents[1])

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: Any = None
    ) -> dict[str, Any]:
        """What of a checkpoint Lightning is to act on, read as every checkpoint is.

        The rest (callbacks, hyperparameters, a datamodule's state, the version that decides how it
        is rewritten) is no part of a run, and is left out whatever the file says.
        """
        del map_location, weights_only
        contents = read_checkpoint(Path(path))
        kept = {name: contents[name] for name in _RESTORED if name in contents}
        nothing: dict[str, Any] = {"epoch": 0, "callbacks": {}, "lr_schedulers": []}
        return kept | nothing | {"pytorch-lightning_version": L.__version__}

    def check(self) -> None:
        """Raise what the thread has met with so far; waits for nothing."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk, or raise why it is not."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Let the thread finish; an error of it that nobody waited for is passed over."""
        self._thread.shutdown()


def _copied(value: Any) -> Any:
    """A state as it is now, in the host's memory: training changes its tensors in place."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_copied(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value

"""What a run writes down and shows: metrics.csv, samples.txt, the trackers, and the screen."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from minigpt.config import TrainConfig
from minigpt.files import clear_unfinished
from minigpt.run_folder import LAST
from minigpt.training.divergence import SpikeWatch
from minigpt.training.metrics_file import MetricsFile, column, metric_fields, read_metrics
from minigpt.training.progress import Progress, Rate
from minigpt.training.samples import SamplesFile
from minigpt.training.tracker import record_sample

#: Validations without a new best, while the training loss still falls, before a warning.
PATIENCE = 5


class RunLog:
    """The record of a run on disk and screen; of several processes only the first keeps one.

    It goes on where the checkpoint was made: what was written after that is cut away. What must
    survive a stop is in `record`, a checkpoint's part that is ours.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        record: dict[str, Any],
        trackers: Sequence[Logger],
        *,
        step: int,
    ):
        assert config.trainer.max_steps is not None
        assert config.trainer.val_check_interval is not None
        self.record = record
        self._trackers = trackers
        self._max_steps = config.trainer.max_steps
        self._validation_name = "the batch now" if config.overfit else "validation loss"
        self._long_ago = PATIENCE * config.trainer.val_check_interval
        self._warned = False
        self._logged, self._shown = Rate(record), Rate(record)
        with contextlib.ExitStack() as opened:
            clear_unfinished(folder)
            clear_unfinished(folder / LAST.parent)
            path = folder / "metrics.csv"
            fields = metric_fields(config.model.n_layer)
            self._metrics = MetricsFile(path, fields, last_step=step)
            opened.callback(self._metrics.close)
            self._samples = SamplesFile(folder / "samples.txt", size=record["samples_size"])
            self._spikes = SpikeWatch(loss for _, loss in column(read_metrics(path), "train_loss"))
            self.progress = Progress(
                first_step=step,
                max_steps=self._max_steps,
                shown=config.trainer.enable_progress_bar,
            )
            opened.callback(self.progress.close)
            self.close = opened.pop_all().close

    def training(self, step: int, loss: float, **more: float) -> None:
        """A step's loss in nats a token, with its other figures."""
        self._write(
            step,
            {
                "tokens": self.record["tokens"],
                "train_loss": loss,
                **more,
                "seconds": round(self.record["train_seconds"], 3),
                "tokens_per_second": round(self._logged.since_last(), 1),
            },
        )
        usual = self._spikes.usual(loss)
        if usual is not None:
            self.progress.line(
                f"warning: step {step}: the training loss jumped to {loss:.4f} from about"
                f" {usual:.4f} (gradient norm {more['grad_norm']:.3g})"
            )

    def show(self, step: int, loss: float) -> None:
        """Let the display say where the run is."""
        self.progress.step(step, loss=loss, tokens_per_second=self._shown.since_last())

    def validation(self, step: int, **row: float) -> None:
        """The figures of a validation, `val_loss` among them; the record knows of it already."""
        record = self.record
        self._write(step, row)
        best = record["best_step"] == step
        self.progress.line(
            f"step {step}/{self._max_steps}: {self._validation_name} {row['val_loss']:.4f}"
            + (", best so far" if best else f", best {record['best_val_loss']:.4f}")
        )
        long_ago = step - record["best_step"] >= self._long_ago
        if long_ago and record["train_loss"] < record["best_train_loss"] and not self._warned:
            self._warned = True
            self.progress.line(
                f"warning: the validation loss was best at step {record['best_step']}"
                f" ({record['best_val_loss']:.4f}) and has been above that since, while the"
                " training loss falls: the model learns its training text by heart."
                " More text, a smaller model, or model.dropout may help"
            )

    def sample(self, step: int, text: str) -> None:
        """A text that the model has written."""
        self.record["samples_size"] = self._samples.append(step, text)
        record_sample(self._trackers, step, text)

    def _write(self, step: int, row: dict[str, float]) -> None:
        self._metrics.append({"step": step} | row)
        for tracker in self._trackers:
            tracker.log_metrics(row, step=step)

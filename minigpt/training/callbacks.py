"""What happens at a step boundary: log, validate, sample, save, stop — in that order."""

import contextlib
import math
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self, cast

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from minigpt.checkpoint import write_checkpoint
from minigpt.config import TrainConfig
from minigpt.data.batches import Batch
from minigpt.errors import RunError
from minigpt.run_folder import BEST, LAST, point_latest_at
from minigpt.training.datamodule import CorpusBatches
from minigpt.training.lightning_module import LanguageModel
from minigpt.training.loss import bits_per_byte
from minigpt.training.metrics_file import MetricsFile, metric_fields
from minigpt.training.progress import Progress, Rate
from minigpt.training.samples import OVERFIT_LOSS, sample_texts
from minigpt.training.signals import StopRequest, stop_on_signals
from minigpt.training.validation import attention_statistics, validation_loss

#: Validations without a new best, while the training loss still falls, before a warning.
PATIENCE = 5


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints through `write_checkpoint`: whole or not at all."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`."""
        del storage_options
        write_checkpoint(Path(path), checkpoint)


class Milestones(L.Callback):
    """Watches the steps of a run and does what is due after each.

    `record` of the module carries what must survive a stop: `tokens` and `train_seconds` so far,
    `val_loss` with its `val_step`, and `best_val_loss` with its `best_step`.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        batches: CorpusBatches,
        *,
        writes_files: bool,
    ):
        """`writes_files` is False in all processes of a run but one."""
        super().__init__()
        self.config = config
        self.folder = folder
        self.batches = batches
        self.writes_files = writes_files
        self.metrics: MetricsFile | None = None
        self.stop = StopRequest()
        self.reached_target = False
        self._open = contextlib.ExitStack()
        self._warned = False

    # ---- the hooks Lightning calls ----

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock, the progress display and the watch for signals."""
        assert isinstance(pl_module, LanguageModel)
        self._open.enter_context(stop_on_signals(self.stop))
        self.progress = Progress(
            first_step=trainer.global_step,
            max_steps=trainer.max_steps,
            shown=trainer.is_global_zero and self.config.trainer.enable_progress_bar,
        )
        self._open.callback(self.progress.close)
        if self.writes_files:
            path = self.folder / "metrics.csv"
            fields = metric_fields(self.config.model.n_layer)
            self.metrics = MetricsFile(path, fields, last_step=trainer.global_step)
            self._open.callback(self.metrics.close)
        self._last_save = self._step_ended = time.monotonic()
        self._logged = Rate(pl_module.record)
        self._shown = Rate(pl_module.record)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: object,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """After the last micro-batch of a step: do what is due."""
        del outputs
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        assert isinstance(pl_module, LanguageModel)
        self._count(pl_module, batch.step_targets)
        step, config = trainer.global_step, self.config
        last = step >= trainer.max_steps
        if config.overfit and pl_module.step_loss.item() < OVERFIT_LOSS:
            self.reached_target = last = trainer.should_stop = True
        if last or step % config.trainer.log_every_n_steps == 0 or step == 1:
            self._log(trainer, pl_module)
        elif self.progress.due():
            self._show(step, pl_module)
        stopped = self.stop.signal_number is not None
        with self._clock_stopped():
            validated = not stopped and (last or step % self._validation_interval == 0)
            if validated:
                self._validate(trainer, pl_module)
            if not stopped and self._is_due(config.sample_every_n_steps, step, otherwise=validated):
                self._write_sample(step, pl_module)
            if last or stopped or self._saving_is_due(step, validated=validated):
                self._save(trainer, pl_module, LAST)
        if stopped:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End as every run ends, where the time limit ended it between milestones."""
        assert isinstance(pl_module, LanguageModel)
        ended_early = pl_module.record.get("val_step") != trainer.global_step
        if ended_early and self.stop.signal_number is None and trainer.global_step:
            self._validate(trainer, pl_module)
            self._save(trainer, pl_module, LAST)

    def __enter__(self) -> Self:
        """What `on_train_start` opens (signals, the terminal, a file) is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # ---- what is due ----

    @property
    def _validation_interval(self) -> int:
        assert self.config.trainer.val_check_interval is not None
        return self.config.trainer.val_check_interval

    @staticmethod
    def _is_due(interval: int | None, step: int, *, otherwise: bool) -> bool:
        return otherwise if interval is None else step % interval == 0

    def _saving_is_due(self, step: int, *, validated: bool) -> bool:
        minutes = self.config.saving.every_minutes
        if minutes is not None and time.monotonic() - self._last_save >= 60 * minutes:
            return True
        return self._is_due(self.config.saving.every_n_steps, step, otherwise=validated)

    # ---- the clock: training steps alone ----

    def _count(self, module: LanguageModel, step_targets: int) -> None:
        now = time.monotonic()
        module.record["train_seconds"] += now - self._step_ended
        module.record["tokens"] += step_targets
        self._step_ended = now

    @contextlib.contextmanager
    def _clock_stopped(self) -> Generator[None, None, None]:
        yield
        self._step_ended = time.monotonic()

    # ---- the milestones ----

    def _step_loss(self, trainer: L.Trainer, module: LanguageModel) -> float:
        loss = float(trainer.strategy.reduce(module.step_loss, reduce_op="sum"))
        if not math.isfinite(loss):
            if not trainer.is_global_zero:  # the first process says it
                raise SystemExit(1)
            saved = any((self.folder / name).is_file() for name in (BEST, LAST))
            raise RunError(
                f"step {trainer.global_step}: the loss is {loss};"
                + (" the checkpoints from before stay." if saved else " nothing was saved yet.")
                + f" A lower optim.lr than {self.config.optim.lr:g} may help"
            )
        return loss

    def _show(self, step: int, module: LanguageModel) -> None:
        loss = module.step_loss.item()
        self.progress.step(step, loss=loss, tokens_per_second=self._shown.since_last())

    def _log(self, trainer: L.Trainer, module: LanguageModel) -> None:
        row = {
            "tokens": module.record["tokens"],
            "train_loss": self._step_loss(trainer, module),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "grad_norm": module.grad_norm.item(),
            "seconds": round(module.record["train_seconds"], 3),
            "tokens_per_second": round(self._logged.since_last(), 1),
        }
        module.record["train_loss"] = row["train_loss"]
        self._write(trainer, row)
        if self.progress.due():
            self._show(trainer.global_step, module)

    def _write(self, trainer: L.Trainer, row: dict[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.append({"step": trainer.global_step} | row)
        for tracker in trainer.loggers:
            tracker.log_metrics(row, step=trainer.global_step)

    def _validate(self, trainer: L.Trainer, module: LanguageModel) -> None:
        """Measure the loss, keep the model if it is the best so far, and say so."""
        self._step_loss(trainer, module)
        step, record = trainer.global_step, module.record
        limit = self.config.trainer.limit_val_batches
        loss = validation_loss(
            module.model,
            self.batches.validation(limit, trainer.global_rank, trainer.world_size),
            device=module.device,
            arithmetic=lambda: cast(
                "contextlib.AbstractContextManager[object]",
                trainer.precision_plugin.forward_context(),
            ),
            add_up=lambda sums: trainer.strategy.reduce(sums, reduce_op="sum"),
        )
        row = {"val_loss": loss.per_token}
        # the bytes of a part of the batches, or of the smoke test's one, are not known
        if limit is None and not self.config.overfit:
            row["val_bits_per_byte"] = bits_per_byte(
                loss.nats, self.batches.data.validation.n_bytes
            )
        row |= self._statistics(module)
        self._write(trainer, row)
        record.update(val_loss=loss.per_token, val_step=step)
        best = loss.per_token < record.get("best_val_loss", math.inf)
        if best:
            record.update(
                best_val_loss=loss.per_token, best_step=step, best_train_loss=record["train_loss"]
            )
            self._save(trainer, module, BEST)
        self.progress.line(
            f"step {step}/{trainer.max_steps}: "
            f"{'the batch now' if self.config.overfit else 'validation loss'} {loss.per_token:.4f}"
            + (", best so far" if best else f", best {record['best_val_loss']:.4f}")
        )
        self._warn_of_overfitting(step, record)

    def _statistics(self, module: LanguageModel) -> dict[str, float]:
        for batch in self.batches.validation(1):
            return attention_statistics(module.model, batch.to(module.device))
        return {}

    def _warn_of_overfitting(self, step: int, record: dict[str, Any]) -> None:
        long_ago = step - record["best_step"] >= PATIENCE * self._validation_interval
        if long_ago and record["train_loss"] < record["best_train_loss"] and not self._warned:
            self._warned = True
            self.progress.line(
                f"warning: the validation loss was best at step {record['best_step']}"
                f" ({record['best_val_loss']:.4f}) and has been above that since, while the"
                " training loss falls: the model learns its training text by heart."
                " More text, a smaller model, or model.dropout may help"
            )

    def _write_sample(self, step: int, module: LanguageModel) -> None:
        if not self.writes_files:
            return
        text = sample_texts(module.model, self.batches.data.tokenizer)[0]
        with (self.folder / "samples.txt").open("a", encoding="utf-8", newline="") as file:
            file.write(f"--- step {step} ---\n{text}\n\n")

    def _save(self, trainer: L.Trainer, module: LanguageModel, name: Path) -> None:
        if not torch.isfinite(module.step_loss):
            self._step_loss(trainer, module)  # raises
        trainer.save_checkpoint(self.folder / name)
        if name == LAST:
            self._last_save = time.monotonic()
            self._keep(trainer)
        if trainer.is_global_zero:
            point_latest_at(self.folder)

    def _keep(self, trainer: L.Trainer) -> None:
        """Numbered checkpoints: the newest `saving.keep` of them."""
        if not self.config.saving.keep:
            return
        trainer.save_checkpoint(self.folder / "checkpoints" / f"step_{trainer.global_step:08}.ckpt")
        if trainer.is_global_zero:
            numbered = sorted((self.folder / "checkpoints").glob("step_*.ckpt"))
            for old in numbered[: -self.config.saving.keep]:
                old.unlink()

"""What happens at a step boundary: log, validate, sample, save, stop — in that order."""

import contextlib
import math
import time
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from torch import distributed

from minigpt.compiler import is_compilers
from minigpt.config import TrainConfig
from minigpt.data.batches import Batch
from minigpt.errors import RunError
from minigpt.files import link_whole
from minigpt.run_folder import BEST, LAST, numbered_name
from minigpt.training.datamodule import CorpusBatches
from minigpt.training.divergence import diverged, first_fault
from minigpt.training.heap import give_back_freed_memory
from minigpt.training.lightning_module import LanguageModel
from minigpt.training.loss import bits_per_byte
from minigpt.training.resume import Start
from minigpt.training.run_log import RunLog
from minigpt.training.samples import OVERFIT_LOSS, sample_texts
from minigpt.training.saving import CheckpointWriter
from minigpt.training.sharding import whole_model
from minigpt.training.signals import StopSignals
from minigpt.training.validation import attention_statistics, validation_loss

#: On a GPU, steps between looks at whether the gradients are finite: a look waits for the device.
LOOK_EVERY = 10


class Milestones(L.Callback):
    """Watches the steps of a run and does what is due after each.

    `record` of the module carries what must survive a stop: `tokens` and `train_seconds` so far,
    `val_loss` with its `val_step`, and `best_val_loss` with its `best_step`.

    Several processes go through a boundary together: what one of them cannot know by itself (a
    signal, the time) is agreed on, and the rest follows from the step.
    """

    def __init__(
        self, config: TrainConfig, folder: Path | None, start: Start, batches: CorpusBatches
    ):
        """`folder` is the first process's; the others get it from there."""
        super().__init__()
        self.config = config
        self.start = start
        self.batches = batches
        self.writer = CheckpointWriter(keep=config.saving.keep)
        self.signals = StopSignals()
        self.stopping = 0  # the signal that all processes have agreed to stop at
        self.run_log: RunLog | None = None
        self._folder = folder
        self._open = contextlib.ExitStack()
        self._group: Any = None

    @property
    def folder(self) -> Path:
        """The run's folder."""
        assert self._folder is not None
        return self._folder

    @property
    def exit_status(self) -> int:
        """What a shell expects of a process that a signal stopped (130 or 143); 0 without one."""
        return 128 + self.stopping if self.stopping else 0

    def __enter__(self) -> Self:
        """Signals are watched from here on; what training opens is closed with them."""
        self._open.enter_context(self.signals)
        self._open.callback(self.writer.close)
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> bool:
        """A terminal's Ctrl-C goes to a compiler, too: that it failed is then the stop."""
        del trace
        self._open.close()
        if self.signals.number and isinstance(error, Exception) and is_compilers(error):
            self.stopping = self.signals.number
            return True
        return False

    # ---- the hooks Lightning calls ----

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Let all processes work in the first one's folder, from the same checkpoint."""
        del pl_module, stage
        # Lightning's own handlers talk to other processes from inside a signal handler, and end
        # training between a step and its milestones
        trainer._signal_connector.register_signal_handlers = lambda: None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        mine = (self._folder, self.start.checkpoint)
        self._folder, checkpoint = trainer.strategy.broadcast(mine)
        if checkpoint != self.start.checkpoint:
            raise RunError(
                f"this process would go on from {self.start.checkpoint}, the first one from"
                f" {checkpoint}: the newest run has changed; name the run instead of resume=auto"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock and the progress display, and open the files where they were left."""
        assert isinstance(pl_module, LanguageModel)
        step, record = trainer.global_step, pl_module.record
        if trainer.is_global_zero:
            self._rewind()
            self.run_log = RunLog(self.folder, self.config, record, trainer.loggers, step=step)
            self._open.callback(self.run_log.close)
        if trainer.world_size > 1:
            self._group = distributed.new_group(backend="gloo")
        self._first_step = step
        self._last_save = self._counted_until = time.monotonic()
        if self._validation_is_due(step) and record.get("val_step") != step:
            self._after_step(trainer, pl_module, measures=True, saves=False)  # a stop came first

    def _rewind(self) -> None:
        """Where the run goes back to an older checkpoint of its own, let that be the newest."""
        checkpoint, last = self.start.checkpoint, self.folder / LAST
        if checkpoint is None or self.start.folder is None:
            return
        if not (last.is_file() and last.samefile(checkpoint)):
            try:
                link_whole(checkpoint, last)
            except OSError as error:
                raise RunError(f"cannot write {last}: {error.strerror}") from error

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
        step, record = trainer.global_step, pl_module.record
        record["tokens"] += batch.step_targets
        self._count_time(record)
        if self.config.overfit and pl_module.step_loss.item() < OVERFIT_LOSS:
            trainer.should_stop = True
        last = step >= trainer.max_steps or trainer.should_stop
        self.writer.check()
        if pl_module.device.type == "cpu" or step % LOOK_EVERY == 0:
            self._check_health(trainer, pl_module)
        stop, show, save = self._agreed(
            self.signals.number, self._display_is_due(), self._saving_time_is_over()
        )
        if stop:
            self.stopping, trainer.should_stop = stop, True
        if last or step % self.config.trainer.log_every_n_steps == 0 or step == 1:
            self._log(trainer, pl_module, real_share=batch.real_share)
        if show:
            loss = self._step_loss(trainer, pl_module)
            if self.run_log is not None:
                self.run_log.show(step, loss)
        self._count_time(record)
        self._after_step(
            trainer,
            pl_module,
            measures=last or (self._validation_is_due(step) and not stop),
            saves=bool(last or stop or save),
        )
        self._counted_until = time.monotonic()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End as every run ends, where the time limit ended it between milestones."""
        assert isinstance(pl_module, LanguageModel)
        ended_early = pl_module.record.get("val_step") != trainer.global_step
        if ended_early and not self.stopping and trainer.global_step:
            self._after_step(trainer, pl_module, measures=True, saves=True)
        self.writer.wait()

    # ---- what is due ----

    def _validation_is_due(self, step: int) -> bool:
        interval = self.config.trainer.val_check_interval
        assert interval is not None
        return step > 0 and step % interval == 0

    def _saving_time_is_over(self) -> bool:
        minutes = self.config.saving.every_minutes
        return minutes is not None and time.monotonic() - self._last_save >= 60 * minutes

    def _display_is_due(self) -> bool:
        return self.run_log is not None and self.run_log.progress.due()

    def _agreed(self, *wishes: int) -> list[int]:
        """The largest of each number over all processes."""
        if self._group is None:
            return list(wishes)
        largest = torch.tensor(wishes)
        distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, group=self._group)
        return [int(wish) for wish in largest]

    def _after_step(
        self, trainer: L.Trainer, module: LanguageModel, *, measures: bool, saves: bool
    ) -> None:
        """Validate, sample and save, as far as it is due."""
        step, config = trainer.global_step, self.config
        measured = measures and self._validate(trainer, module)
        if _is_due(config.sample_every_n_steps, step, otherwise=measured):
            self._write_sample(trainer, module)
        names: list[Path] = []
        if measured and module.record["best_step"] == step:
            names.append(BEST)
        if saves or self.stopping or _is_due(config.saving.every_n_steps, step, otherwise=measured):
            if config.saving.keep:
                names.append(LAST.parent / numbered_name(step))
            names.append(LAST)  # at the end: a run goes on from there, with all the others in place
        if names:
            self._save(trainer, module, names)

    def _count_time(self, record: dict[str, Any]) -> None:
        """Add the time since it was last counted to that of training steps alone."""
        now = time.monotonic()
        record["train_seconds"] += now - self._counted_until
        self._counted_until = now

    # ---- the milestones ----

    def _check_health(self, trainer: L.Trainer, module: LanguageModel) -> None:
        """End the run if its numbers are none; `RunError` says where they arose."""
        if module.scaler is None:
            healthy_steps = module.health.bad_step()
            if healthy_steps is not None:
                bad_step = self._first_step + healthy_steps + 1
                raise self._diverged(trainer, module, bad_step, "the gradient is not finite")
        elif module.scaler.get_scale() < 1:
            step = trainer.global_step
            raise self._diverged(trainer, module, step, "float16's loss scaling fell below 1")

    def _diverged(
        self, trainer: L.Trainer, module: LanguageModel, step: int, what: str
    ) -> RunError:
        """Run a step's micro-batches again to find the layer, in every process."""
        micro_batches = trainer.accumulate_grad_batches
        batches = self.batches.training_batches(trainer.global_rank, trainer.world_size)
        first = (step - 1) * micro_batches
        fault = first_fault(
            whole_model(trainer.model, module.model),
            (batches[first + number].to(module.device) for number in range(micro_batches)),
            module.arithmetic,
            lambda micro_step: module.seed_dropout(step - 1, micro_step),
        )
        faults = [fault]
        if self._group is not None:
            faults = [None] * trainer.world_size
            distributed.all_gather_object(faults, fault, group=self._group)
        saved = any((self.folder / name).is_file() for name in (BEST, LAST))
        return diverged(step, what, faults, saved=saved, lr=self.config.optim.lr)

    def _step_loss(self, trainer: L.Trainer, module: LanguageModel) -> float:
        return float(trainer.strategy.reduce(module.step_loss, reduce_op="sum"))

    def _log(self, trainer: L.Trainer, module: LanguageModel, **figures: float) -> None:
        self._check_health(trainer, module)
        step, loss = trainer.global_step, self._step_loss(trainer, module)
        if math.isfinite(loss):
            module.record["train_loss"] = loss
        elif module.scaler is None:  # which leaves out such a step
            raise self._diverged(trainer, module, step, f"the loss is {loss}")
        figures |= {
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "grad_norm": module.grad_norm.item(),
        }
        if module.scaler is not None:
            figures["skipped_steps"] = module.skipped_steps
        if self.run_log is not None:
            self.run_log.training(step, loss, **figures)

    def _validate(self, trainer: L.Trainer, module: LanguageModel) -> bool:
        """Measure the loss, note whether it is the best so far, and say so.

        False if a stop came before it was done: the run that goes on does it again. A validation
        that ends the run is done whatever comes.
        """
        step, record = trainer.global_step, module.record
        limit = self.config.trainer.limit_val_batches
        batches = self.batches.validation(limit, trainer.global_rank, trainer.world_size)
        last = step >= trainer.max_steps or trainer.should_stop
        give_back_freed_memory()
        model = whole_model(trainer.model, module.model)
        loss = validation_loss(
            model,
            takewhile(lambda _: last or not self.signals.number, batches),
            device=module.device,
            arithmetic=module.arithmetic,
            add_up=lambda sums: trainer.strategy.reduce(sums, reduce_op="sum"),
        )
        (stop,) = self._agreed(self.signals.number)
        if stop and not last:
            self.stopping, trainer.should_stop = stop, True
            return False
        record.update(val_loss=loss.per_token, val_step=step)
        if loss.per_token < record.get("best_val_loss", math.inf):
            record.update(
                best_val_loss=loss.per_token, best_step=step, best_train_loss=record["train_loss"]
            )
        row = {"val_loss": loss.per_token}
        give_back_freed_memory()
        for batch in self.batches.validation(1):
            row |= attention_statistics(model, batch.to(module.device))
        # the bytes of a part of the batches, or of the smoke test's one, are not known
        if limit is None and not self.config.overfit:
            n_bytes = self.batches.data.validation.n_bytes
            row["val_bits_per_byte"] = bits_per_byte(loss.nats, n_bytes)
        if (floor := self.batches.floor_loss) is not None:
            row["floor_loss"] = floor
        if self.run_log is not None:
            self.run_log.validation(step, **row)
        return True

    def _write_sample(self, trainer: L.Trainer, module: LanguageModel) -> None:
        """Let the first process sample, unless that was done before a stop at this step."""
        step, record = trainer.global_step, module.record
        if record.get("sample_step") == step:
            return
        record["sample_step"] = step
        give_back_freed_memory()
        model = whole_model(trainer.model, module.model)
        if self.run_log is not None:
            self.run_log.sample(step, sample_texts(model, self.batches.data.tokenizer)[0])

    def _save(self, trainer: L.Trainer, module: LanguageModel, names: list[Path]) -> None:
        self._check_health(trainer, module)
        self.writer.save(trainer, [self.folder / name for name in names])
        if LAST in names:
            self._last_save = time.monotonic()


def _is_due(interval: int | None, step: int, *, otherwise: bool) -> bool:
    return otherwise if interval is None else step % interval == 0

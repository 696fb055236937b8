"""The plain model under Lightning: a step of training, its optimizer, its part of a checkpoint."""

import secrets
from contextlib import AbstractContextManager
from typing import Any, cast

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from minigpt.checkpoint import RECORD, LoadedModel
from minigpt.config import OptimConfig, TrainConfig, plain
from minigpt.data.batches import Batch
from minigpt.data.preparation import PreparedData
from minigpt.model.gpt import GPT
from minigpt.training.divergence import Health
from minigpt.training.loss import Reader, batch_loss, hidden_of
from minigpt.training.optimizer import build_optimizer
from minigpt.training.resume import Start
from minigpt.training.schedule import learning_rate
from minigpt.training.sharding import clip_gradient


class LanguageModel(L.LightningModule):
    """A `GPT` with a next-token loss.

    `record` is our own part of every checkpoint, plain data that callbacks keep up to date.
    `step_loss` is the loss of the current optimizer step in nats per token, complete once its
    last micro-batch has run; `grad_norm` is that of its gradient before clipping. `health` knows
    whether a gradient was not finite, from which on the weights stay as they are.
    """

    def __init__(self, model: GPT, optim: OptimConfig, *, seed: int, record: dict[str, Any]):
        super().__init__()
        self.model = model
        self.optim = optim
        self.seed = seed
        self.record = record
        self.read: Reader = hidden_of
        self.step_loss = torch.zeros(())
        self.grad_norm = torch.zeros(())
        self.health = Health(torch.device("cpu"))

    @classmethod
    def for_run(
        cls, config: TrainConfig, data: PreparedData, start: Start, origin: LoadedModel | None
    ) -> "LanguageModel":
        """A fresh model for the prepared tokenizer, or the one the run starts from.

        The record keeps a resumed run's counts and begins a new run's.
        """
        torch.manual_seed(config.seed)
        model = origin.model if origin else GPT(config.model, data.tokenizer.vocab_size)
        model.activation_checkpointing = config.activation_checkpointing
        new = {"tokens": 0, "train_seconds": 0.0, "samples_size": 0, "run_id": secrets.token_hex(4)}
        record = (
            new
            | start.record
            | {
                "model_config": plain(model.config),
                "vocab_size": model.vocab_size,
                "tokenizer": data.tokenizer.to_json(),
                "config": plain(config),
                "documents": data.documents,
                "data": data.folder.name,
            }
        )
        module = cls(model.train(), config.optim, seed=config.seed, record=record)
        if config.compile:
            module.read = torch.compile(hidden_of)
        return module

    def on_train_start(self) -> None:
        """Let this run's settings hold for an optimizer that a checkpoint brought its own to."""
        self.health = Health(self.device)
        (optimizer,) = self.trainer.optimizers
        fresh = self.build_optimizer()
        for group, own in zip(optimizer.param_groups, fresh.param_groups, strict=True):
            group |= {name: own[name] for name in own if name != "params"}

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Set this step's learning rate, and dropout's random state for this micro-batch."""
        micro_step = batch_idx % self.trainer.accumulate_grad_batches
        if micro_step == 0:
            self.step_loss = torch.zeros((), device=self.device)
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = learning_rate(self.global_step - self.skipped_steps, self.optim)
        self.seed_dropout(self.global_step, micro_step)

    def seed_dropout(self, step: int, micro_step: int) -> None:
        """Make dropout's draw a function of (seed, step, micro-step, process)."""
        if self.model.config.dropout:
            micro_steps = step * self.trainer.accumulate_grad_batches + micro_step
            draw = micro_steps * self.trainer.world_size + self.global_rank
            torch.manual_seed(self.seed * 1_000_003 + draw)

    @property
    def skipped_steps(self) -> int:
        """Steps whose update float16's loss scaling has left out; the schedule waits for them."""
        return self.record.get("skipped_steps", 0)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """This micro-batch's share of the step's mean loss.

        Lightning divides by the number of micro-batches and averages over processes; both are
        taken out again, since the share is already of the whole step.
        """
        share = batch_loss(self.model, batch, 1 / batch.step_targets, self.read)
        self.step_loss = self.step_loss + share.detach()
        return share * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of the whole gradient to `optim.grad_clip` (0: measure it only)."""
        del gradient_clip_val, gradient_clip_algorithm
        largest = self.optim.grad_clip or torch.inf
        self.grad_norm = clip_gradient(self.trainer.model, self.model.parameters(), largest)
        if self.scaler is None:  # which leaves out such an update itself
            self.health.note(self.grad_norm)
            # what torch's own loss scaling tells a fused optimizer: 1.0 leaves the weights alone
            optimizer.found_inf = self.health.broken  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The loss scaling of float16; None in other precisions."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the weights, and count the updates that float16's loss scaling leaves out.

        The gradients go at once: Lightning would hold them beside the next forward pass.
        """
        super().optimizer_step(*args, **kwargs)
        self.trainer.optimizers[0].zero_grad()
        if self.scaler is not None:
            state = self.trainer.optimizers[0].state
            updates = next(iter(state.values()))["step"] if state else 0
            self.record["skipped_steps"] = self.global_step + 1 - int(updates)

    def arithmetic(self) -> AbstractContextManager[object]:
        """The precision's context, for a forward pass outside of a training step."""
        return cast("Any", self.trainer.precision_plugin).forward_context()

    def build_optimizer(self) -> torch.optim.AdamW:
        """A new optimizer for the model."""
        fused = self.trainer.precision != "16-mixed"
        return build_optimizer(self.model, self.optim, fused=fused)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW; its learning rate is set at each step, so there is no scheduler to keep."""
        return self.build_optimizer()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count on from the checkpoint's step; a step may have other micro-batches than before."""
        step = checkpoint["global_step"]
        loop = cast("dict[str, Any]", self.trainer.fit_loop.state_dict())
        _count(loop["epoch_loop.batch_progress"], step * self.trainer.accumulate_grad_batches)
        _count(loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"], step)
        checkpoint["loops"] = {"fit_loop": loop}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put our own record beside Lightning's keys, the step it belongs to included."""
        self.record["step"] = self.global_step
        checkpoint[RECORD] = dict(self.record)


def _count(progress: dict[str, Any], reached: int) -> None:
    """Set all counts of a part of Lightning's progress: begun as often as completed."""
    for counts in ("total", "current"):
        progress[counts] = dict.fromkeys(progress[counts], reached)

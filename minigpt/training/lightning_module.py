"""The plain model under Lightning: a step of training, its optimizer, its part of a checkpoint."""

import secrets
from typing import Any

import lightning as L  # noqa: N812  (Lightning's own name for it)
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from minigpt.checkpoint import RECORD, LoadedModel
from minigpt.config import OptimConfig, TrainConfig, plain
from minigpt.data.batches import Batch
from minigpt.data.token_store import PreparedData
from minigpt.model.gpt import GPT
from minigpt.training.loss import logits_of, summed_loss
from minigpt.training.optimizer import build_optimizer
from minigpt.training.resume import Start
from minigpt.training.schedule import learning_rate


class LanguageModel(L.LightningModule):
    """A `GPT` with a next-token loss.

    `record` is our own part of every checkpoint, plain data that callbacks keep up to date.
    `step_loss` is the loss of the current optimizer step in nats per token, complete once its
    last micro-batch has run; `grad_norm` is that of its gradient before clipping.
    """

    def __init__(self, model: GPT, optim: OptimConfig, *, seed: int, record: dict[str, Any]):
        super().__init__()
        self.model = model
        self.optim = optim
        self.seed = seed
        self.record = record
        self.step_loss = torch.zeros(())
        self.grad_norm = torch.zeros(())

    @classmethod
    def for_run(
        cls, config: TrainConfig, data: PreparedData, start: Start, origin: LoadedModel | None
    ) -> "LanguageModel":
        """A fresh model for the prepared tokenizer, or the one the run starts from.

        The record keeps a resumed run's counts and begins a new run's.
        """
        torch.manual_seed(config.seed)
        model = origin.model if origin else GPT(config.model, data.tokenizer.vocab_size)
        if config.compile:
            model.compile()
        counts = start.record or {"tokens": 0, "train_seconds": 0.0, "run_id": secrets.token_hex(4)}
        record = counts | {
            "model_config": plain(model.config),
            "vocab_size": model.vocab_size,
            "tokenizer": data.tokenizer.to_json(),
            "config": plain(config),
            "documents": data.documents,
            "data": data.folder.name,
        }
        return cls(model.train(), config.optim, seed=config.seed, record=record)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:  # noqa: ARG002
        """Set this step's learning rate, and dropout's random state for this micro-batch."""
        accumulated = self.trainer.accumulate_grad_batches
        micro_step = batch_idx % accumulated
        if micro_step == 0:
            self.step_loss = torch.zeros((), device=self.device)
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = learning_rate(self.global_step, self.optim)
        if self.model.config.dropout:
            draw = (self.global_step * accumulated + micro_step) * self.trainer.world_size
            torch.manual_seed(self.seed * 1_000_003 + draw + self.global_rank)

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        """This micro-batch's share of the step's mean loss.

        Lightning divides by the number of micro-batches and averages over processes; both are
        taken out again, since the share is already of the whole step.
        """
        share = summed_loss(logits_of(self.model, batch), batch.targets) / batch.step_targets
        self.step_loss = self.step_loss + share.detach()
        return share * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the norm of the whole gradient to `optim.grad_clip` (0: measure it only)."""
        del optimizer, gradient_clip_val, gradient_clip_algorithm
        largest = self.optim.grad_clip or torch.inf
        self.grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW; its learning rate is set at each step, so there is no scheduler to keep."""
        fused = self.trainer.precision != "16-mixed"
        return build_optimizer(self.model, self.optim, fused=fused)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put our own record beside Lightning's keys, the step it belongs to included."""
        self.record["step"] = self.global_step
        checkpoint[RECORD] = dict(self.record)

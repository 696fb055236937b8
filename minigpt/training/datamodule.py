"""Batches for Lightning: the endless training order, entered at the step the run has reached."""

import contextlib
import itertools
import secrets
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import lightning as L  # noqa: N812  (Lightning's own name for it)
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from minigpt.config import TrainConfig
from minigpt.data.batches import (
    Batch,
    TrainingBatches,
    make_batch,
    n_rows,
    spans,
    validation_batches,
    windows,
)
from minigpt.data.cache import cache_folder
from minigpt.data.order import by_length, part_padding, rows_per_micro_batch
from minigpt.data.overfit import OverfitRows, choose_overfit_rows
from minigpt.data.preparation import PreparedData
from minigpt.data.stream import Feed, Place, place_of, streaming, want
from minigpt.data.stream_batches import StreamBatches, segment_of_step, segments_of_group
from minigpt.data.token_store import TokenStore
from minigpt.defaults import find_device
from minigpt.errors import InputError
from minigpt.training.plan import DataFacts

if TYPE_CHECKING:
    from pathlib import Path

#: Steps that the plan looks at for the share of padding.
_LOOKED_AT = 50


class CorpusBatches(L.LightningDataModule):
    """The micro-batches of a run by their number, and the validation part in order.

    Which rows a micro-batch holds is a pure function of its number, so a resumed run only has to
    start counting at its step. `overfit` holds the rows of the one batch of `overfit=true`, which
    is then trained on at every step and validated on; it is None otherwise. A stream is opened when
    training begins; before, the beginning of its corpus stands for it.
    """

    def __init__(self, data: PreparedData, config: TrainConfig):
        super().__init__()
        self.data = data
        self.config = config
        self.overfit: OverfitRows | None = None
        self._stream: Path | None = None  # the folder that its segments are in
        self._first, self._place = 0, Place()  # the segment that the stream begins with
        self._wanted = -1  # the first segment that is still read
        self._open = contextlib.ExitStack()
        self._part_padding = part_padding(find_device(config.trainer.accelerator).kind)
        if config.overfit:
            self.overfit = choose_overfit_rows(data.train, config.model.block_size)

    def training_batches(self, rank: int = 0, world_size: int = 1) -> Dataset[Batch]:
        """One process's micro-batches, from 0 without end."""
        if self.overfit is not None:
            return OneBatch(make_batch(self.data.train, self.overfit.rows))
        config = self.config
        assert config.data.batch_size is not None
        shared: dict[str, Any] = {
            "block_size": config.model.block_size,
            "batch_size": config.data.batch_size,
            "seed": config.seed,
            "accumulate": config.trainer.accumulate_grad_batches,
            "rank": rank,
            "world_size": world_size,
            "document_mask": config.data.document_mask,
        }
        train = self.data.train
        if self._stream is not None:
            return StreamBatches(
                self._stream, end_id=train.end_id, dtype=train.tokens.dtype, **shared
            )
        return TrainingBatches(
            train, layout=config.data.layout, part_padding=self._part_padding, **shared
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """An endless loader; it has no length, so Lightning counts no epochs."""
        assert self.trainer is not None
        if self.config.data.streaming and self.overfit is None:
            self._open_stream(self.trainer)
        first = self.trainer.global_step * self.trainer.accumulate_grad_batches
        return DataLoader(
            self.training_batches(self.trainer.global_rank, self.trainer.world_size),
            sampler=itertools.count(first),
            batch_size=None,
            num_workers=self.config.data.num_workers,
            worker_init_fn=_leave_signals,
        )

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Move a batch's tensors; let go of what was read of a stream."""
        del dataloader_idx
        if self._stream is not None and self.trainer and self.trainer.local_rank == 0:
            shape = self._stream_shape
            now = segment_of_step(self.trainer.global_step, *shape)
            if now != self._wanted:
                want(self._stream, now, keep=segments_of_group(*shape))
                self._wanted = now
        return batch.to(device)

    # ---- a stream ----

    def _open_stream(self, trainer: L.Trainer) -> None:
        """Have one process of each machine make the stream that all of its processes read."""
        name = str(trainer.strategy.broadcast(secrets.token_hex(4)))
        folder = cache_folder(self.config.data) / "streams" / name
        feed = Feed(
            self.config.data,
            self.data.tokenizer.to_json(),
            self.config.seed,
            ahead=2 * segments_of_group(*self._stream_shape),
            first=self._first,
            place=self._place,
        )
        if trainer.local_rank == 0:
            self._open.enter_context(streaming(feed, folder))
        self._stream = folder

    @property
    def _stream_shape(self) -> tuple[int, int]:
        """The rows of a step, and the targets of a row."""
        assert self.config.data.batch_size is not None
        return self.config.data.batch_size, self.config.model.block_size

    def close(self) -> None:
        """End the stream."""
        self._open.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is that the last step was read from; nothing without one."""
        if self._stream is None or self.trainer is None:
            return {}
        number = segment_of_step(max(0, self.trainer.global_step - 1), *self._stream_shape)
        return {"segment": number, "place": place_of(self._stream, number)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the stream go on from where it was; `InputError` if that is not said."""
        try:
            self._first, self._place = int(state_dict["segment"]), Place(**state_dict["place"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the checkpoint does not say where the stream was") from error

    def validation(
        self, limit: int | None = None, rank: int = 0, world_size: int = 1
    ) -> Iterable[Batch]:
        """One process's validation batches; `limit` counts batches over all processes.

        Stories are scored whole, from their start, whatever the layout of the training rows: only
        then is their floor that of the same predictions.
        """
        if self.overfit is not None:
            return [make_batch(self.data.train, self.overfit.rows)]
        return validation_batches(
            self.data.validation,
            block_size=self.config.model.block_size,
            layout=self._validation_layout,
            batch_size=self._validation_rows,
            document_mask=self.config.data.document_mask,
            rank=rank,
            world_size=world_size,
            limit=limit,
            part_padding=self._part_padding,
        )

    @property
    def _validation_layout(self) -> str:
        return "padded" if self.data.corpus.log_probability else self.config.data.layout

    @property
    def _validation_rows(self) -> int:
        """Rows of a validation batch: without gradients there is room for twice as many."""
        assert self.config.data.batch_size is not None
        return 2 * self.config.data.batch_size // self.config.trainer.accumulate_grad_batches or 1

    def largest_batches(self, world_size: int) -> tuple[Batch, Batch]:
        """The largest training and validation batch that each of the processes can meet with."""
        if self.overfit is not None:
            batch = make_batch(self.data.train, self.overfit.rows)
            return batch, batch
        config, validation = self.config, self.data.validation
        assert config.data.batch_size is not None
        share = rows_per_micro_batch(
            config.data.batch_size, config.trainer.accumulate_grad_batches, world_size
        )
        layout = self._validation_layout
        most = min(self._validation_rows, n_rows(validation, config.model.block_size, layout))
        return (
            self._longest(self.data.train, config.data.layout, share),
            self._longest(validation, layout, most),
        )

    def _longest(self, store: TokenStore, layout: str, count: int) -> Batch:
        """A batch of the longest rows there are."""
        block_size = self.config.model.block_size
        if layout == "packed":  # all but the last are full
            rows = windows(store, block_size, np.arange(1))
        else:
            rows = by_length(spans(store, block_size, layout))[::-1]
        document_mask = self.config.data.document_mask
        return make_batch(store, np.resize(rows, (count, 2)), document_mask=document_mask)

    @property
    def floor_loss(self) -> float | None:
        """The least loss that any model can have on what is validated on, in nats a token."""
        if self.overfit is not None:
            return self.overfit.floor
        known = self.data.validation.log_probability
        return None if known is None else -known / self.data.validation.n_targets

    def facts(self) -> DataFacts:
        """What the plan says of the data; a step's tokens are an average."""
        train, config = self.data.train, self.config
        block_size, layout = config.model.block_size, config.data.layout
        assert config.data.batch_size is not None
        batch_size = config.data.batch_size
        tokens = round(batch_size * train.n_targets / n_rows(train, block_size, layout))
        if self.overfit is not None:
            batch_size, tokens = len(self.overfit.rows), int(self.overfit.rows[:, 1].sum())
        return DataFacts(
            description=f"{self.data.corpus.summary()}; {layout} rows{self._real()}",
            train_tokens=None if config.data.streaming else train.n_targets,
            validation_tokens=self.data.validation.n_targets,
            rows_per_step=batch_size,
            tokens_per_step=tokens,
            row_length=min(block_size, train.longest if layout == "padded" else train.n_targets),
        )

    def _real(self) -> str:
        """The share of real tokens in what steps read, in words, where that is a question."""
        if self.overfit is not None or self.config.data.layout == "packed":
            return ""
        batches, parts = self.training_batches(), self.config.trainer.accumulate_grad_batches
        steps = [batches[number * parts] for number in range(_LOOKED_AT)]
        targets = sum(batch.step_targets for batch in steps)
        share = targets / (targets + sum(batch.step_padding for batch in steps))
        return f", about {share:.0%} real tokens"


def _leave_signals(worker: int) -> None:
    """Ctrl-C reaches a whole terminal: what it means is the main process's to decide."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which torch ends a worker


class OneBatch(Dataset[Batch]):
    """The same batch, whatever its number."""

    def __init__(self, batch: Batch):
        self.batch = batch

    def __getitem__(self, index: int) -> Batch:
        """The batch."""
        del index
        return self.batch

"""Rows of a stream in the order in which they are trained on.

The sequence is cut into rows of `block_size` targets, and the rows into groups of a few thousand
that are shuffled together. Which rows a step reads is so a function of the seed and the step.
"""

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from minigpt.data.batches import Batch, make_batch
from minigpt.data.order import Rows, dealt
from minigpt.data.stream import SEGMENT, read
from minigpt.data.token_store import TokenStore

#: Keeps the draw of the order of rows apart from other draws by the same seed.
_ROW_DRAW = 0x5752


@dataclass(eq=False)
class StreamBatches(Dataset[Batch]):
    """This process's micro-batches of a stream by number, from 0 without end.

    `folder` is where `stream.make` writes tokens of type `dtype`.
    """

    folder: Path
    _: KW_ONLY
    end_id: int
    dtype: npt.DTypeLike
    block_size: int
    batch_size: int
    seed: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    document_mask: bool = False
    _held: tuple[int, TokenStore, Rows] | None = field(default=None, init=False)

    def __getitem__(self, micro_index: int) -> Batch:
        """Micro-batch number `micro_index` of this rank; waits until its tokens are there."""
        step, micro_step = divmod(micro_index, self.accumulate)
        group, place = divmod(step, steps_of_group(self.batch_size, self.block_size))
        store, rows = self._group(group)
        rows = rows[place * self.batch_size :][: self.batch_size]
        mine = dealt(rows, self.accumulate, self.world_size)[micro_step, self.rank]
        return make_batch(
            store,
            mine,
            document_mask=self.document_mask,
            step_targets=self.batch_size * self.block_size,
        )

    def _group(self, group: int) -> tuple[TokenStore, Rows]:
        """The tokens of a group, behind an end token as in any store, and its rows in order."""
        if self._held is None or self._held[0] != group:
            count = steps_of_group(self.batch_size, self.block_size) * self.batch_size
            n_tokens = count * self.block_size
            tokens = read(self.folder, group * n_tokens, n_tokens + 1, self.dtype)
            tokens = np.append(np.array([self.end_id], self.dtype), tokens)
            order = np.random.default_rng([_ROW_DRAW, self.seed, group]).permutation(count)
            rows = np.stack([1 + order * self.block_size, np.full(count, self.block_size)], axis=1)
            self._held = group, TokenStore(tokens, np.array([0]), 0), rows
        return self._held[1:]


def steps_of_group(batch_size: int, block_size: int) -> int:
    """Steps whose rows are shuffled together: those of about a segment, at least one."""
    # its last target is one token further on, which should not be in the next segment
    return max(1, (SEGMENT - 1) // (batch_size * block_size))


def segments_of_group(batch_size: int, block_size: int) -> int:
    """Segments that the rows of a group may lie in."""
    n_tokens = steps_of_group(batch_size, block_size) * batch_size * block_size
    return n_tokens // SEGMENT + 2


def segment_of_step(step: int, batch_size: int, block_size: int) -> int:
    """The first segment that a step or any later one reads."""
    steps = steps_of_group(batch_size, block_size)
    return step // steps * steps * batch_size * block_size // SEGMENT

"""What a look at the data finds, gathered from where training takes it."""

from collections.abc import Callable
from dataclasses import dataclass

from minigpt.config import TrainConfig
from minigpt.data.batches import n_long_documents
from minigpt.data.batches import n_rows as rows_of_an_epoch
from minigpt.data.look.figures import Counts, Part, in_both, number_of, part_of, unseen
from minigpt.data.look.shown_batch import ShownRow, batches_by_step, real_share, shown_rows
from minigpt.data.preparation import PreparedData

#: Steps whose padding is counted.
SAMPLED_STEPS = 100


@dataclass(frozen=True)
class Found:
    """A prepared corpus under the settings of a run: its figures, and the rows of one step.

    `unseen` (V,) are the validation tokens that training never has; `in_both` the numbers of the
    validation documents that it has too, `seen_as` the number there of the first of them.
    `real_share` is that of the positions of the first `sampled_steps` steps that are no padding.
    """

    settings: TrainConfig
    data: PreparedData
    train: Part
    validation: Part
    unseen: Counts
    in_both: Counts
    seen_as: int
    n_rows: int
    real_share: float
    sampled_steps: int
    step: int
    rows: list[ShownRow]

    @property
    def block_size(self) -> int:
        """The model's context in tokens."""
        return self.settings.model.block_size

    @property
    def batch_size(self) -> int:
        """Rows of a step."""
        assert self.settings.data.batch_size is not None
        return len(self.rows) if self.settings.overfit else self.settings.data.batch_size

    def n_long(self, part: Part) -> int:
        """How many documents of a part are longer than the context."""
        return n_long_documents(part.store, self.block_size)


def look(
    data: PreparedData, settings: TrainConfig, step: int, done: Callable[[int], None]
) -> Found:
    """Look at prepared data as a run with these settings would see it.

    `done` is told how many further documents were looked at.
    """
    vocab_size = data.tokenizer.vocab_size
    train = part_of(data.train, vocab_size, done)
    validation = part_of(data.validation, vocab_size, done)
    both = in_both(train, validation)
    n_rows = rows_of_an_epoch(data.train, settings.model.block_size, settings.data.layout)
    batch_size = settings.data.batch_size
    assert batch_size is not None
    n_sampled = 1 if settings.overfit else min(SAMPLED_STEPS, -(-n_rows // batch_size))
    batches = batches_by_step(data.train, settings)
    return Found(
        settings=settings,
        data=data,
        train=train,
        validation=validation,
        unseen=unseen(train, validation),
        in_both=both,
        seen_as=number_of(train, int(both[0]), validation) if len(both) else 0,
        n_rows=n_rows,
        real_share=real_share(batches(each)[0] for each in range(n_sampled)),
        sampled_steps=n_sampled,
        step=step,
        rows=[
            row
            for batch in batches(step)
            for part in batch.in_parts()
            for row in shown_rows(part, data.tokenizer)
        ],
    )

"""The batch of a step as text: what each position reads, and what it is to predict.

Both are shown as they stand in the tensors, one over the other, so that a shift between them or a
mask in a wrong place would be seen. What cannot be seen in a text has a sign.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from minigpt.config import TrainConfig
from minigpt.data.batches import IGNORED, Batch, TrainingBatches, make_batch
from minigpt.data.order import part_padding
from minigpt.data.overfit import choose_overfit_rows
from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.defaults import find_device
from minigpt.evaluate.coloured import END_SIGN, pieces
from minigpt.settings import shortened

#: Stands for a position that is padding, and for a target that no loss counts.
MASKED = "░"
#: Between tokens, and where a document begins that sees none of those before it.
BETWEEN, WALL = "│", "║"

#: Characters of a token that are shown.
LONGEST_TOKEN = 24

_WITHOUT_BREAKS = {ord("\n"): "", ord("\t"): ""}


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row of a batch, a text for each of its T positions.

    `inputs` and `targets` are the ids, None where a position is padding or a target does not count.
    `positions` are those that the model is told with the document mask, None without it.
    """

    inputs: list[int | None]
    targets: list[int | None]
    positions: list[int] | None
    reads: list[str]
    predicts: list[str]
    #: where attention and positions begin anew within the row
    restarts: list[bool]
    #: whether its first token opens a document, and its last target closes one
    opens: bool
    closes: bool

    @property
    def n_targets(self) -> int:
        """Targets that the loss counts."""
        return sum(target is not None for target in self.targets)

    @property
    def n_padded(self) -> int:
        """Positions that are padding."""
        return sum(token is None for token in self.inputs)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown of one position, or of `n` masked ones that follow each other.

    `wall` is true where attention and positions begin anew with it.
    """

    reads: str
    predicts: str
    wall: bool = False
    masked: bool = False
    n: int = 1

    @property
    def width(self) -> int:
        """Columns that it takes."""
        return max(columns(self.reads), columns(self.predicts))


def batches_by_step(store: TokenStore, config: TrainConfig) -> Callable[[int], list[Batch]]:
    """Gives the micro-batches of an optimizer step by its number, as one process reads them."""
    if config.overfit:
        same = [make_batch(store, choose_overfit_rows(store, config.model.block_size).rows)]
        return lambda _: same
    assert config.data.batch_size is not None
    accumulate = config.trainer.accumulate_grad_batches
    batches = TrainingBatches(
        store,
        block_size=config.model.block_size,
        layout=config.data.layout,
        batch_size=config.data.batch_size,
        seed=config.seed,
        accumulate=accumulate,
        document_mask=config.data.document_mask,
        part_padding=part_padding(find_device(config.trainer.accelerator).kind),
    )
    return lambda step: [batches[step * accumulate + number] for number in range(accumulate)]


def real_share(batches: Iterable[Batch]) -> float:
    """The share of positions that are no padding in what the steps of batches read."""
    counts = [(batch.step_targets, batch.step_padding) for batch in batches]
    real, padding = map(sum, zip(*counts, strict=True))
    return real / (real + padding)


def shown_rows(batch: Batch, tokenizer: Tokenizer) -> Iterator[ShownRow]:
    """Each row of a batch as text."""
    real = batch.real_positions
    for number in range(len(batch.inputs)):
        inputs = _ids(batch.inputs[number], real[number])
        targets = _ids(batch.targets[number], batch.targets[number] != IGNORED)
        last = next((target for target in reversed(targets) if target is not None), None)
        yield ShownRow(
            inputs=inputs,
            targets=targets,
            positions=None if batch.positions is None else _numbers(batch.positions[number]),
            reads=_texts(inputs, tokenizer),
            predicts=_texts(targets, tokenizer),
            restarts=_restarts(batch, number),
            opens=inputs[0] == tokenizer.end_id,
            closes=last == tokenizer.end_id,
        )


def _ids(values: Tensor, counts: Tensor) -> list[int | None]:
    pairs = zip(_numbers(values), _numbers(counts), strict=True)
    return [value if counted else None for value, counted in pairs]


def _numbers(values: Tensor) -> list[int]:
    return values.tolist()  # pyright: ignore[reportUnknownVariableType]  (torch names no type)


def _texts(ids: Sequence[int | None], tokenizer: Tokenizer) -> list[str]:
    """A text for each id: signs for what is not seen, no line ends, a mark for None."""
    texts = pieces(tokenizer, [token for token in ids if token is not None])
    return [
        MASKED
        if token is None
        else shortened(next(texts).translate(_WITHOUT_BREAKS), LONGEST_TOKEN)
        for token in ids
    ]


def _restarts(batch: Batch, number: int) -> list[bool]:
    """Where a row's document is another than that of the position before."""
    width = batch.inputs.shape[1]
    if batch.documents is None:
        return [False] * width
    documents, real = _numbers(batch.documents[number]), _numbers(batch.real_positions[number])
    return [
        place > 0 and bool(real[place]) and documents[place] != documents[place - 1]
        for place in range(width)
    ]


def cells(row: ShownRow) -> list[Cell]:
    """A row's positions as cells; masked ones that follow each other share one."""
    made: list[Cell] = []
    n_masked = 0  # of those just before
    for place, (token, target) in enumerate(zip(row.inputs, row.targets, strict=True)):
        masked = token is None and target is None
        n_masked = n_masked + 1 if masked else 0
        if n_masked > 1:
            text = f"{MASKED} {n_masked:,} times"
            made[-1] = Cell(text, text, masked=True, n=n_masked)
        else:
            reads, predicts, wall = row.reads[place], row.predicts[place], row.restarts[place]
            made.append(Cell(reads, predicts, wall, masked))
    return made


def row_lines(row: ShownRow, room: int, most: int) -> list[tuple[str, str]]:
    """What a row reads and what it predicts, position over position, in pairs of lines.

    A line has at most `room` columns. Of a row that needs more than `most` pairs the beginning and,
    in the last pair, the end are shown, and between them how many positions are left out.
    """
    made = cells(row)
    apart = _apart(made)
    widths = [cell.width + (1 if apart or cell.wall else 0) for cell in made]
    lines: list[list[Cell]] = []
    at = 0
    while at < len(made):
        n = _fitting(widths[at:], room)
        if len(lines) == most - 1 and at + n < len(made):
            tail = _fitting(widths[at:][::-1], room - 2 - len(str(row.n_targets)) - 2)
            left_out = sum(cell.n for cell in made[at : len(made) - tail])
            gap = f"…{left_out:,}…"
            lines.append([Cell(gap, gap), *made[len(made) - tail :]])
            break
        lines.append(made[at : at + n])
        at += n
    return [_pair(line, apart) for line in lines]


def _apart(made: Sequence[Cell]) -> str:
    """What stands between the tokens of a row: nothing where each of them is one character."""
    single = all(len(cell.reads) == len(cell.predicts) == 1 for cell in made if not cell.masked)
    return "" if single else BETWEEN


def _pair(line: Sequence[Cell], apart: str) -> tuple[str, str]:
    reads = predicts = ""
    for number, cell in enumerate(line):
        before = WALL if cell.wall else apart if number else ""
        reads += before + _padded(cell.reads, cell.width)
        predicts += before + _padded(cell.predicts, cell.width)
    return reads.rstrip(" "), predicts.rstrip(" ")


def _fitting(widths: Sequence[int], room: int) -> int:
    """How many of the first widths have room, at least one."""
    total = 0
    for number, width in enumerate(widths):
        total += width
        if total > room:
            return max(1, number)
    return len(widths)


def columns(text: str) -> int:
    """Columns that a text takes on a terminal: two for a wide character, none for an accent."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))


def row_words(row: ShownRow) -> str:
    """What a row is, in words."""
    words = f"{row.n_targets:,} targets" if row.n_targets != 1 else "1 target"
    words += f", {row.n_padded:,} padding" if row.n_padded else ""
    if row.opens and row.closes:
        return f"{words}; from the beginning of a document to the end of one"
    begins = "at the beginning of a document" if row.opens else "within a document"
    ends = "at the end of one" if row.closes else "within one"
    return f"{words}; begins {begins}, ends {ends}"


def legend(rows: Sequence[ShownRow]) -> str:
    """What the marks in these rows mean."""
    said = [f"{END_SIGN} end of a document"]
    if any(_apart(cells(row)) for row in rows):
        said.append(f"{BETWEEN} between tokens")
    if any(any(row.restarts) for row in rows):
        said.append(f"{WALL} attention and positions begin anew")
    if any(None in row.targets for row in rows):
        said.append(f"{MASKED} padding, not counted in the loss")
    return ", ".join(said)

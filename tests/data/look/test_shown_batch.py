"""A batch as text: what stands in the tensors, and nothing that could act on a terminal."""

import unicodedata
from typing import Any

import pytest

from minigpt.data.batches import IGNORED, TrainingBatches
from minigpt.data.look.shown_batch import (
    BETWEEN,
    MASKED,
    WALL,
    ShownRow,
    cells,
    columns,
    legend,
    row_lines,
    row_words,
)
from minigpt.evaluate.coloured import END_SIGN
from tests.data.look.conftest import LINES, Look


def row_of(reads: list[str], predicts: list[str], *, walls: tuple[int, ...] = ()) -> ShownRow:
    """A row of these texts; `MASKED` stands for padding."""
    return ShownRow(
        inputs=[None if text == MASKED else 1 for text in reads],
        targets=[None if text == MASKED else 1 for text in predicts],
        positions=None,
        reads=reads,
        predicts=predicts,
        restarts=[place in walls for place in range(len(reads))],
        opens=False,
        closes=False,
    )


@pytest.mark.parametrize("kind", ["bpe", "char", "bytes"])
@pytest.mark.parametrize(
    "settings",
    [{"layout": "packed"}, {"layout": "padded"}, {"layout": "packed", "document_mask": True}],
)
def test_the_rows_are_those_that_training_takes(
    looked: Look, kind: str, settings: dict[str, Any]
) -> None:
    found = looked(kind=kind, step=5, **settings)
    batch = TrainingBatches(
        found.data.train, block_size=16, batch_size=6, seed=found.settings.seed, **settings
    )[5]  # fmt: skip
    assert len(found.rows) == 6
    real = batch.real_positions.tolist()
    for number, row in enumerate(found.rows):
        targets = batch.targets[number].tolist()
        inputs = batch.inputs[number].tolist()
        assert [-100 if i is None else i for i in row.targets] == targets
        assert [i for i in row.inputs if i is not None] == [
            i for i, there in zip(inputs, real[number], strict=True) if there
        ]
        assert row.n_targets == sum(i != IGNORED for i in targets)
        assert row.n_padded == len(inputs) - sum(real[number])
        ends = [place for place, i in enumerate(row.inputs) if i == found.data.train.end_id]
        assert [place for place, text in enumerate(row.reads) if text == END_SIGN] == ends
        masked = [place for place in ends if place and settings.get("document_mask")]
        assert [place for place, wall in enumerate(row.restarts) if wall] == masked
        if row.positions:
            assert all(row.positions[place] == 0 for place in ends)


def test_the_text_of_the_rows_is_that_of_the_documents(looked: Look) -> None:
    found = looked(layout="padded", block_size=256, kind="bpe")
    for row in found.rows:
        pieces = row.predicts[: row.n_targets]
        assert pieces[-1] == END_SIGN
        text = "".join(piece for piece in pieces[:-1] if not piece.startswith("⟨"))
        assert text in LINES
        assert row.reads[0] == END_SIGN
        assert row.reads[1 : row.n_targets] == pieces[:-1]
        assert row_words(row).startswith(f"{row.n_targets} targets")
        assert row_words(row).endswith("from the beginning of a document to the end of one")


def test_position_stands_over_position() -> None:
    row = row_of([END_SIGN, "sea", ".", END_SIGN], ["sea", ".", END_SIGN, "日"], walls=(3,))
    ((reads, predicts),) = row_lines(row, 80, 3)
    assert reads == f"{END_SIGN}  {BETWEEN}sea{BETWEEN}.{WALL}{END_SIGN}"
    assert predicts == f"sea{BETWEEN}.  {BETWEEN}{END_SIGN}{WALL}日"
    assert legend([row]).endswith("attention and positions begin anew")


def test_characters_stand_side_by_side() -> None:
    row = row_of([*"sea ", MASKED, MASKED], [*"ea f", MASKED, MASKED])
    assert row_lines(row, 80, 3) == [(f"sea {MASKED} 2 times", f"ea f{MASKED} 2 times")]
    assert (
        legend([row]) == f"{END_SIGN} end of a document, {MASKED} padding, not counted in the loss"
    )


def test_a_long_row_keeps_its_beginning_and_its_end() -> None:
    words = [f"w{number}" for number in range(500)] + [MASKED] * 20
    row = row_of(words, [*words[1:500], "last", *[MASKED] * 20])
    lines = row_lines(row, 60, 3)
    assert len(lines) == 3
    assert all(columns(text) <= 60 for pair in lines for text in pair)
    assert lines[0][0].startswith(f"w0{BETWEEN} w1".replace(" ", ""))
    shown = [text for reads, _ in lines for text in reads.split(BETWEEN)]
    (gap,) = [text for text in shown if text.startswith("…")]
    left_out = int(gap.strip("… ").replace(",", ""))
    assert len(shown) - 2 + left_out == 500
    assert lines[-1][1].rstrip().endswith(f"last{BETWEEN}{MASKED} 20 times")


def test_padding_is_known_by_the_mask_and_not_by_its_text() -> None:
    row = row_of(["a", "b"], ["b", "c"])
    row.reads[:], row.predicts[:] = [MASKED, MASKED], [MASKED, MASKED]  # a text of such characters
    assert [cell.masked for cell in cells(row)] == [False, False]


def test_nothing_in_a_text_acts_on_a_terminal(looked: Look) -> None:
    texts = [f"\x1b[31mred\x07\r\x9b2J \u202eleft\u2028 {i}" for i in range(40)]
    for kind in ("char", "bytes", "bpe"):
        found = looked(texts, kind=kind)
        lines = [text for row in found.rows for pair in row_lines(row, 80, 3) for text in pair]
        unseen = {"Cc", "Cf", "Zl", "Zp"}
        assert not [c for text in lines for c in text if unicodedata.category(c) in unseen]


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert columns("日本") == 4
    assert columns("e\u0301") == 1
    assert columns("sea") == 3


def test_the_one_batch_of_overfitting_is_the_same_at_every_step(looked: Look) -> None:
    first, later = looked(overfit=True, block_size=64), looked(overfit=True, block_size=64, step=9)
    assert first.rows == later.rows
    assert first.batch_size == len(first.rows)

"""The page: it parses, lets nothing of a document act, and has every position of the batch."""

import html
import re

import numpy as np
import pytest

from minigpt.data.look import report
from minigpt.data.look.report import page
from minigpt.evaluate.coloured import END_SIGN
from tests.data.look.conftest import LINES, Look
from tests.evaluate.test_report import OPEN, read


def columns_of(text: str) -> list[tuple[int, int, int]]:
    """The columns of all histograms: from, to, how many."""
    found = re.findall(r"<title>([\d,]+) to ([\d,]+): (\d+)</title>", text)
    return [(int(a.replace(",", "")), int(b.replace(",", "")), int(n)) for a, b, n in found]


def test_it_parses_and_lets_nothing_of_a_document_act(looked: Look) -> None:
    texts = [f"<script>alert({i})</script>\" onmouseover='x' &amp; </span></p>" for i in range(40)]
    reader = read(page(looked(texts, kind="char", layout="padded", block_size=128)))
    assert all(tag in OPEN | {"html"} for tag in reader.tags)
    assert not reader.seen & {"script", "img", "link", "iframe"}
    assert not [name for name in reader.attributes if name.startswith("on")]
    assert not {"src", "href"} & set(reader.attributes)
    shown = "".join(text for _, text in reader.tokens)
    assert sum(shown.count(f"{END_SIGN}{text}") for text in texts) == 6


def test_the_columns_hold_every_document(looked: Look) -> None:
    found = looked(kind="bytes")
    lengths = np.concatenate([found.train.lengths, found.validation.lengths])
    columns = columns_of(page(found))
    assert sum(n for _, _, n in columns) == len(lengths) == 40
    low = found.train.quantiles[0]
    for start, end, n in columns[: len(columns) - 4]:
        assert start >= low
        assert n == int(((found.train.lengths >= start) & (found.train.lengths < end)).sum())


def test_a_few_far_longer_documents_share_the_last_column(looked: Look) -> None:
    texts = [f"{'a' * (1 + i % 30)}" for i in range(1000)]
    texts[500] = "b" * 5000
    text = page(looked(texts, kind="char"))
    assert "the last column holds 1 beyond it, up to 5,001" in text
    assert "16 tokens." in text


def test_one_document_has_no_histogram(looked: Look) -> None:
    text = page(looked(["the sea of stars " * 40]))
    assert "Lengths of" not in text
    read(text)


def test_every_row_is_there_with_what_it_predicts(
    looked: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked(kind="char", document_mask=True, block_size=100)
    text = page(found)
    assert text.count("<h3>row ") == len(found.rows) == 6
    cells = re.findall(r"<span(?: class=\"\w+\")?><b>(.*?)</b><i>(.*?)</i></span>", text)
    first = [(html.unescape(a), html.unescape(b)) for a, b in cells[:100]]
    assert first == list(zip(found.rows[0].reads, found.rows[0].predicts, strict=True))
    assert text.count('class="wall"') == sum(sum(row.restarts) for row in found.rows) > 0
    assert "<b>é" in text  # as it stands in the lines
    monkeypatch.setattr(report, "MOST_POSITIONS", 250)
    assert "… and 4 rows more" in page(found)


def test_what_is_padding_is_marked(looked: Look) -> None:
    found = looked(layout="padded", kind="char", block_size=64)
    padded = [row for row in found.rows if row.n_padded]
    text = page(found)
    assert text.count('class="masked"') == len(padded) > 0
    assert len(LINES) == found.train.store.n_documents + found.validation.store.n_documents

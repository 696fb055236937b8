"""The report: HTML that parses, escapes what documents hold, and shows every token."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from minigpt.checkpoint import LoadedModel
from minigpt.config import DataConfig, ModelConfig, TokenizerConfig
from minigpt.data.corpora import load_corpus
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.evaluate.coloured import (
    EDGES,
    END_SIGN,
    coloured,
    legend,
    percent,
    pieces,
    signs,
    step,
    token_name,
)
from minigpt.evaluate.config import EvaluateConfig
from minigpt.evaluate.extremes import Excerpt
from minigpt.evaluate.measurement import Measurement, Subject, measure
from minigpt.evaluate.report import _DARK, _LIGHT, page
from minigpt.evaluate.told import comparison_rows, rows
from minigpt.generation.logprobs import Scores
from minigpt.model.gpt import GPT
from tests.evaluate.test_scoring import store_of

VOID = {"meta", "br", "rect", "line"}
#: Tags whose end HTML leaves out.
OPEN = {"tr", "td", "th", "p"}


class Reader(HTMLParser):
    """Tags, titles and text; fails where tags are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.seen: set[str] = set()
        self.tokens: list[tuple[str, str]] = []  # title and text
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.tags.append(tag)
        if tag == "b":
            self.tokens.append((dict(attrs).get("title") or "", ""))

    def handle_endtag(self, tag: str) -> None:
        while self.tags and self.tags[-1] != tag and self.tags[-1] in OPEN:
            self.tags.pop()
        if tag not in VOID:
            assert self.tags, tag
            assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "b":
            title, text = self.tokens[-1]
            self.tokens[-1] = title, text + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def tokenizer_for(*texts: str, kind: str = "bytes") -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind), list(texts))


def excerpt_of(tokenizer: Tokenizer, text: str, bits: float = 2.0) -> Excerpt:
    ids = np.array([*tokenizer.encode(text), tokenizer.end_id])
    n = len(ids)
    logprobs = np.full(n, -bits * math.log(2))
    scores = Scores(logprobs, np.full(n, ids[0], dtype=np.int32), np.full(n, -0.5))
    return Excerpt(0, n, 1.0, 0, ids, scores)


def measured(texts: list[str], *, models: int = 1) -> Measurement:
    tokenizer = tokenizer_for()
    subjects: list[Subject] = []
    for seed in range(models):
        torch.manual_seed(seed)
        config = ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=16)
        model = GPT(config, tokenizer.vocab_size).eval()
        store = store_of(tokenizer, texts)
        subjects.append(Subject(f"m{seed}", LoadedModel(model, tokenizer, {}), [store], 8))
    corpus = load_corpus(DataConfig(corpus="stdlib"))  # one that knows no probabilities
    return measure(subjects, corpus, EvaluateConfig(bootstrap=50))


def report_of(found: Measurement) -> str:
    told = rows(found, EvaluateConfig()) + comparison_rows(found)
    return page({"model": "<m> & co"}, told, found)


def test_every_token_of_a_short_document_is_shown_with_its_probability() -> None:
    tokenizer = tokenizer_for()
    reader = read(coloured(tokenizer, excerpt_of(tokenizer, "sea <b>&\"'")))
    assert [text for _, text in reader.tokens] == [*"sea <b>&\"'", END_SIGN]
    assert reader.tokens[0][0] == "“s”: 25%, 2.00 bits; the best guess"
    assert reader.tokens[1][0] == "“e”: 25%, 2.00 bits; best guess “s”: 60.7%"
    assert reader.tokens[-1][0].startswith("end of document: 25%")


def test_a_character_of_several_tokens_stands_with_the_last_of_them() -> None:
    tokenizer = tokenizer_for()
    ids = tokenizer.encode("aé日")
    assert list(pieces(tokenizer, ids)) == ["a", "⟨c3⟩", "é", "⟨e6⟩", "⟨97⟩", "日"]
    # an excerpt that begins within a character
    assert list(pieces(tokenizer, ids[2:])) == ["⟨a9⟩", "⟨e6⟩", "⟨97⟩", "日"]
    assert token_name(tokenizer, ids[1]) == "bytes c3"


def test_what_is_not_seen_has_a_sign() -> None:
    tokenizer = tokenizer_for()
    shown = "".join(pieces(tokenizer, tokenizer.encode("\0\n\t\r\x7f")))
    assert shown == "␀↵\n⇥\t␍␡"
    char = tokenizer_for("\u202e\x85\ufffe", kind="char")
    shown = "".join(pieces(char, char.encode("\u202e\x85\ufffe")))
    assert shown == "⟨U+202E⟩⟨U+0085⟩⟨U+FFFE⟩"
    assert token_name(tokenizer, tokenizer.encode("\n")[0]) == "“↵”"
    assert token_name(tokenizer, tokenizer.vocab_size + 2).endswith("in no text")


@pytest.mark.parametrize(
    "character", ["\u200b", "\ufeff", "\u00ad", "\u2028", "\u00a0", "\u3000", "\u200d", "\u061c"]
)
def test_no_blank_passes_for_another(character: str) -> None:
    assert signs(f"a{character}b c") == f"a⟨U+{ord(character):04X}⟩b c"


def test_colours_rise_with_surprise() -> None:
    numbers = [step(bits) for bits in np.linspace(0, 30, 500)]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert numbers[-1] == len(EDGES)
    assert legend().count("<div><b ") == len(EDGES) + 1
    assert percent(0.0) == "100%"
    assert percent(-1e6) == "next to 0%"


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("scale", "ink"), [(_LIGHT, "#1a1a1a"), (_DARK, "#eeeeee")])
def test_every_colour_can_be_read_on_and_told_by_lightness(
    scale: tuple[str, ...], ink: str
) -> None:
    light = [luminance(colour) for colour in scale]
    assert len(scale) == len(EDGES) + 1
    assert light == sorted(light, reverse=scale is _LIGHT)
    for each in light:
        brighter, darker = max(each, luminance(ink)), min(each, luminance(ink))
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5  # WCAG AA


@pytest.mark.parametrize("models", [1, 2])
def test_a_report_parses_and_lets_nothing_of_a_document_act(models: int) -> None:
    texts = ["<script>alert(1)</script>", "a\" onmouseover='x' &amp; </b></table>", "the sea " * 9]
    reader = read(report_of(measured(texts, models=models)))
    assert all(tag in OPEN | {"html"} for tag in reader.tags)
    assert not reader.seen & {"script", "img", "link", "iframe"}
    assert not [name for name in reader.attributes if name.startswith("on")]
    assert not {"src", "href"} & set(reader.attributes)
    shown = "".join(text for _, text in reader.tokens)
    for text in texts:
        assert text + END_SIGN in shown
    for part in ("Documents by loss", "The most surprising places", "Kinds of token"):
        assert part in report_of(measured(texts))


def test_one_document_makes_a_report_too() -> None:
    text = report_of(measured(["the sea"]))
    assert "Documents by loss" not in text
    assert "The most expected" not in text  # it is among the least expected
    read(text)


def test_a_long_document_is_cut_with_a_note() -> None:
    text = report_of(measured(["a" * 2000, "b"]))
    assert re.search(r"… and 501 tokens more", text)


def test_two_models_that_are_one_differ_nowhere() -> None:
    found = measured(["the sea", "my heart"], models=1)
    twice = (found.subjects[0], found.subjects[0])
    corpus = load_corpus(DataConfig(corpus="stdlib"))
    same = measure(twice, corpus, EvaluateConfig(bootstrap=50))
    difference = same.figures["difference_in_bits_per_byte"]
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    assert report_of(same).count("Nowhere.") == 2

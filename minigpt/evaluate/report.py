"""The report: one HTML file that needs nothing from outside it and no scripts."""

import html
import math
from collections.abc import Sequence

import numpy as np

from minigpt.data.tokenizer import Tokenizer
from minigpt.evaluate.coloured import coloured, legend, percent, token_name
from minigpt.evaluate.config import TITLE
from minigpt.evaluate.extremes import Excerpt, Extremes
from minigpt.evaluate.measurement import Measurement
from minigpt.evaluate.told import Row
from minigpt.histogram import STYLE, histogram
from minigpt.output import beginning_of_page

#: Kinds of token that are listed at either end, and how often one has to have come.
KINDS, LEAST_COUNT = 15, 10

#: Columns of the histogram, and documents from which on its largest losses share one.
COLUMNS, MANY = 40, 200

_text = html.escape


def page(facts: dict[str, str], rows: Sequence[Row], found: Measurement) -> str:
    """The whole measurement as one HTML file."""
    tokenizer = found.subjects[0].loaded.tokenizer
    extremes = found.extremes
    half = found.n_documents // 2  # of a few documents none is shown twice
    least, most = extremes.least.ranked(), extremes.most.ranked()
    sections = [
        _histogram(found),
        _documents(
            "The least expected documents" if half else "The document",
            least[: found.n_documents - half],
            tokenizer,
        ),
        _documents("The most expected documents", most[:half], tokenizer),
        _differences(found),
        _places(extremes, tokenizer),
        _kinds(extremes, tokenizer),
    ]
    return (
        beginning_of_page(TITLE)
        + STYLE
        + _PAGE.format(
            facts="".join(f"<tr><th>{_text(k)}<td>{_text(v)}" for k, v in facts.items()),
            rows="".join(
                f"<tr><th>{_text(row.name)}<td>{_text(row.text)}<br><small>{_text(row.meaning)}</small>"
                for row in rows
            ),
            colours=_colours(),
            legend=legend(),
            sections="".join(sections),
        )
    )


def _histogram(found: Measurement) -> str:
    """How the documents' bits per byte are spread, as a picture."""
    bits = found.columns["nats"] / math.log(2) / found.columns["bytes"]
    if len(bits) < 2:
        return ""
    # a few documents far beyond the others would leave them no room
    low, high = np.quantile(bits, [0, 0.995 if len(bits) >= MANY else 1]).tolist()
    counts, edges = np.histogram(
        np.minimum(bits, high), bins=COLUMNS, range=(low, max(high, low + 1e-3))
    )
    mean = found.figures["bits_per_byte"].value
    beyond = int((bits > high).sum())
    tail = f"; the last column holds {beyond} beyond it, up to {bits.max():.2f}" if beyond else ""
    return (
        "<h2>Documents by loss</h2>"
        + histogram(
            counts.tolist(),
            edges.tolist(),
            label="Documents by bits per byte",
            shown=lambda bits: f"{bits:.2f}",
            mark=mean,
        )
        + f"<p><small>Documents (up) by their bits per byte (across){tail}. The dashed line is the"
        f" figure of them all, {mean:.4f}.</small></p>"
    )


def _documents(heading: str, kept: Sequence[tuple[float, Excerpt]], tokenizer: Tokenizer) -> str:
    shown = "".join(_document(each, tokenizer) for _, each in kept)
    return f"<h2>{heading}</h2>{shown}" if shown else ""


def _document(shown: Excerpt, tokenizer: Tokenizer, name: str = "") -> str:
    """One document, coloured, with its loss over it and what is left out under it."""
    heading = f"{name}document {shown.number + 1:,}: {shown.bits_per_byte:.3f} bits per byte"
    left = shown.n_tokens - len(shown.ids)
    note = f"<p><small>… and {left:,} tokens more</small></p>" if left > 0 else ""
    return f"<h3>{heading}, {shown.n_tokens:,} tokens</h3>{coloured(tokenizer, shown)}{note}"


def _differences(found: Measurement) -> str:
    """The documents on which the two models differ most, as each of them finds them."""
    if len(found.subjects) < 2:
        return ""
    tokenizers = [subject.loaded.tokenizer for subject in found.subjects]
    parts: list[str] = []
    for heading, kept in (
        ("Where B is furthest ahead of A", found.extremes.better),
        ("Where B is furthest behind A", found.extremes.worse),
    ):
        parts.append(f"<h2>{heading}</h2>")
        for _, pair in kept.ranked():
            for name, shown, tokenizer in zip("AB", pair, tokenizers, strict=True):
                parts.append(_document(shown, tokenizer, f"{name}, "))
        if not kept.ranked():
            parts.append("<p>Nowhere.</p>")
    return "".join(parts)


def _places(extremes: Extremes, tokenizer: Tokenizer) -> str:
    items = ""
    for loss, (shown, place) in extremes.places.ranked():
        token, guess = int(shown.ids[place]), int(shown.scores.guesses[place])
        best = percent(float(shown.scores.guess_logprobs[place]))
        items += (
            f"<tr><td>{loss / math.log(2):.1f}"
            f"<td>{_text(token_name(tokenizer, token))}, {percent(-loss)}"
            f"<td>{_text(token_name(tokenizer, guess))}, {best}"
            f"<td>{coloured(tokenizer, shown, place)}"
            f"<small>document {shown.number + 1:,}, token {shown.start + place + 1:,}</small>"
        )
    return (
        "<h2>The most surprising places</h2><table><tr><th>bits<th>token<th>best guess<th>where"
        f"{items}</table>"
    )


def _kinds(extremes: Extremes, tokenizer: Tokenizer) -> str:
    often = np.flatnonzero(extremes.counts >= LEAST_COUNT)
    if not len(often):
        return ""
    means = extremes.sums[often] / extremes.counts[often]
    order = often[np.argsort(-means, kind="stable")]
    by_sum = np.argsort(-extremes.sums, kind="stable")
    lists = (
        ("the largest part of the loss", by_sum[extremes.counts[by_sum] > 0][:KINDS]),
        ("the most surprising", order[:KINDS]),
        ("the least surprising", order[::-1][:KINDS]),
    )
    whole = float(extremes.sums.sum())
    tables = "".join(_kinds_table(name, kinds.tolist(), extremes, whole, tokenizer)
                     for name, kinds in lists)  # fmt: skip
    return (
        f"<h2>Kinds of token</h2><p><small>By mean surprise: those that came {LEAST_COUNT} times or"
        f' more.</small></p><div class="columns">{tables}</div>'
    )


def _kinds_table(
    name: str, kinds: Sequence[int], extremes: Extremes, whole: float, tokenizer: Tokenizer
) -> str:
    rows = "".join(
        f"<tr><td>{_text(token_name(tokenizer, token))}<td>{extremes.counts[token]:,}"
        f"<td>{extremes.sums[token] / extremes.counts[token] / math.log(2):.2f}"
        f"<td>{extremes.sums[token] / whole if whole else 0:.1%}"
        for token in kinds
    )
    return (
        f"<table><caption>{name}</caption><tr><th>token<th>times<th>mean bits<th>of the loss"
        f"{rows}</table>"
    )


#: Background and ink of each step, light and dark: one hue, lightness falls or rises throughout.
_LIGHT = ("#fffdf8", "#fff5e0", "#ffeac2", "#ffdd9f", "#ffcf7a", "#ffbf52", "#fbab3a", "#f2942a",
          "#e67d1f", "#d96618")  # fmt: skip
_DARK = ("#1b1b1b", "#27211a", "#33281a", "#412f18", "#503616", "#603c14", "#724212", "#864810",
         "#9a4d0e", "#ab510c")  # fmt: skip


def _colours() -> str:
    """The style of each step of surprise."""
    light = "".join(f".s{n} {{ background: {colour} }} " for n, colour in enumerate(_LIGHT))
    dark = "".join(f".s{n} {{ background: {colour} }} " for n, colour in enumerate(_DARK))
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark}}}"


_PAGE = """caption {{ text-align: left; font-weight: bold; padding: .35rem .6rem }}
.text {{ font: 15px/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate }}
.text b, .legend b {{ font-weight: normal; border-radius: 2px }}
.here {{ outline: 2px solid var(--ink); outline-offset: -1px }}
.legend {{ display: grid; grid-template-columns: repeat(5, max-content); gap: .6rem 1.6rem }}
.columns td:first-child {{ white-space: pre }}
.columns {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem }}
{colours}
</style>
<h1>Evaluation of a model</h1>
<table>{facts}</table>
<h2>Figures</h2>
<table>{rows}</table>
<h2>Colours</h2>
<p>Each token stands on the colour of its surprise, &minus;log&#8322; p, in bits; more on each when
the pointer rests on it. What no eye would see has a sign: &#8629; a new line, &#8677; a tab,
&#8718; the end of the document.</p>
{legend}
{sections}
</html>
"""

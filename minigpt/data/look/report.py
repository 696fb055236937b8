"""The look as one HTML file that needs nothing from outside it and no scripts."""

import html

import numpy as np

from minigpt.data.look.config import TITLE
from minigpt.data.look.figures import Part
from minigpt.data.look.found import Found
from minigpt.data.look.shown_batch import MASKED, Cell, ShownRow, cells, row_words
from minigpt.data.look.told import Facts, facts, figures, repeats, rows_of_a_step, vocabulary
from minigpt.evaluate.coloured import END_SIGN
from minigpt.histogram import STYLE, histogram
from minigpt.output import beginning_of_page

#: Columns of the histogram; of so many documents the longest share one, where they are so many
#: times as long as nearly all others.
COLUMNS, MANY, FAR = 40, 200, 1.25

#: Positions of the batch that are shown, so that a page stays one that a browser can open.
MOST_POSITIONS = 100_000

_text = html.escape


def page(found: Found) -> str:
    """All that was found as one HTML file."""
    sections = [
        _facts("Vocabulary", vocabulary(found)),
        _lengths("Lengths of the training documents", found.train, found.block_size),
        _lengths("Lengths of the validation documents", found.validation, found.block_size),
        _facts("Exact repeats", repeats(found)),
        _facts("Rows", rows_of_a_step(found)),
        _batch(found),
    ]
    rows = "".join(
        f"<tr><th>{_text(name)}<td>{train}<td>{held}" for name, train, held in figures(found)
    )
    return (
        beginning_of_page(TITLE)
        + STYLE
        + _PAGE.format(
            title=TITLE,
            facts=_rows(facts(found)),
            figures=f'<table class="numbers"><tr><th><td>training<td>validation{rows}</table>',
            sections="".join(sections),
        )
    )


def _facts(heading: str, said: Facts) -> str:
    return f"<h2>{heading}</h2><table>{_rows(said)}</table>"


def _rows(said: Facts) -> str:
    return "".join(f"<tr><th>{_text(name)}<td>{_text(text)}" for name, text in said.items())


def _lengths(heading: str, part: Part, block_size: int) -> str:
    """How long the documents of a part are, as a picture; nothing of fewer than two."""
    lengths = part.lengths
    if len(lengths) < 2:
        return ""
    low, high = part.quantiles[0], part.quantiles[-1]
    most = int(np.quantile(lengths, 0.995, method="inverted_cdf"))
    if len(lengths) >= MANY and high > FAR * most:
        high = most  # a few documents far longer than the others would leave them no room
    wide = max(1, -(-(high - low + 1) // COLUMNS))  # whole tokens: no column has room for more
    n = max(1, -(-(high - low + 1) // wide))
    counts = np.bincount(np.minimum((lengths - low) // wide, n - 1), minlength=n)
    edges = [float(low + wide * number) for number in range(n + 1)]
    beyond = int((lengths >= edges[-1]).sum())
    tail = (
        f"; the last column holds {beyond:,} beyond it, up to {lengths.max():,}" if beyond else ""
    )
    where = "" if edges[0] <= block_size <= edges[-1] else ", beyond what is shown"
    return (
        f"<h2>{heading}</h2>"
        + histogram(
            counts.tolist(), edges, label=heading, shown=lambda n: f"{n:,.0f}", mark=block_size
        )
        + f"<p><small>Documents (up) by their tokens, the end included (across){tail}. The dashed"
        f" line is the model's context, {block_size:,} tokens{where}.</small></p>"
    )


def _batch(found: Found) -> str:
    """Every row of the batch: what each position reads, and under it what it is to predict."""
    rows: list[str] = []
    positions = 0
    for number, row in enumerate(found.rows, 1):
        positions += len(row.inputs)
        if positions > MOST_POSITIONS and rows:
            rows.append(f"<p>… and {len(found.rows) - number + 1:,} rows more</p>")
            break
        rows.append(f"<h3>row {number}: {_text(row_words(row))}</h3>{_row(row)}")
    return (
        f"<h2>The batch of step {found.step:,}</h2><p>Of each position the token that is read"
        " stands above, and under it the one that is to be predicted."
        f" {END_SIGN} ends a document. {MASKED} is padding: it is neither read nor counted in the"
        " loss. A thick line stands where attention and positions begin anew.</p>" + "".join(rows)
    )


def _row(row: ShownRow) -> str:
    return f'<div class="row">{"".join(map(_cell, cells(row)))}</div>'


def _cell(cell: Cell) -> str:
    kind = ' class="wall"' if cell.wall else ' class="masked"' if cell.masked else ""
    return f"<span{kind}><b>{_text(cell.reads)}</b><i>{_text(cell.predicts)}</i></span>"


_PAGE = """th {{ white-space: pre; width: 8rem }}
td {{ overflow-wrap: anywhere }}
.numbers {{ width: auto }} .numbers td {{ text-align: right; padding-left: 2rem }}
.row {{ font: 14px/1.4 ui-monospace, monospace; display: flex; flex-wrap: wrap; row-gap: .5rem }}
.row span {{ border-left: 1px solid var(--line); padding: 0 1px }}
.row b, .row i {{ display: block; font: inherit; white-space: pre; min-width: .6em;
  min-height: 1.4em; unicode-bidi: isolate }}
.row i {{ color: var(--soft) }}
.row .wall {{ border-left: 4px double var(--ink) }}
.row .masked {{ background: repeating-linear-gradient(45deg, transparent 0 4px, var(--line) 4px
  5px) }}
</style>
<h1>{title}</h1>
<table>{facts}</table>
<h2>Documents</h2>
{figures}
{sections}
</html>
"""

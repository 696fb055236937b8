"""What was found, told: in lines of text for the screen, and as plain data."""

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from minigpt.data.corpora.corpus import counted
from minigpt.data.look.figures import QUANTILES, Part, document_ids, most_frequent
from minigpt.data.look.found import Found
from minigpt.data.look.shown_batch import ShownRow, columns, legend, row_lines, row_words
from minigpt.evaluate.coloured import signs, token_name
from minigpt.run_folder import as_seen_from_here
from minigpt.settings import shortened
from minigpt.training.progress import table

#: Columns of a line.
WIDTH = 100
#: Columns before what is said.
_INDENT = 12
#: Pairs of lines that a row of the batch takes at most.
MOST_LINES = 3
#: Tokens that are listed as the most frequent, and those that only validation has.
MOST_FREQUENT, MOST_UNSEEN = 12, 5
#: Tokens and columns of a document that is shown as an example.
_EXAMPLE_TOKENS, _EXAMPLE = 100, 60

#: Why something is left out of a corpus, by its name there.
_WHY = {"blank one": "white space or nothing", "binary file": "not text"}

_NAMES = {0.0: "shortest", 1.0: "longest"}

#: A name, and what is said of it.
Facts = dict[str, str]


def facts(found: Found) -> Facts:
    """What was prepared, and how."""
    data, settings = found.data, found.settings
    tokenizer = data.tokenizer
    left_out = [
        f"{counted(n, what)} ({_WHY[what]})" if what in _WHY else counted(n, what)
        for what, n in data.corpus.left_out.items()
        if n
    ]
    limit = settings.data.max_documents
    limited = limit and settings.data.corpus != "stories"
    more = f"; no more than data.max_documents={limit} were read" if limited else ""
    made = "used again" if data.reused else "made now"
    beginning, nothing = "", "nothing"
    if data.corpus.is_head:
        beginning = " at its beginning; training reads on, and shuffles otherwise"
        nothing = "not counted in a stream"
    return {
        "corpus": f"{data.corpus.name}, {counted(data.corpus.n_documents, 'document')}{beginning}",
        "left out": (" and ".join(left_out) or nothing) + more,
        "tokenizer": f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens",
        "prepared": f"{as_seen_from_here(data.folder)}, {made}",
    }


def figures(found: Found) -> list[tuple[str, str, str]]:
    """A line for each figure of both parts: what it is, of training, of validation."""

    def line(name: str, figure: Callable[[Part], str]) -> tuple[str, str, str]:
        return name, figure(found.train), figure(found.validation)

    lengths = [
        line(
            f"  {_NAMES.get(share, f'{share:.0%} have at most')}",
            lambda part, number=number: f"{part.quantiles[number]:,}",
        )
        for number, share in enumerate(QUANTILES)
    ]
    return [
        line("documents", lambda part: f"{part.store.n_documents:,}"),
        line("bytes of text", lambda part: f"{part.store.n_bytes:,}"),
        line("tokens of text", lambda part: f"{part.n_tokens:,}"),
        line("bytes per token", lambda part: f"{part.bytes_per_token:.3f}"),
        line("targets, ends included", lambda part: f"{part.store.n_targets:,}"),
        ("tokens of a document, its end included", "", ""),
        *lengths,
        line(f"  above {found.block_size:,}, the context", lambda p: f"{found.n_long(p):,}"),
    ]


def vocabulary(found: Found) -> Facts:
    """How much of the vocabulary is used, and by what."""
    train, tokenizer = found.train, found.data.tokenizer
    n_tokens = tokenizer.vocab_size - 1  # the end token is no text's
    used = int(np.count_nonzero(train.counts))
    often = ", ".join(
        f"{_name(found, token)}\xa0{train.counts[token] / train.n_tokens:.1%}"
        for token in most_frequent(train.counts, MOST_FREQUENT)
    )
    never = "no token of the validation part"
    if n := int(found.unseen.sum()):
        listed = [_name(found, token) for token in most_frequent(found.unseen, MOST_UNSEEN)]
        more = ["…"] if np.count_nonzero(found.unseen) > MOST_UNSEEN else []
        never = (
            f"{n:,} of the validation part's tokens ({n / found.validation.n_tokens:.2%}):"
            f" {', '.join(listed + more)}"
        )
    return {
        "used": f"{used:,} of {n_tokens:,} tokens stand in the training part,"
        f" {n_tokens - used:,} never",
        "most often": often,
        "never seen": never,
    }


def _name(found: Found, token: int) -> str:
    """A token in words, in which no line is broken."""
    return token_name(found.data.tokenizer, token).replace(" ", "\xa0")


def repeats(found: Found) -> Facts:
    """Documents that are there more than once, in a part and across the split."""
    said: Facts = {}
    for name, part in (("training", found.train), ("validation", found.validation)):
        said[name] = "none"
        if n := part.repeats.count:
            said[name] = (
                f"{counted(n, 'document')} ({n / part.store.n_documents:.1%}) with the text of an"
                f" earlier one; {part.repeats.times:,} times"
                f" {example(found, part, part.repeats.document)}"
            )
    said["across"] = "none"
    if n := len(found.in_both):
        held_out = found.validation.store.n_documents
        said["across"] = (
            f"warning: the training part has {n:,} of {counted(held_out, 'validation document')}"
            f" ({n / held_out:.1%}) too, so the validation loss is too low;"
            f" {example(found, found.validation, int(found.in_both[0]))}, is document"
            f" {found.seen_as + 1:,} of training"
        )
    return said


def example(found: Found, part: Part, number: int) -> str:
    """The number of a document and how it begins."""
    ids = document_ids(part.store, number, _EXAMPLE_TOKENS).tolist()
    text = signs(" ".join(found.data.tokenizer.decode(ids).split()))
    most = _EXAMPLE * len(text) // max(1, columns(text))
    return f"document {number + 1:,}, “{shortened(text, most)}”"


def rows_of_a_step(found: Found) -> Facts:
    """How documents become rows, and how much of them is padding."""
    data = found.settings.data
    if found.settings.overfit:
        made = f"{counted(found.batch_size, 'row')}, the same at every step"
    else:
        made = (
            f"{data.layout}, {counted(found.n_rows, 'row')} an epoch in steps of"
            f" {found.batch_size:,}, {found.n_rows / found.batch_size:,.1f} steps"
        )
    cut = found.n_long(found.train)
    if data.layout == "packed" and not found.settings.overfit:
        made += f"; windows of {found.block_size:,} tokens"
    elif cut:
        made += f"; {counted(cut, 'document')} longer than {found.block_size:,} cut into several"
    masked = data.document_mask
    steps = counted(found.sampled_steps, "step")
    return {
        "rows": made,
        "attention": "stays inside a document" if masked else "reaches all that a row has before",
        "padding": f"{1 - found.real_share:.1%} of the positions of the first {steps}",
    }


def told(found: Found, shown: int) -> str:
    """All of it as lines of text, with so many rows of the batch."""
    rows = [("", "training", "validation"), *figures(found)]
    width = max(len(name) for name, _, _ in rows) + 2
    lines = [
        *_lines(facts(found)),
        "",
        *(f"{name:<{width}}{train:>15}{held:>15}".rstrip() for name, train, held in rows),
    ]
    for heading, said in (
        ("Vocabulary", vocabulary(found)),
        ("Exact repeats", repeats(found)),
        ("Rows", rows_of_a_step(found)),
    ):
        lines += ["", heading, *_lines(said)]
    return "\n".join([*lines, *batch_lines(found, shown)])


def _lines(said: Facts) -> list[str]:
    """Names and what is said of each, in lines that end where words do."""
    folded = {
        name: textwrap.fill(
            text, WIDTH - _INDENT, subsequent_indent=" " * _INDENT,
            break_long_words=False, break_on_hyphens=False,
        ).replace("\xa0", " ")
        for name, text in said.items()
    }  # fmt: skip
    return [table(folded)]


def spaced(found: Found, count: int) -> list[tuple[int, ShownRow]]:
    """So many rows of the batch, evenly spread, for they may be in order of length; from 1."""
    n = len(found.rows)
    places = np.linspace(0, n - 1, min(count, n)).round().astype(int).tolist()
    return [(place + 1, found.rows[place]) for place in places]


def batch_lines(found: Found, shown: int) -> list[str]:
    """Rows of the batch, position over position."""
    rows = spaced(found, shown)
    told = legend([row for _, row in rows])
    lines = ["", f"The batch of step {found.step:,}: {told}"] if rows else []
    for number, row in rows:
        lines.append(f"row {number} of {len(found.rows):,}: {row_words(row)}")
        for reads, predicts in row_lines(row, WIDTH - _INDENT, MOST_LINES):
            lines += [f"  reads     {reads}", f"  predicts  {predicts}"]
    return lines


def as_data(found: Found, shown: int) -> dict[str, Any]:
    """All of it as plain data, with so many rows of the batch."""
    data, settings, train = found.data, found.settings, found.train
    tokenizer = data.tokenizer
    return {
        "corpus": data.corpus.name,
        "left_out": data.corpus.left_out,
        "prepared": str(data.folder),
        "reused": data.reused,
        "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size},
        "block_size": found.block_size,
        "train": _part_as_data(found, train),
        "validation": _part_as_data(found, found.validation)
        | {"in_training_too": len(found.in_both), "never_seen": int(found.unseen.sum())},
        "vocabulary": {
            "used": int(np.count_nonzero(train.counts)),
            "most_often": {
                str(token): int(train.counts[token])
                for token in most_frequent(train.counts, MOST_FREQUENT)
            },
        },
        "rows": {
            "layout": settings.data.layout,
            "document_mask": settings.data.document_mask,
            "of_an_epoch": found.n_rows,
            "of_a_step": found.batch_size,
            "real_share": {"steps": found.sampled_steps, "value": found.real_share},
        },
        "batch": {
            "step": found.step,
            "rows": [
                {"inputs": row.inputs, "targets": row.targets, "positions": row.positions}
                for _, row in spaced(found, shown)
            ],
        },
    }


def _part_as_data(found: Found, part: Part) -> dict[str, Any]:
    return {
        "documents": part.store.n_documents,
        "bytes": part.store.n_bytes,
        "tokens": part.n_tokens,
        "targets": part.store.n_targets,
        "bytes_per_token": part.bytes_per_token,
        "lengths": dict(zip(map(str, QUANTILES), part.quantiles, strict=True)),
        "longer_than_block_size": found.n_long(part),
        "repeats": part.repeats.count,
    }

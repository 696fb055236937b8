"""The figures in words: rows of a table, and plain data."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minigpt.evaluate.config import EvaluateConfig
from minigpt.evaluate.figures import Figure, verdict
from minigpt.evaluate.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Row:
    """A figure for a person: its short name, what it is, and what it means."""

    name: str
    text: str
    meaning: str


def with_interval(figure: Figure, form: str) -> str:
    """A figure and its interval: `1.234 (1.2 to 1.3)`."""
    value = format(figure.value, form)
    if figure.low is None or figure.high is None:
        return value
    return f"{value} ({format(figure.low, form)} to {format(figure.high, form)})"


def rows(found: Measurement, config: EvaluateConfig) -> list[Row]:
    """What the first model reached; each with its interval where there is one."""
    figures = found.figures
    told = [
        Row(
            "loss",
            f"{with_interval(figures['nats_per_token'], '.4f')} nats a token",
            "negative log-likelihood of the documents over their tokens",
        ),
        Row(
            "perplexity",
            with_interval(
                figures["perplexity"], ",.2f" if figures["perplexity"].value < 1e5 else ".3g"
            ),
            "e to the power of the loss: as uncertain as among so many equally probable tokens",
        ),
        Row(
            "per byte",
            f"{with_interval(figures['bits_per_byte'], '.4f')} bits",
            "the loss in bits over the bytes of the text: the same scale for every tokenizer",
        ),
        Row(
            "per char",
            f"{with_interval(figures['bits_per_character'], '.4f')} bits",
            "the loss in bits over the characters of the text",
        ),
    ]
    if "gap" in figures:
        form = ".4f" if figures["gap"].value >= 0 else "+.4f"  # of few documents it may be less
        told.append(
            Row(
                "floor",
                f"{with_interval(figures['floor'], '.4f')} nats a token; this model is"
                f" {with_interval(figures['gap'], form)} above it",
                "the loss of the grammar itself, which no model can be below on average",
            )
        )
    if found.valid is not None:
        told.append(
            Row(
                "valid",
                f"{with_interval(found.valid, '.1%')} of {config.samples:,} sampled stories obey"
                " the grammar",
                "samples from the start of a document, at temperature 1",
            )
        )
    return told


def interval_words(found: Measurement, config: EvaluateConfig) -> str:
    """What the numbers in parentheses are, or why there are none."""
    if found.n_documents < 2:
        return "none: one document does not show how much documents differ"
    if not config.bootstrap:
        return "none: bootstrap=0"
    return (
        f"in parentheses, {100 * config.confidence:g}% of {config.bootstrap:,} resamples of the"
        f" {found.n_documents:,} documents"
    )


def comparison_rows(found: Measurement) -> list[Row]:
    """The second model beside the first, if there is one; A is the first, B the second."""
    if len(found.subjects) < 2:
        return []
    figures = found.figures
    told = [
        Row(
            "B",
            f"{with_interval(figures['other_bits_per_byte'], '.4f')} bits per byte,"
            f" {with_interval(figures['other_nats_per_token'], '.4f')} nats a token",
            "the second model on the same documents",
        ),
        Row(
            "B less A",
            f"{with_interval(figures['difference_in_bits_per_byte'], '+.4f')} bits per byte",
            "below 0 where B is better; from the differences on each document",
        ),
    ]
    if "difference_in_nats_per_token" in figures:
        told[1] = Row(
            told[1].name,
            f"{told[1].text},"
            f" {with_interval(figures['difference_in_nats_per_token'], '+.4f')} nats a token",
            told[1].meaning,
        )
    better, worse = shares_better(found)
    told.append(
        Row(
            "documents",
            f"B is better on {better:.1%}, A on {worse:.1%}",
            "shares of the documents, each counting once",
        )
    )
    difference = figures["difference_in_bits_per_byte"]
    told.append(Row("verdict", verdict(difference, ("A", "B")), "in bits per byte"))
    return told


def shares_better(found: Measurement) -> tuple[float, float]:
    """The shares of the documents on which the second model is better, and the first."""
    more = found.columns["more_nats"]
    return float(np.mean(more < 0)), float(np.mean(more > 0))


def as_data(found: Measurement, config: EvaluateConfig) -> dict[str, Any]:
    """All figures as plain data; what is not finite is None."""
    data: dict[str, Any] = {
        "documents": found.n_documents,
        "tokens": found.total("tokens"),
        "bytes": found.total("bytes"),
        "characters": found.total("characters"),
        "tokens_per_second": round(found.tokens_per_second, 1),
        "confidence": config.confidence,
        "resamples": config.bootstrap if found.n_documents > 1 else 0,
        "figures": {name: figure.data() for name, figure in found.figures.items()},
    }
    if found.valid is not None:
        data["figures"]["valid_share"] = found.valid.data()
    if len(found.subjects) > 1:
        better, worse = shares_better(found)
        data |= {
            "share_of_documents_better": better,
            "share_of_documents_worse": worse,
            "verdict": comparison_rows(found)[-1].text,
        }
    return data

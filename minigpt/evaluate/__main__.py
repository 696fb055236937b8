"""Measure a model on texts: python -m minigpt.evaluate checkpoint=runs/latest.

Loss, perplexity, bits per byte and per character, each with an interval; with `compare=` those of a
second model on the same documents, and the difference. What the model found surprising is in
`evaluation.html`.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt import command_line
from minigpt.errors import InputError
from minigpt.evaluate.config import TITLE, EvaluateConfig
from minigpt.json_lines import json_line
from minigpt.output import (
    beginning_of_page,
    check_replaced,
    opened_output,
    prepare_standard_output,
    say,
    write_output,
)
from minigpt.run_folder import as_seen_from_here, expanded, find_checkpoint, report_path

if TYPE_CHECKING:
    from minigpt.checkpoint import LoadedModel
    from minigpt.data.corpora import Corpus
    from minigpt.evaluate.measurement import Measurement, Subject

#: How a file of what was measured of each document begins.
LINES = '{"document"'


def main(config: EvaluateConfig, named: frozenset[str] = frozenset()) -> None:
    """Load one model or two, score the documents, show the figures, write the report."""
    places = [find_checkpoint(config.checkpoint)]
    if config.compare:
        places.append(find_checkpoint(config.compare))
    config.report = expanded("report", config.report) or str(
        report_path(places[0], "evaluation.html")
    )
    config.documents = expanded("documents", config.documents)
    check_resamples(config)
    check_replaced(config.report, beginning_of_page(TITLE), key="report", kind="report")
    check_replaced(config.documents, LINES, key="documents", kind="list of documents")
    if Path(config.documents).resolve() == Path(config.report).resolve():
        raise InputError(f"documents={config.documents}: is the report too; name another file")
    prepare_standard_output()

    with command_line.ended_at_once():
        from minigpt.data.corpora.corpus import counted
        from minigpt.evaluate.report import page
        from minigpt.evaluate.told import as_data, comparison_rows, interval_words, rows
        from minigpt.training.progress import table

        loaded = load_models(config, places)
    subjects, corpus, what = find_subjects(config, named, places, loaded)
    facts = facts_of(subjects, what, config)
    if config.format == "text":
        write_output("", table(facts) + "\n\n")
    found = measured(subjects, corpus, config)
    counts = {
        "measured": f"{counted(found.n_documents, 'document')},"
        f" {found.total('tokens'):,} tokens, {found.total('bytes'):,} bytes,"
        f" {found.total('characters'):,} characters",
        "intervals": interval_words(found, config),
    }
    told = [*rows(found, config), *comparison_rows(found)]
    try:
        write_output(config.report, page(facts | counts, told, found))
    finally:  # what was measured is not lost with a disk that is full
        if config.format == "json":
            data = facts_as_data(subjects, what, config) | as_data(found, config)
            write_output("", json_line(data | {"report": config.report}))
        else:
            speed = {"speed": f"{found.tokens_per_second:,.0f} tokens/s", "report": config.report}
            shown = counts | {row.name: row.text for row in told} | speed
            write_output("", table(shown) + "\n")


def check_resamples(config: EvaluateConfig) -> None:
    """Raise `InputError` for too few resamples to have any beyond the ends of the intervals."""
    needed = math.ceil(round(2 / (1 - config.confidence), 6))
    if 0 < config.bootstrap < needed:
        raise InputError(
            f"bootstrap={config.bootstrap}: intervals of confidence={config.confidence:g} need"
            f" {needed:,} resamples or more; 0 for no intervals"
        )


def load_models(config: EvaluateConfig, places: Sequence[Path]) -> "list[LoadedModel]":
    """The models in their places, on the device and in the arithmetic that are asked for."""
    from minigpt.checkpoint import load_model
    from minigpt.generation.placement import check_quantize, find_device, find_dtype
    from minigpt.model.int8 import round_weights

    device = find_device(config.device)
    dtype = find_dtype(config.dtype, device)
    check_quantize(config.quantize, device, dtype)
    loaded = [load_model(place, device=device, dtype=dtype) for place in places]
    if config.quantize == "int8":
        round_weights(loaded[0].model)
    return loaded


def find_subjects(
    config: EvaluateConfig,
    named: frozenset[str],
    places: Sequence[Path],
    loaded: "Sequence[LoadedModel]",
) -> "tuple[list[Subject], Corpus, str]":
    """The models with the documents in their tokens, the corpus, and in words what is measured."""
    from minigpt.evaluate.data import UNKNOWN, choose, is_own, measured_stores
    from minigpt.evaluate.measurement import Subject
    from minigpt.evaluate.scoring import stride_for

    strides = [stride_for(config.stride, each.model) for each in loaded]
    choice = choose(loaded[0], config.data, named, config.split)
    subjects: list[Subject] = []
    for place, each, stride in zip(places, loaded, strides, strict=True):
        name = str(as_seen_from_here(place))
        try:
            stores = measured_stores(choice, each.tokenizer, say)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        subjects.append(Subject(name, each, stores, stride))
    words = f"{choice.corpus.summary()}; {choice.words}"
    if any("data" in each.record and not is_own(choice.corpus, each) for each in loaded[1:]):
        words += f"; model B may have {UNKNOWN}"
    return subjects, choice.corpus, words


def facts_of(subjects: "Sequence[Subject]", what: str, config: EvaluateConfig) -> dict[str, str]:
    """What is measured, and how, in words."""
    facts: dict[str, str] = {}
    letters = (" A", " B") if len(subjects) > 1 else ("",)
    for subject, letter in zip(subjects, letters, strict=True):
        facts[f"model{letter}"] = subject.name
        facts[f"shape{letter}"] = (
            f"{subject.loaded.model.shape()}; windows move by {subject.stride}"
        )
    model = subjects[0].loaded.model
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    end = "" if config.score_end else "; ends of documents are not scored"
    rounded = "" if config.quantize == "none" else f"; weights{letters[0]} {config.quantize}"
    facts |= {"data": what, "arithmetic": f"{dtype} on {model.device.type}{rounded}{end}"}
    return facts


def facts_as_data(
    subjects: "Sequence[Subject]", what: str, config: EvaluateConfig
) -> dict[str, object]:
    """What `facts_of` says, as plain data."""
    models = [
        {
            "model": subject.name,
            "shape": subject.loaded.model.shape(),
            "block_size": subject.loaded.model.config.block_size,
            "stride": subject.stride,
        }
        for subject in subjects
    ]
    dtype = str(subjects[0].loaded.model.embedding.weight.dtype).removeprefix("torch.")
    data: dict[str, object] = {**models[0], "data": what, "dtype": dtype}
    data |= {"quantize": config.quantize, "score_end": config.score_end, "seed": config.seed}
    return data | ({"compare": models[1]} if len(models) > 1 else {})


def measured(
    subjects: "Sequence[Subject]", corpus: "Corpus", config: EvaluateConfig
) -> "Measurement":
    """Score all documents, with progress; those asked for get a line each in a file."""
    from minigpt.evaluate.measurement import measure, n_scored
    from minigpt.progress import Count

    count = Count(n_scored(subjects, config), "measuring", "tokens")
    try:
        if not config.documents:
            return measure(subjects, corpus, config, done=count.add)
        with opened_output(config.documents) as write:

            def write_line(values: dict[str, object]) -> None:
                write(json_line(values))

            return measure(subjects, corpus, config, done=count.add, write=write_line)
    finally:
        count.close()


if __name__ == "__main__":
    sys.exit(command_line.run(main, EvaluateConfig, "evaluate"))

"""Look at what a model will see: python -m minigpt.data data=text data.path=my.txt.

The settings are those of `train.py`; nothing is trained. Figures of the documents and their tokens,
what was left out, what is there twice, and the batch of a step as text; `report=` writes the same
as a page, with how long the documents are and every row.
"""

import sys
from typing import TYPE_CHECKING

from minigpt import command_line
from minigpt.config import TokenizerConfig, TrainConfig
from minigpt.data.look.config import TITLE, LookConfig
from minigpt.errors import InputError
from minigpt.json_lines import json_line
from minigpt.output import (
    beginning_of_page,
    check_replaced,
    prepare_standard_output,
    say,
    write_output,
)
from minigpt.run_folder import expanded, find_checkpoint

if TYPE_CHECKING:
    from minigpt.data.look.found import Found
    from minigpt.data.preparation import PreparedData
    from minigpt.data.tokenizer import Tokenizer

#: Settings that may stand beside a checkpoint; the run has the others.
BESIDE_A_CHECKPOINT = ("checkpoint", "step", "rows", "report", "format")


def main(config: LookConfig, named: frozenset[str] = frozenset()) -> None:
    """Prepare the data as training would, look at it, show what was found, write the report."""
    report = expanded("report", config.report)
    check_replaced(report, beginning_of_page(TITLE), key="report", kind="report")
    prepare_standard_output()

    with command_line.ended_at_once():
        from minigpt.data.look.report import page
        from minigpt.data.look.told import as_data, told
        from minigpt.data.preparation import prepare

    settings, tokenizer = settings_of_training(config, named)
    found = looked_at(prepare(settings.data, tokenizer, say=say), settings, config.step)
    try:
        if report:
            write_output(report, page(found))
    finally:  # what was found is not lost with a disk that is full
        if config.format == "json":
            write_output("", json_line(as_data(found, config.rows) | {"report": report or None}))
        else:
            end = f"\n\nreport:     {report}" if report else ""
            write_output("", f"{told(found, config.rows)}{end}\n")


def settings_of_training(
    config: LookConfig, named: frozenset[str]
) -> "tuple[TrainConfig, TokenizerConfig | Tokenizer]":
    """The settings of the run whose data is looked at, and its tokenizer or how to make one."""
    from minigpt.defaults import fill, find_device

    if config.checkpoint:
        return settings_of_run(config, named)
    asked = TrainConfig(
        seed=config.seed,
        overfit=config.overfit,
        model=config.model,
        data=config.data,
        tokenizer=config.tokenizer,
        optim=config.optim,
        trainer=config.trainer,
    )
    filled = fill(asked, find_device(config.trainer.accelerator))
    return filled, filled.tokenizer


def settings_of_run(config: LookConfig, named: frozenset[str]) -> "tuple[TrainConfig, Tokenizer]":
    """The settings of a checkpoint's run, with the data that is named put over its own."""
    from minigpt.checkpoint import load_model
    from minigpt.defaults import fill, find_device
    from minigpt.evaluate.data import data_is_named, run_settings

    own = [key for key in named if not key.startswith("data.") and key not in BESIDE_A_CHECKPOINT]
    if own:
        group = min(own).partition(".")[0]
        raise InputError(f"checkpoint={config.checkpoint}: brings its own {group}; leave yours out")
    loaded = load_model(find_checkpoint(config.checkpoint))
    if "config" not in loaded.record and not data_is_named(named):
        raise InputError(
            f"checkpoint={config.checkpoint}: brings no data of its own; name what to look at:"
            " data=text data.path=my.txt"
        )
    settings = run_settings(loaded.record, config.data, named)
    settings.model = loaded.model.config
    if settings.data.batch_size is None:
        settings = fill(TrainConfig(model=settings.model, data=settings.data), find_device("auto"))
    return settings, loaded.tokenizer


def looked_at(data: "PreparedData", settings: TrainConfig, step: int) -> "Found":
    """Look through all documents, with progress."""
    from minigpt.data.look.found import look
    from minigpt.progress import Count

    n_documents = data.train.n_documents + data.validation.n_documents
    count = Count(n_documents, "looking", "documents")
    try:
        return look(data, settings, step, count.add)
    finally:
        count.close()


if __name__ == "__main__":
    sys.exit(command_line.run(main, LookConfig, "look"))

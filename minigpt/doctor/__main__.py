"""Find what is wrong with a model: python -m minigpt.doctor checkpoint=runs/latest.

Each check says whether it holds, with its figure; the exit status is 0 if all do and 1 if not.
Observations can only warn. The same with plots is in `doctor.html`.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt import command_line
from minigpt.doctor.config import TITLE, DoctorConfig
from minigpt.errors import InputError
from minigpt.json_lines import json_line
from minigpt.output import (
    beginning_of_page,
    check_replaced,
    prepare_standard_output,
    say,
    write_output,
)
from minigpt.run_folder import as_seen_from_here, find_checkpoint, report_path

if TYPE_CHECKING:
    from minigpt.doctor.finding import Subject

#: A setting of these asks for a new model, not for a trained one.
OF_A_NEW_MODEL = ("model.", "tokenizer.")


def main(config: DoctorConfig, named: frozenset[str] = frozenset()) -> int:
    """Examine a model, say what was found, write the report; 1 if a check failed."""
    new = sorted(key for key in named if key.startswith(OF_A_NEW_MODEL))
    if config.checkpoint and new:
        group = new[0].partition(".")[0]
        raise InputError(f"checkpoint={config.checkpoint}: brings its own {group}; leave yours out")
    checkpoint = None if new else find_checkpoint(config.checkpoint)
    report = config.report or str(report_path(checkpoint, "doctor.html"))
    check_replaced(report, beginning_of_page(TITLE), key="report", kind="report")
    prepare_standard_output()

    from minigpt.doctor.examination import CHECKS, examine_aloud
    from minigpt.doctor.report import as_data, first_failure, page, verdict
    from minigpt.training.progress import table

    subject = find_subject(config, named, checkpoint)
    facts = {
        "model": "new" if checkpoint is None else str(as_seen_from_here(checkpoint)),
        "shape": subject.model.shape(),
        "data": subject.data,
    }

    def show(text: str) -> None:
        if config.format == "text":
            write_output("", text + "\n")

    show(table(facts) + "\n")
    findings = examine_aloud(subject, CHECKS, show)
    show(f"\n{verdict(findings)}\nreport: {report}")
    write_output(report, page(facts, findings))
    if config.format == "json":
        write_output("", json_line(facts | {"report": report, "checks": as_data(findings)}))
    return 0 if first_failure(findings) is None else 1


def find_subject(config: DoctorConfig, named: frozenset[str], checkpoint: Path | None) -> "Subject":
    """The model of the checkpoint, or a new one where there is none."""
    from minigpt.checkpoint import load_model
    from minigpt.doctor.subjects import new_subject, trained_subject
    from minigpt.generation.placement import find_device

    device = find_device(config.device)
    if checkpoint is None:
        return new_subject(config, device, say)
    return trained_subject(load_model(checkpoint, device=device), config, named, say)


if __name__ == "__main__":
    sys.exit(command_line.run(main, DoctorConfig, "doctor"))

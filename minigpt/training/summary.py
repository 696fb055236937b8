"""The end of a run: what it reached, as lines for a person, `summary.json` and a plot."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.loggers import Logger

from minigpt.checkpoint import load_model
from minigpt.config import TrainConfig, plain
from minigpt.data.batches import Batch
from minigpt.data.overfit import OverfitRows
from minigpt.data.preparation import PreparedData
from minigpt.errors import RunError
from minigpt.files import written_whole
from minigpt.model.gpt import GPT
from minigpt.progress import clock
from minigpt.run_folder import BEST, LAST, shown_command
from minigpt.training.heap import give_back_freed_memory
from minigpt.training.loss import bits_per_byte, perplexity
from minigpt.training.memory import Memory, peak_bytes
from minigpt.training.metrics_file import column, read_metrics
from minigpt.training.progress import table
from minigpt.training.samples import (
    JUDGED_SAMPLES,
    OVERFIT_LOSS,
    OVERFIT_PROMPT,
    recites,
    sample_texts,
    valid_share,
)
from minigpt.training.tracker import record_summary
from minigpt.training.validation import validation_loss


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write `config.yaml`: every setting with the value the run has."""
    text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    _write_whole(folder / "config.yaml", text)


def _write_whole(path: Path, text: str) -> None:
    try:
        with written_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class RunEnd:
    """What there is of a run when its training is over.

    `record` is the module's; `started` is the `time.monotonic()` of the process's start.
    """

    config: TrainConfig
    folder: Path
    record: dict[str, Any]
    data: PreparedData
    memory: Memory
    trackers: Sequence[Logger]
    started: float
    say: Callable[[str], None]


def finish(end: RunEnd, validation: Callable[[], Iterable[Batch]], *, floor: float | None) -> None:
    """Judge the best checkpoint, write `summary.json` and `loss.png`, and say it all.

    `validation()` gives the whole validation part; `floor` is the least loss there.
    """
    folder, record, data, device = end.folder, end.record, end.data, end.memory.device
    give_back_freed_memory()
    best = load_model(folder / BEST, device=device)
    if end.config.trainer.limit_val_batches is None:
        loss, last_loss = record["best_val_loss"], record["val_loss"]
    else:
        last = load_model(folder / LAST, device=device)
        loss, last_loss = (
            validation_loss(each.model, validation(), device=device).per_token
            for each in (best, last)
        )
    share = None
    if data.corpus.log_probability is not None:
        share = valid_share(
            best.model,
            best.tokenizer,
            data.corpus.log_probability,
            longest=data.validation.longest,
        )
    plot_losses(folder, floor=floor)
    n_targets = data.validation.n_targets
    summary = _write_summary(
        end,
        best.model,
        val_loss=loss,
        val_bits_per_byte=bits_per_byte(loss * n_targets, data.validation.n_bytes),
        last_val_loss=last_loss,
        floor_loss=floor,
        valid_share=share,
    )
    end.say(_summary_text(summary, folder, data.folder))
    sample = sample_texts(best.model, best.tokenizer)[0]
    end.say(f"\nA sample:\n\n{sample}\n\n{_more(folder)}")


def _write_summary(end: RunEnd, model: GPT, **judged: float | None) -> dict[str, Any]:
    """Write `summary.json`: what was `judged` of the best checkpoint, and the course of the run."""
    assert judged["val_loss"] is not None
    record, memory = end.record, end.memory
    summary = judged | {
        "val_perplexity": perplexity(judged["val_loss"]),
        "steps": record["step"],
        "best_step": record["best_step"],
        "tokens": record["tokens"],
        "train_seconds": record["train_seconds"],
        "wall_seconds": time.monotonic() - end.started,
        "tokens_per_second": record["tokens"] / record["train_seconds"],
        "parameters": model.parameter_count(),
        "memory_predicted_bytes": memory.predicted,
        "memory_peak_bytes": peak_bytes(memory.device),
        "best_checkpoint": str(BEST),
    }
    _write_whole(end.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    record_summary(end.trackers, summary)
    return summary


def _files(folder: Path) -> str:
    return f"{folder}: checkpoints, config.yaml, metrics.csv, loss.png, samples.txt, summary.json"


def _more(folder: Path) -> str:
    return f"More: {shown_command('generate.py', 'checkpoint', str(folder))}"


def finish_overfit(end: RunEnd, rows: OverfitRows) -> None:
    """Say whether the one batch was learned by heart, and let the model recite it.

    In `summary.json` that batch is the validation part. Raises `RunError` if it was not learned.
    """
    folder, record = end.folder, end.record
    plot_losses(folder, floor=rows.floor)
    loss, step = record["train_loss"], record["step"]
    loaded = load_model(folder / LAST, device=end.memory.device)
    _write_summary(
        end,
        loaded.model,
        val_loss=record["best_val_loss"],
        val_bits_per_byte=None,  # a row may begin and end inside a document, or a character
        last_val_loss=record["val_loss"],
        floor_loss=rows.floor,
        valid_share=None,
    )
    facts = f"loss {loss:.5f} after {step} steps; the floor of this batch is {rows.floor:.5f}"
    if loss >= OVERFIT_LOSS:
        raise RunError(
            f"the batch was not learned by heart: {facts}, and below {OVERFIT_LOSS} was wanted"
        )
    start, length = rows.rows[0].tolist()
    ids = end.data.train.tokens[start : start + length + 1].tolist()
    given = min(OVERFIT_PROMPT, length)
    prompt = loaded.tokenizer.decode(ids[:given])
    if not recites(loaded.model, loaded.tokenizer, ids, given=given):
        raise RunError(
            f"{facts}, yet the model does not go on from {prompt!r} as the document does"
        )
    end.say(
        f"{facts}\nGiven {prompt!r}, the model recites the rest of the document to the end:\n\n"
        f"{loaded.tokenizer.decode(ids)}\n\n{_files(folder)}\n{_more(folder)}"
    )


def _summary_text(summary: dict[str, Any], folder: Path, cache: Path) -> str:
    loss = summary["val_loss"]
    lines = {
        "validation": (
            f"loss {loss:.4f} nats a token, perplexity {summary['val_perplexity']:.2f},"
            f" {summary['val_bits_per_byte']:.4f} bits per byte (step {summary['best_step']})"
        )
    }
    if floor := summary["floor_loss"]:
        lines["floor"] = (
            f"{floor:.4f} is the least any model can reach; this is {loss / floor:.3f} times that"
        )
    if (share := summary["valid_share"]) is not None:
        lines["valid"] = f"{share:.0%} of {JUDGED_SAMPLES} sampled stories obey the grammar"
    lines |= {
        "training": (
            f"{summary['steps']:,} steps, {summary['tokens']:,} tokens in"
            f" {clock(summary['train_seconds'])}, {summary['tokens_per_second']:,.0f} tokens/s"
            f" (this command took {clock(summary['wall_seconds'])})"
        ),
        "files": _files(folder),
        "cache": f"{cache}",
    }
    return table(lines)


def plot_losses(folder: Path, *, floor: float | None) -> None:
    """Write `loss.png`: training and validation loss by step, and the floor where it is known."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_metrics(folder / "metrics.csv")
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    training, validation = column(rows, "train_loss"), column(rows, "val_loss")
    _draw(axes, training, "training", "-", 0.6)
    _draw(axes, validation, "validation", "o-", 1.0)
    # the first steps fall from ln V and would leave the rest no room
    if training and validation and validation[0][0] <= training[-1][0] / 2:
        axes.set_ylim(top=1.5 * validation[0][1])
    if floor is not None:
        axes.axhline(floor, color="grey", linestyle="--", label=f"floor {floor:.3f}")
    axes.set(xlabel="step", ylabel="loss, nats per token")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    figure.savefig(folder / "loss.png", dpi=120)
    plt.close(figure)


def _draw(
    axes: Any, points: Sequence[tuple[int, float]], label: str, style: str, alpha: float
) -> None:
    if points:
        steps, losses = zip(*points, strict=True)
        axes.plot(steps, losses, style, label=label, alpha=alpha, markersize=3)

"""What is said of an export: what was written, what was checked, how to use it."""

import shlex
from pathlib import Path

from minigpt.checkpoint import LoadedModel
from minigpt.export.card import example
from minigpt.export.check import Checked
from minigpt.export.config import ExportConfig
from minigpt.run_folder import shown_command
from minigpt.training.progress import table


def report(
    config: ExportConfig,
    checkpoint: Path,
    loaded: LoadedModel,
    notes: tuple[str, ...],
    figures: Checked,
) -> str:
    """A few lines, the last ones to be copied."""
    facts = {
        "model": str(checkpoint),
        "written": f"{config.to} ({config.format}, {config.dtype}, {_size(Path(config.to))})",
        "changed": "\n".join(notes),
        "checked": "\n".join(_checked(figures)),
        "use": "\n".join(_use(config, loaded)),
    }
    lines = {name: text.replace("\n", "\n" + " " * 12) for name, text in facts.items() if text}
    return table(lines) + "\n"


def _size(place: Path) -> str:
    files = [place] if place.is_file() else list(place.iterdir())
    size = sum(file.stat().st_size for file in files) / 1e6
    return f"{size:,.1f} MB" if place.is_file() else f"{len(files)} files, {size:,.1f} MB"


def _checked(figures: Checked) -> list[str]:
    moved = f"rounded as meant, by at most {figures.weight:.1g} of a tensor's largest number"
    off = (
        f"at most {figures.logit:.1g} from the model's, which go up to {figures.largest_logit:.2g}"
    )
    return [
        f"{figures.n_tensors} tensors: {moved if figures.weight else 'bit for bit'}",
        f"logits after {figures.n_tokens} random tokens: {off if figures.logit else 'the same'}",
        f"the likeliest next token: the same after {figures.n_same} of {figures.n_tokens}",
        f"{figures.n_texts} texts: encoded and decoded as by the model's tokenizer",
    ]


def _use(config: ExportConfig, loaded: LoadedModel) -> list[str]:
    place = shlex.quote(config.to)
    if config.format == "gguf":
        shown = example(loaded)
        return [f"llama-completion -m {place} -p {shown['quoted']} -n {shown['room']}"]
    return [
        f"transformers.AutoModelForCausalLM.from_pretrained({config.to!r})",
        f"transformers.AutoTokenizer.from_pretrained({config.to!r})",
        shown_command("generate.py", "checkpoint", config.to),
    ]

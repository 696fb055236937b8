"""Samples on the screen or in a file: one as it grows, or many as they are done."""

import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from minigpt.generation.config import GenerateConfig
from minigpt.generation.decode import ignore_count
from minigpt.generation.language_model import LanguageModel, Sample
from minigpt.generation.prompts import Prompt
from minigpt.json_lines import json_line
from minigpt.output import opened_output, write_output
from minigpt.progress import Count


def show_streamed(model: LanguageModel, prompt: Prompt, sample: int = 0) -> int:
    """Show one sample on standard output as it grows; the number of tokens generated.

    An interrupted one is ended with what its last token had begun, and a newline. The model's
    notices come after the text.
    """
    notices: list[str] = []  # on a terminal one would stand in the middle of the text
    try:
        continuation, pieces = model.write(prompt, sample, say=notices.append)
        write_output("", prompt.text if prompt.config.echo else "")
        try:
            for piece in pieces:
                if piece:
                    write_output("", piece)
        finally:
            write_output("", continuation.finish() + "\n")
        return len(continuation.ids)
    finally:
        for notice in notices:
            model.say(notice)


def show_whole(model: LanguageModel, prompts: Sequence[Prompt]) -> int:
    """Generate all samples side by side, and show them in order; the number of tokens generated."""
    config = prompts[0].config
    as_json = config.format == "json"
    total = sum(prompt.config.num_samples for prompt in prompts)
    n_tokens = 0
    with ExitStack() as stack:
        write = stack.enter_context(opened_output(config.output))
        done = ignore_count
        if total > model.batch_size and (config.output or not sys.stdout.isatty()):
            count = Count(total, "generating", "samples")
            stack.callback(count.close)
            done = count.add
        for sample in model.samples(prompts, logprobs=as_json, done=done):
            n_tokens += len(sample.ids)
            if as_json:
                write(json_line(dataclasses.asdict(sample)))
            else:
                write(as_text(sample, config, alone=total == 1))
    return n_tokens


def as_text(sample: Sample, config: GenerateConfig, *, alone: bool) -> str:
    """A sample as it is read, after a line that says which it is unless it is the only one."""
    name = " ".join(str(sample.id).splitlines())
    heading = "" if alone else f"--- prompt {name}, sample {sample.sample + 1}\n"
    return f"{heading}{sample.prompt if config.echo else ''}{sample.text}\n"

"""Continue prompts with a trained model: python generate.py prompt="Once upon a time".

Text goes to standard output, notices to standard error. One sample is streamed as it is
generated; several are made side by side and shown whole, in the order of the prompts, each after
a line `--- prompt 2, sample 1`. With format=json each is a line. With interactive=true prompts
come from the keyboard.
"""

import sys
import time

from minigpt import command_line
from minigpt.errors import InputError
from minigpt.generation.config import GenerateConfig
from minigpt.output import check_output, prepare_standard_output, say
from minigpt.run_folder import expanded, find_checkpoint
from minigpt.settings import shown


def main(config: GenerateConfig, _named: frozenset[str] = frozenset()) -> None:
    """Read the prompts, load a model, go on from them."""
    from minigpt.generation.prompts import read_prompts, seeded

    config.prompt_file = expanded("prompt_file", config.prompt_file)
    config.output = expanded("output", config.output)
    if config.interactive:
        check_interactive(config)
    prompts = read_prompts(seeded(config))
    if config.prompt_format == "line" and config.prompt_file.endswith((".jsonl", ".ndjson")):
        say(f"prompt_file={config.prompt_file}: a line is a prompt; or add prompt_format=jsonl")
    check_output(config.output)
    checkpoint = find_checkpoint(config.checkpoint)
    prepare_standard_output()

    with command_line.ended_at_once(), command_line.nothing_thrown_away():
        from minigpt.generation.language_model import load_language_model
        from minigpt.generation.session import converse
        from minigpt.generation.show import show_streamed, show_whole

        model = load_language_model(checkpoint, config, say=say)
    if config.interactive:
        say(str(checkpoint))
        converse(model, config)
        return
    alone = len(prompts) * prompts[0].config.num_samples == 1
    streamed = alone and config.stream and config.format == "text" and not config.output
    began = time.perf_counter()
    n_tokens = 0
    try:
        n_tokens = show_streamed(model, prompts[0]) if streamed else show_whole(model, prompts)
    finally:  # after Ctrl-C too
        if sys.stderr.isatty():
            seconds = time.perf_counter() - began
            rate = f"{n_tokens} tokens in {seconds:.2f} s, {n_tokens / seconds:.0f} a second, "
            say(f"{rate if n_tokens else ''}seed={prompts[0].config.seed}, {checkpoint}")


def check_interactive(config: GenerateConfig) -> None:
    """Raise `InputError` for what does not go with interactive=true."""
    default = GenerateConfig()
    for key in ("prompt_file", "output", "format", "stream", "num_samples"):
        value = getattr(config, key)
        if value != getattr(default, key):
            raise InputError(f"{key}={shown(value)}: not with interactive=true; leave it out")


if __name__ == "__main__":
    sys.exit(command_line.run(main, GenerateConfig, "generate"))

"""Write a model for other programs: python -m minigpt.export format=gguf to=model.gguf.

format=huggingface makes a folder that `transformers` loads, format=gguf a file for llama.cpp. What
was written is read back and compared with the model before it gets its name.
"""

import sys
from functools import partial

from minigpt import command_line
from minigpt.export.config import ExportConfig, check_asked
from minigpt.export.place import built, check_place
from minigpt.output import prepare_standard_output, say, write_output
from minigpt.run_folder import expanded, find_checkpoint


def main(config: ExportConfig, _named: frozenset[str] = frozenset()) -> None:
    """Load a model, write it, compare what was written, say what it is."""
    format_name = check_asked(config)
    config.to = expanded("to", config.to)
    checkpoint = find_checkpoint(config.checkpoint)
    place = check_place(config.to, format_name, overwrite=config.overwrite)
    prepare_standard_output()

    with command_line.ended_at_once():
        from minigpt.checkpoint import load_model
        from minigpt.export.card import card
        from minigpt.export.check import checked
        from minigpt.export.plain_gpt2 import plain_gpt2
        from minigpt.export.report import report

        if format_name == "huggingface":
            from minigpt.export import huggingface as form
        else:
            from minigpt.export import gguf as form
    loaded = load_model(checkpoint)
    plain = plain_gpt2(loaded.model, format_name)
    notes = (*plain.folded, *form.notes(plain.model, config.dtype))
    text = card(loaded, notes, format_name=format_name, dtype=config.dtype, name=place.name)
    with built(config.to, format_name, overwrite=config.overwrite) as made:
        say(f"writing {config.to}")
        form.write(made, loaded, plain.model, card=text, dtype=config.dtype)
        as_written = partial(form.as_written, dtype=config.dtype)
        say("comparing what was written with the model")
        figures = checked(loaded, plain.model, form.read_back(made), as_written)
    write_output("", report(config, checkpoint, loaded, notes, figures))


if __name__ == "__main__":
    sys.exit(command_line.run(main, ExportConfig, "export"))

"""A mini-GPT trainer: text in, a model that writes like it out.

As a library, for what was trained:

    from minigpt import load
    model = load("runs/latest")
    print(model.generate("Once upon a time", temperature=0.8)[0].text)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from minigpt.generation.language_model import LanguageModel

__all__ = ["load"]


def load(
    checkpoint: "str | PathLike[str]" = "",
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str = "none",
    compile: bool = False,  # noqa: A002  (the setting's name)
    batch_size: int | None = None,
) -> "LanguageModel":
    """A trained model: of a run, a checkpoint file, a Hugging Face folder or a name on the hub.

    With "" it is the newest run's. The arguments are the settings of `generate.py`, automatic in
    the same way. Raises `InputError`, a `ValueError`, where there is no checkpoint or none that can
    be used. Nothing heavy is imported before this is called.
    """
    from minigpt.generation.config import GenerateConfig
    from minigpt.run_folder import find_checkpoint
    from minigpt.settings import check_ranges

    config = GenerateConfig(
        checkpoint=str(checkpoint),
        device=device,
        dtype=dtype,
        quantize=quantize,
        compile=compile,
        batch_size=batch_size,
    )
    check_ranges(config)
    found = find_checkpoint(config.checkpoint)
    from minigpt.generation.language_model import load_language_model

    return load_language_model(found, config)

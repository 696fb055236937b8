"""Every setting of `python -m minigpt.export`."""

from dataclasses import dataclass
from importlib.util import find_spec

from minigpt.errors import InputError
from minigpt.settings import setting

#: What each format can hold weights as, the first of them the default.
DTYPES = {
    "huggingface": ("float32", "float16", "bfloat16"),
    "gguf": ("float32", "float16", "q8_0"),
}


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """Everything `python -m minigpt.export` can be told.

    format=huggingface writes a folder that transformers loads, format=gguf a file for llama.cpp;
    both hold the tokenizer too. What is written is read back and compared before it gets its name.
    """

    checkpoint: str = setting(
        "", "a run folder, checkpoint file or Hugging Face folder; the newest run if empty",
        free_text=True,
    )  # fmt: skip
    format: str | None = setting(None, "what to write; to be given", choices=tuple(DTYPES))
    to: str = setting(
        "", "the folder (huggingface) or file (gguf) to write; to be given", free_text=True
    )
    dtype: str = setting(
        "float32", "of the weights; bfloat16 is for huggingface, q8_0 (8 bits) for gguf",
        choices=("float32", "float16", "bfloat16", "q8_0"),
    )  # fmt: skip
    overwrite: bool = setting(False, "replace an earlier export, and nothing else")


def check_asked(config: ExportConfig) -> str:
    """The format, once it is known that what is asked for is whole; `InputError` if it is not."""
    if config.format is None:
        raise InputError(
            "format= is missing: add format=huggingface (a folder) or format=gguf (a file)"
        )
    if not config.to:
        place = "folder" if config.format == "huggingface" else "file"
        raise InputError(f"to= is missing: add to=PATH, the {place} to write")
    known = DTYPES[config.format]
    if config.dtype not in known:
        raise InputError(
            f"dtype={config.dtype}: not with format={config.format}; choose one of"
            f" {', '.join(known)}"
        )
    if config.format == "gguf" and find_spec("gguf") is None:
        raise InputError("format=gguf needs the package gguf: pip install 'gguf>=0.19'")
    return config.format

"""Models and tokenizers on the Hugging Face hub, by name."""

import errno
import re
import sys
from pathlib import Path
from typing import Any

from minigpt.errors import InputError, RunError

#: GPT-2's own have names without an owner.
_WITHOUT_OWNER = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: What the name of a file ends in, and that of a model does not.
_OF_FILES = (".ckpt", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
#: What is read of a tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
)
#: What is read of a model; weights in torch's older format only where it has no others.
FILES = ("config.json", *TOKENIZER_FILES)
WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
OLDER_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
#: Seconds to wait for the hub's first answer.
_PATIENCE = 5.0


def is_hub_name(place: str) -> bool:
    """Whether a place that is no path here could be the name of a model: `gpt2`, `owner/name`."""
    path = Path(place)
    known = place in _WITHOUT_OWNER or _NAME.fullmatch(place) is not None
    ours = path.suffix in _OF_FILES or path.parts[0] == "runs" or Path(path.parts[0]).exists()
    return known and not ours


def hub_folder(name: str) -> Path:
    """The folder of a model's files, downloaded where they are not yet in the hub's cache.

    Raises `InputError` if the hub has no such model or cannot be reached.
    """
    for weights in (WEIGHTS, OLDER_WEIGHTS):
        folder = _downloaded(name, (*FILES, *weights), "folder or checkpoint", "the model's folder")
        if any(folder.glob(weights[0])):
            break
    return folder


def hub_tokenizer(name: str) -> Path:
    """The same for the files of a model's tokenizer alone."""
    return _downloaded(name, TOKENIZER_FILES, "file or folder", "its tokenizer.json")


def _downloaded(name: str, patterns: tuple[str, ...], sought: str, copy: str) -> Path:
    """The folder with the files of a name that fit the patterns.

    `sought` is what there is none of here, and of `copy` the path would do, for the messages.
    """
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    hub: Any = huggingface_hub  # typed in part
    if not sys.stderr.isatty():
        disable_progress_bars()
    missing = f"{name}: no such {sought} here, and "
    unreached: Exception | None = None
    try:
        # the download itself would wait for a silent hub without end
        hub.model_info(name, timeout=_PATIENCE)
    except RepositoryNotFoundError as error:
        raise InputError(f"{missing}no such public model on the Hugging Face hub") from error
    except Exception as error:  # noqa: BLE001  its client raises of many kinds on the way
        unreached = error  # what is in its cache does as well
    try:
        kept = unreached is not None
        return Path(
            hub.snapshot_download(name, allow_patterns=list(patterns), local_files_only=kept)
        )
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
            raise RunError(f"{name}: cannot be kept in the hub's cache: {error}") from error
        reason = str(unreached or error).partition("\n")[0].removeprefix("Got: ")
        raise InputError(
            f"{missing}the Hugging Face hub cannot be reached ({reason}); give the path of a copy"
            f" of {copy}"
        ) from error

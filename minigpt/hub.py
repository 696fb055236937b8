"""Models on the Hugging Face hub, by name."""

import errno
import re
import sys
from pathlib import Path
from typing import Any, cast

from minigpt.errors import InputError, RunError

#: GPT-2's own have names without an owner.
_WITHOUT_OWNER = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: What the name of a file ends in, and that of a model does not.
_OF_FILES = (".ckpt", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
#: What is read of a model; weights in torch's older format only where it has no others.
FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
)
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
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    download = cast("Any", huggingface_hub).snapshot_download  # typed in part
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        for weights in (WEIGHTS, OLDER_WEIGHTS):
            patterns = [*FILES, *weights]
            folder = Path(download(name, allow_patterns=patterns, etag_timeout=_PATIENCE))
            if any(folder.glob(weights[0])):
                break
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{name}: no such folder or checkpoint here, and no such public model on the"
            " Hugging Face hub"
        ) from error
    except Exception as error:  # its client raises of many kinds on the way
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS):
            raise RunError(f"{name}: cannot be kept in the hub's cache: {error}") from error
        reason = str(error).partition("\n")[0].removeprefix("Got: ")
        raise InputError(
            f"{name}: no such folder or checkpoint here, and the Hugging Face hub cannot be"
            f" reached ({reason}); give the path of a copy of the model's folder"
        ) from error
    return folder

"""Where a model runs, in which arithmetic and how many rows at a time, when that is left open."""

import torch

from minigpt.compiler import check_compiler
from minigpt.errors import InputError
from minigpt.model.gpt import GPT
from minigpt.model.int8 import is_exact

#: Bytes of keys, values and logits that a batch may take, where nothing says how many rows it has.
ROOM_FOR_A_BATCH = 1 << 30
#: More rows than this bring no more tokens a second.
MOST_ROWS = 64


def find_device(asked: str) -> torch.device:
    """The device that a setting names; "auto" is a GPU if there is one.

    Raises `InputError` if this machine has none of the kind.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if asked == "auto":
        return torch.device(next(kind for kind in available if available[kind]))
    if not available[asked]:
        raise InputError(f"device={asked}: this machine has none; use device=auto")
    return torch.device(asked)


def find_dtype(asked: str, device: torch.device) -> torch.dtype:
    """The arithmetic that a setting names; "auto" is bfloat16 on a GPU made for it, else float32.

    Raises `InputError` if the device does not have it.
    """
    if asked == "auto":
        fast = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
        return torch.bfloat16 if fast else torch.float32
    if asked == "float64" and device.type == "mps":
        raise InputError("dtype=float64: an Apple GPU has none; use device=cpu")
    return {
        "float32": torch.float32,
        "float64": torch.float64,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[asked]


def check_quantize(asked: str, device: torch.device, dtype: torch.dtype) -> None:
    """Raise `InputError` where weights cannot be rounded as the setting asks for."""
    if asked == "none":
        return
    if (device.type, dtype) != ("cpu", torch.float32):
        kind = str(dtype).removeprefix("torch.")
        raise InputError(
            f"quantize={asked}: is for device=cpu with dtype=float32, not {device.type} with {kind}"
        )
    if not is_exact():
        raise InputError(
            f"quantize={asked}: this processor has no exact products of 8 bits; use quantize=none"
        )


def check_compile(quantize: str, device: torch.device) -> None:
    """Raise `InputError` where a step cannot be compiled."""
    check_compiler(device.type)
    if quantize != "none":
        raise InputError(
            f"compile=true: does not go with quantize={quantize}; leave one of them out"
        )


def rows_that_fit(model: GPT) -> int:
    """How many samples to generate side by side: as many as pay and memory has room for."""
    config = model.config
    size = model.embedding.weight.element_size()
    keys_and_values = 2 * config.n_layer * config.n_embd * config.block_size * size
    logits = 4 * 4 * model.vocab_size  # float32, and what sampling makes of them
    return max(1, min(MOST_ROWS, ROOM_FOR_A_BATCH // (keys_and_values + logits)))

"""A model of ours in llama.cpp: written as GGUF, and continued greedily, token by token."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minigpt.checkpoint import LoadedModel
from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.export.gguf import write
from minigpt.model.gpt import GPT

#: A file's types, and what llama.cpp calls that of the keys and values beside it.
DTYPES = {"float32": 0, "float16": 1}


def is_there() -> bool:
    """Whether llama-cpp-python is installed; `pip install llama-cpp-python` builds it."""
    return importlib.util.find_spec("llama_cpp") is not None


def continuing(
    model: GPT, folder: Path, dtype: str, threads: int
) -> Callable[[list[int], int], list[int]]:
    """A function from a prompt and a number of tokens to the ids that llama.cpp goes on with."""
    # any tokenizer that fits into the vocabulary: no text is read
    characters = "".join(map(chr, range(33, 97)))
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [characters])
    path = folder / f"{model.vocab_size}-{dtype}.gguf"
    write(path, LoadedModel(model, tokenizer, {}), model, card="{}", dtype=dtype)
    library: Any = importlib.import_module("llama_cpp")
    llama = library.Llama(
        str(path), n_ctx=model.config.block_size, n_threads=threads, n_threads_batch=threads,
        type_k=DTYPES[dtype], type_v=DTYPES[dtype], verbose=False,
    )  # fmt: skip
    path.unlink()  # it is mapped into memory

    def ids(prompt: list[int], n: int) -> list[int]:
        llama.reset()
        found: list[int] = []
        new = prompt
        for _ in range(n):
            llama.eval(new)
            logits = library.llama_get_logits(llama.ctx)
            new = [int(np.ctypeslib.as_array(logits, (model.vocab_size,)).argmax())]
            found += new
        return found

    return ids

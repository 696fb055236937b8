"""How near an exported model is to the one it was made of, as the programs that it is for run it.

python bench/exchange.py [steps=300] [documents=80]

A model is trained on the built-in stories and exported in every form. `transformers` and llama.cpp
then read the first documents of the validation part, and their logits are held against ours: the
largest difference, the difference in loss (nats a token, theirs less ours), and the share of places
whose likeliest token is the same. The folder is read back by this program, too. Without
llama-cpp-python (`pip install llama-cpp-python` builds it) its part is left out.
"""

import importlib
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from record import PROJECT, keep, machine, options, run, train
from torch import Tensor
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(PROJECT))

from minigpt.checkpoint import load_model
from minigpt.config import DataConfig
from minigpt.data.preparation import prepare
from minigpt.run_folder import BEST

#: What is written.
FORMS = {
    "huggingface": ("float32", "float16", "bfloat16"),
    "gguf": ("float32", "float16", "q8_0"),
}


#: How far a logit may be off; llama.cpp looks GELU up in a table of 16 bits.
TARGETS = {"huggingface float32": 1e-5, "gguf float32": 1e-2, "read back": 0.0}


def in_transformers(folder: Path) -> Callable[[Tensor], Tensor]:
    """From tokens (T,) to logits (T, V), in float32 arithmetic."""
    library: Any = AutoModelForCausalLM
    model = library.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda tokens: model(tokens[None]).logits[0]


def in_llama(path: Path, block_size: int) -> Callable[[Tensor], Tensor]:
    """From tokens (T,) to logits (T, V); keys and values are kept as float32."""
    library: Any = importlib.import_module("llama_cpp")  # built from source where it is wanted
    model = library.Llama(
        str(path), n_ctx=block_size, n_batch=block_size, n_ubatch=block_size,
        logits_all=True, type_k=0, type_v=0, verbose=False,
    )  # fmt: skip

    def logits(tokens: Tensor) -> Tensor:
        model.reset()
        model.eval(tokens.tolist())
        return torch.from_numpy(np.array(model.scores[: len(tokens)]))

    return logits


def loss_of(logits: Tensor, targets: Tensor) -> float:
    """Nats a token."""
    return F.cross_entropy(logits, targets).item()


@torch.inference_mode()
def main(steps: int, documents: int) -> None:
    """Train, export, compare, keep."""
    facts = machine()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        train(folder / "run", f"trainer.max_steps={steps}")
        loaded = load_model(folder / "run" / BEST)
        block_size = loaded.model.config.block_size
        store = prepare(DataConfig(), loaded.tokenizer, say=print).validation
        stream = torch.from_numpy(store.tokens.astype(np.int64))
        ends = store.starts[: documents + 1].tolist()
        texts = [stream[start : end + 1] for start, end in itertools.pairwise(ends)]
        texts = [text for text in texts if len(text) <= block_size + 1]
        targets = torch.cat([text[1:] for text in texts])

        def read(logits: Callable[[Tensor], Tensor]) -> Tensor:
            return torch.cat([logits(text[:-1]) for text in texts])

        ours = read(lambda tokens: loaded.model(tokens[None])[0])
        measured: dict[str, Any] = {
            "model": loaded.model.shape(),
            "documents": len(texts),
            "tokens": targets.numel(),
            "loss": loss_of(ours, targets),
            "largest_logit": ours.abs().max().item(),
            "transformers": version("transformers"),
        }
        forms = (
            FORMS
            if importlib.util.find_spec("llama_cpp")
            else {"huggingface": FORMS["huggingface"]}
        )
        for form, dtypes in forms.items():
            for dtype in dtypes:
                to = folder / f"{form}_{dtype}"
                asked = (f"checkpoint={folder / 'run'}", f"format={form}", f"dtype={dtype}")
                run("-m", "minigpt.export", *asked, f"to={to}")
                other = in_transformers(to) if form == "huggingface" else in_llama(to, block_size)
                theirs = read(other)
                size = sum(file.stat().st_size for file in [to, *to.glob("*")] if file.is_file())
                measured[f"{form} {dtype}"] = {
                    "logit_difference": (theirs - ours).abs().max().item(),
                    "loss_difference": loss_of(theirs, targets) - measured["loss"],
                    "same_best_token": (theirs.argmax(-1) == ours.argmax(-1)).float().mean().item(),
                    "megabytes": size / 1e6,
                }
        again = load_model(folder / "huggingface_float32").model
        back = read(lambda tokens: again(tokens[None])[0])
        measured["read back"] = {"logit_difference": (back - ours).abs().max().item()}
    if "gguf float32" in measured:
        measured["llama-cpp-python"] = version("llama-cpp-python")
    measured["reached"] = {
        form: measured[form]["logit_difference"] <= most
        for form, most in TARGETS.items()
        if form in measured
    }
    keep("exchange", facts, measured)


if __name__ == "__main__":
    main(**options(sys.argv[1:], steps=300, documents=80))

"""The model card: what a model is, what it was trained on and how, and how to use it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from minigpt.checkpoint import LoadedModel, settings_of
from minigpt.config import plain
from minigpt.data.corpora.corpus import counted
from minigpt.errors import InputError
from minigpt.export.place import CARD_TAG
from minigpt.generation.prompts import prompt_ids
from minigpt.model.gpt import GPT
from minigpt.run_folder import LAST
from minigpt.training.loss import perplexity
from minigpt.training.optimizer import optimizer_name

#: What the hub reads of a card.
FRONT = f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- gpt2
{CARD_TAG}
---

"""

#: How to use a folder or a file called `name`, in Markdown; both programs end with the context.
USES = {
    "huggingface": """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
prompt = tokenizer({quoted}, return_tensors="pt")
ids = model.generate(**prompt, do_sample=True, max_new_tokens={room})
print(tokenizer.decode(ids[0], skip_special_tokens=True))
```

The prompt and what follows it are {block_size} tokens at most. In minigpt, which goes on past them:
`python generate.py checkpoint={name} prompt={quoted}`""",
    "gguf": """In llama.cpp: `llama-completion -m {name} -p {quoted} -n {room}`; in Python:

```python
from llama_cpp import Llama

model = Llama("{name}", n_ctx={block_size})
print(model({quoted}, max_tokens={room})["choices"][0]["text"])
```

The prompt and what follows it are {block_size} tokens at most. llama.cpp rounds a context up to a
multiple of 256 and fails where the model's own is at its end, so keep `-n` below that.""",
}

_TOKENIZERS = {
    "bpe": "byte-level BPE; it takes any text",
    "bytes": "the 256 bytes; it takes any text",
    "char": "one token a character of its corpus; other characters have none, and other programs"
    " leave them out of a text without a word",
}


def title(model: GPT) -> str:
    """A short name: `minigpt 0.9M`."""
    return f"minigpt {model.parameter_count() / 1e6:.1f}M"


def card(
    loaded: LoadedModel, notes: tuple[str, ...], *, format_name: str, dtype: str, name: str
) -> str:
    """The card of a folder or file called `name`, as Markdown without what the hub reads.

    A model without a record of its training (one that was imported) has no such parts.
    """
    sections = {
        f"# {title(loaded.model)}": _model(loaded, notes, dtype),
        "## Use": USES[format_name].format(name=name, **example(loaded)),
    }
    told = {"## Data": _data, "## Training": _training, "## Settings": _settings}
    for heading, tell in told.items():
        # a record may be an older version's: what it does not say is left out
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            sections[heading] = tell(loaded.record)
    return "\n".join(f"{heading}\n\n{text}\n" for heading, text in sections.items())


def example(loaded: LoadedModel) -> dict[str, Any]:
    """A beginning that the model can read, `quoted`, and the `room` for tokens after it."""
    tokenizer, block_size = loaded.tokenizer, loaded.model.config.block_size
    letters = (text for text in map(_text, tokenizer.token_bytes) if text.isalpha())
    prompt, n_tokens = "", 1
    for prompt in ("Once upon a time", "Once", next(letters, " ")):
        with contextlib.suppress(InputError):  # a character that the tokenizer does not know
            opened = loaded.start_of_document
            n_tokens = len(prompt_ids(tokenizer, prompt, start_of_document=opened))
            if 2 * n_tokens <= block_size:
                break
    room = max(1, min(50, block_size - n_tokens))
    quoted = json.dumps(prompt, ensure_ascii=False)
    return {"block_size": block_size, "quoted": quoted, "room": room}


def _text(token: bytes) -> str:
    return token.decode("utf-8", "ignore")


def _model(loaded: LoadedModel, notes: tuple[str, ...], dtype: str) -> str:
    model, tokenizer = loaded.model, loaded.tokenizer
    opened = "is opened" if loaded.start_of_document else "is not opened"
    end = f"`{tokenizer.end}` (id {tokenizer.end_id})"
    lines = [
        "A language model with GPT-2's architecture, exported by minigpt.",
        "",
        f"- {model.shape()}: {model.parameter_count():,} parameters, embedding and head tied",
        f"- weights as {dtype}",
        *(f"- {each}" for each in notes),
        f"- tokenizer: {_TOKENIZERS[tokenizer.kind]}",
        f"- {end} stands between documents; a prompt {opened} with it",
    ]
    return "\n".join(lines)


def _data(record: dict[str, Any]) -> str:
    data = record["config"]["data"]
    files = ", ".join(f"`{Path(each).name}`" for each in data["path"])
    if data["corpus"] == "stories":
        held_out = "others told for validation"
    elif data["val_path"]:
        held_out = "validation on " + ", ".join(f"`{Path(each).name}`" for each in data["val_path"])
    else:
        held_out = f"a share of {data['val_fraction']:g} held out for validation"
    return (
        f"Corpus `{data['corpus']}`{f' ({files})' if files else ''}:"
        f" {counted(record['documents'], 'document')} in training, {held_out}."
    )


def _training(record: dict[str, Any]) -> str:
    model, data, optim = (record["config"][part] for part in ("model", "data", "optim"))
    up_to = "up to " if data["layout"] == "padded" else ""
    rows = f"{data['batch_size']} rows of {up_to}{model['block_size']} tokens"
    seen = f"{record['tokens']:,} tokens in {record['train_seconds'] / 60:,.1f} minutes"
    decay = f"weight decay {optim['weight_decay']:g}, dropout {model['dropout']:g}"
    begun = _name_of(record["config"].get("init_from", ""))
    name = optimizer_name(optim.get("kind"))
    lines = [
        *([f"- began with the weights of `{begun}`"] if begun else []),
        f"- {record['step']:,} steps of {rows} ({data['layout']}): {seen}",
        f"- {name}, peak learning rate {optim['lr']:g}, schedule {optim['schedule']}, {decay}",
    ]
    if "train_loss" in record:
        lines.append(f"- training loss {record['train_loss']:.4f} nats a token")
    if "val_loss" in record:
        lines.append(
            f"- validation loss {record['val_loss']:.4f} nats a token, perplexity"
            f" {perplexity(record['val_loss']):.2f}, at step {record['val_step']:,}"
        )
    return "\n".join(lines)


def _name_of(origin: str) -> str:
    """What to call the place a run began with: a name on the hub, a folder's, a run's."""
    path = Path(origin)
    if not path.is_absolute():
        return origin
    return path.parents[1].name if path.parent.name == LAST.parent.name else path.name


def _settings(record: dict[str, Any]) -> str:
    config = settings_of(record)
    # a card may be read by anybody, whom it does not concern where the files lay
    config.run_dir, config.init_from = Path(config.run_dir).name, _name_of(config.init_from)
    data = config.data
    data.cache_dir = Path(data.cache_dir).name
    data.path, data.val_path = (
        [Path(each).name for each in paths] for paths in (data.path, data.val_path)
    )
    shown = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    return f"Of paths the last part is shown.\n\n```yaml\n{shown}```"

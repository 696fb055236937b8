"""Other programs' tokenizers: `tokenizer.json`, or GPT-2's own `vocab.json` and `merges.txt`."""

from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from minigpt.data.tokenizer import END, Tokenizer
from minigpt.errors import InputError

WHOLE, VOCABULARY, MERGES = "tokenizer.json", "vocab.json", "merges.txt"


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that a folder holds, its ids unchanged.

    Raises `InputError` if its files are missing, damaged, or of a kind that cannot be used.
    """
    whole, vocabulary, merges = (folder / name for name in (WHOLE, VOCABULARY, MERGES))
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise InputError(f"{folder}: has no {WHOLE}, and no {VOCABULARY} with {MERGES}")
    source = whole if whole.is_file() else vocabulary
    try:
        if source == whole:
            return Tokenizer.from_json(whole.read_text(encoding="utf-8"))
        return Tokenizer(_gpt2(vocabulary, merges))
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: {' '.join(str(error).split())}") from error


def _gpt2(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """A byte-level BPE, from what its tokens are and which pairs are merged."""
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises a plain Exception
        raise InputError(f"with {MERGES} no byte-level BPE: {error}") from error
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if inner.token_to_id(END) is not None:
        inner.add_special_tokens([END])
    return inner

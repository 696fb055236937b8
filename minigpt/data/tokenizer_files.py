"""Other programs' tokenizers: `tokenizer.json`, or GPT-2's own `vocab.json` and `merges.txt`."""

import json
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from minigpt.data.tokenizer import END, Tokenizer
from minigpt.errors import InputError

TOKENIZER, VOCABULARY, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"

#: The classes of `transformers` that use a `tokenizer.json` as it is, whatever else is set.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that a folder holds, its ids unchanged.

    Raises `InputError` if its files are missing, damaged, or of a kind that cannot be used.
    """
    whole, vocabulary, merges = (folder / name for name in (TOKENIZER, VOCABULARY, MERGES))
    if not whole.is_file() and not (vocabulary.is_file() and merges.is_file()):
        raise InputError(f"{folder}: has no {TOKENIZER}, and no {VOCABULARY} with {MERGES}")
    settings = _settings(folder / SETTINGS)
    if settings.get("add_prefix_space") and settings.get("tokenizer_class") not in _GENERIC:
        raise InputError(
            f"{folder / SETTINGS}: add_prefix_space is true; only a tokenizer that leaves a text as"
            " it is can be used"
        )
    source = whole if whole.is_file() else vocabulary
    try:
        if source == whole:
            tokenizer = Tokenizer.from_json(whole.read_text(encoding="utf-8"))
        else:
            tokenizer = Tokenizer(_gpt2(vocabulary, merges, opens_texts=_opens_texts(settings)))
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: {' '.join(str(error).split())}") from error
    there = {*tokenizer.token_bytes, END.encode()}
    for token in (*_added(settings), *_settings(folder / ADDED)):
        if token.encode() not in there:
            raise InputError(
                f"{folder}: the token {token!r} is added beside the tokenizer's files; only a"
                f" {TOKENIZER} that holds it can be read"
            )
    return tokenizer


def _added(settings: dict[str, Any]) -> list[str]:
    """The tokens that `tokenizer_config.json` adds, or repeats from `tokenizer.json`."""
    entries: object = settings.get("added_tokens_decoder")
    tokens = list(cast("dict[str, Any]", entries).values()) if isinstance(entries, dict) else []
    return [str(token["content"]) for token in tokens if "content" in token]


def _opens_texts(settings: dict[str, Any]) -> bool:
    """Whether GPT-2's own files are to have the end token put before a text."""
    if not settings.get("add_bos_token"):
        return False
    token: Any = settings.get("bos_token") or END
    token = cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
    if token != END:
        raise InputError(f"opens a text with {token!r}; only {END} can be read")
    return True


def _settings(path: Path) -> dict[str, Any]:
    """What `transformers` is told of the tokenizer besides its files."""
    if not path.is_file():
        return {}
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _gpt2(vocabulary: Path, merges: Path, *, opens_texts: bool) -> tokenizers.Tokenizer:
    """A byte-level BPE, from what its tokens are and which pairs are merged."""
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises a plain Exception
        raise InputError(f"with {MERGES} no byte-level BPE: {error}") from error
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    end_id = inner.token_to_id(END)
    if end_id is not None:
        inner.add_special_tokens([END])
        if opens_texts:
            inner.post_processor = opening(end_id)
    return inner


def opening(end_id: int) -> processors.TemplateProcessing:
    """What puts the end token before a text, in the words of `tokenizer.json`."""
    return processors.TemplateProcessing(
        single=[END, "$A"], pair=[END, "$A:0", END, "$B:1"], special_tokens=[(END, end_id)]
    )

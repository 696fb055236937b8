"""Other programs' tokenizers: `tokenizer.json`, or GPT-2's own `vocab.json` and `merges.txt`.

They are used as they are, their ids unchanged, by these rules:

- A document ends with `<|endoftext|>`, else `<|end_of_text|>`, else the token that
  `tokenizer_config.json` calls `eos_token`, else `</s>` (`tokenizer_json.end_of`). A tokenizer to
  train with that has none of them gets `<|endoftext|>` as the next free id.
- No text becomes that token or another special one: what looks like one is text.
- What would change a text is refused, but for Unicode's composition (NFC), which is left out: a
  text that is composed, as almost all are, has the same ids, and another is kept as it is.
"""

import json
import os
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import (
    END,
    Description,
    end_of,
    kind_of,
    parts_of,
    vocab_size_of,
)
from minigpt.errors import InputError
from minigpt.hub import hub_tokenizer, is_hub_name

TOKENIZER, VOCABULARY, MERGES = "tokenizer.json", "vocab.json", "merges.txt"
SETTINGS, ADDED = "tokenizer_config.json", "added_tokens.json"

#: The classes of `transformers` that use a `tokenizer.json` as it is, whatever else is set.
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")

#: `RECORD` of `minigpt.checkpoint`, which is made of this room's parts.
_RECORD = "minigpt"


def pretrained_tokenizer(path: str) -> Tokenizer:
    """The tokenizer that `tokenizer.path` names, to train with: its ids, and an end token.

    `path` is a `tokenizer.json` of any name, a folder as `read_tokenizer` reads it, a run folder or
    a checkpoint of ours, or a name on the Hugging Face hub. Raises `InputError` if there is none,
    or none that can be used.
    """
    if not path:
        raise InputError(
            "tokenizer=pretrained: which one? add tokenizer.path=… (a tokenizer.json, a folder, or"
            " a name on the Hugging Face hub)"
        )
    place = Path(path)
    try:
        place = _found(path)
        if place.suffix == ".ckpt":
            return _of_checkpoint(place)
        if place.is_file() and place.name != TOKENIZER:
            return _alone(place)
        checkpoints = sorted((*place.glob("checkpoints/*.ckpt"), *place.glob("*.ckpt")))
        if checkpoints and not any((place / name).exists() for name in (TOKENIZER, VOCABULARY)):
            return _of_checkpoint(checkpoints[0])  # those of a run have one tokenizer
        return read_tokenizer(place.parent if place.is_file() else place, add_end=True)
    except InputError as error:
        said = str(error)
        for prefix in (f"{path}: ", f"{place}: ", f"{place}{os.sep}"):
            said = said.removeprefix(prefix)
        raise InputError(f"tokenizer.path={path}: {said}") from error


def _found(path: str) -> Path:
    """The file or folder that a path means, or a name on the hub."""
    try:
        place = Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(str(error)) from error
    if place.exists():
        return place
    if is_hub_name(path):
        return hub_tokenizer(path)
    raise InputError(
        f"no such file or folder; a {TOKENIZER}, a folder with one or with {VOCABULARY} and"
        f" {MERGES}, or a name on the Hugging Face hub (owner/name)"
    )


def read_tokenizer(folder: Path, *, add_end: bool = False) -> Tokenizer:
    """The tokenizer that a folder holds, its ids unchanged.

    With `add_end` one without an end token gets one. Raises `InputError` if its files are missing,
    damaged, or of a kind that cannot be used.
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
    end = _content(settings.get("eos_token"))
    try:
        text = whole.read_text("utf-8") if source == whole else _gpt2(vocabulary, merges)
        tokenizer = _as_it_is(text, end, add_end=add_end)
        if source == vocabulary and settings.get("add_bos_token") and not add_end:
            tokenizer = _opening_texts(tokenizer, _content(settings.get("bos_token")) or END)
    except (InputError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: {' '.join(str(error).split())}") from error
    for token in (*_added(settings), *_settings(folder / ADDED)):
        if token not in tokenizer:
            raise InputError(
                f"{folder}: the token {token!r} is added beside the tokenizer's files; only a"
                f" {TOKENIZER} that holds it can be read"
            )
    return tokenizer


def _alone(path: Path) -> Tokenizer:
    """The tokenizer in one file, whatever lies beside it."""
    if path.name in (VOCABULARY, MERGES):
        raise InputError(f"{path}: one file of two; name the folder with {VOCABULARY} and {MERGES}")
    try:
        return _as_it_is(path.read_text(encoding="utf-8"), None, add_end=True)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a tokenizer's JSON: {error}") from error
    except (InputError, OSError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from error


def _of_checkpoint(path: Path) -> Tokenizer:
    """The tokenizer that a checkpoint of ours holds."""
    from minigpt.pickles import read_pickled

    text = read_pickled(path)
    for key in (_RECORD, "tokenizer"):
        text = cast("dict[str, Any]", text).get(key) if isinstance(text, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{path}: damaged, or not a checkpoint of this program")
    return Tokenizer.from_json(text)


def _as_it_is(text: str, named_end: str | None, *, add_end: bool) -> Tokenizer:
    """The tokenizer of a JSON with the ids that it states.

    `named_end` is what its settings call the end token; with `add_end` one is added where there is
    none.
    """
    try:
        inner = tokenizers.Tokenizer.from_str(text)
        added: list[Description] = json.loads(text).get("added_tokens", [])
        stated = {token["content"]: token["id"] for token in added}
    except Exception as error:  # the library raises a plain Exception
        raise InputError(f"not a tokenizer's JSON: {error}") from error
    # of ids that are far apart the library would write out all between
    vocab_size_of(inner.get_vocab(with_added_tokens=False) | stated)
    description: Description = json.loads(inner.to_str())
    composes = _leave_out_composition(description)
    kind_of(description)  # before it is taken for a BPE
    renumbers = _keep_ids(description, stated)
    end = end_of(inner, description, named_end)
    lacks_end = end is None and add_end
    if lacks_end:
        _add_end(description)
    if composes or renumbers or lacks_end:
        inner = tokenizers.Tokenizer.from_str(json.dumps(description))
    return Tokenizer(inner, end)


def _keep_ids(description: Description, stated: dict[str, int]) -> bool:
    """Hold added tokens to the ids that their file states; whether the library would not."""
    added: list[Description] = description["added_tokens"]
    vocabulary = description["model"]["vocab"]
    changed = [token for token in added if stated.get(token["content"], token["id"]) != token["id"]]
    for token in changed:
        content, i = token["content"], stated[token["content"]]
        if content in vocabulary:
            raise InputError(f"two ids for the token {content!r}: {vocabulary[content]} and {i}")
        token["id"] = i
    if changed:
        _give_to_model(description)
    return bool(changed)


def _give_to_model(description: Description) -> None:
    """Make the added tokens the model's too, which keeps their ids; no merge leads to them.

    Those that it lacks the library numbers anew, from the model's number of tokens on.
    """
    added: list[Description] = description["added_tokens"]
    description["model"]["vocab"].update({token["content"]: token["id"] for token in added})


def _leave_out_composition(description: Description) -> bool:
    """Take out a normalizer that only composes characters; whether there was one."""
    normalizer = description["normalizer"]
    composes = normalizer and all(each["type"] == "NFC" for each in parts_of(normalizer))
    if composes:
        description["normalizer"] = None
    return bool(composes)


def _add_end(description: Description) -> None:
    """Add the end token under the next free id; the library's own adding may take one in use."""
    vocabulary, added = description["model"]["vocab"], description["added_tokens"]
    if END in vocabulary:
        raise InputError(f"ordinary text can become the token {END}, so it cannot end a document")
    free = 1 + max((*vocabulary.values(), *(token["id"] for token in added)), default=-1)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added.append({"id": free, "content": END, **flags, "special": True})
    _give_to_model(description)


def _content(token: Any) -> str | None:
    """A token as it is written; settings name it so, or with what else is known of it."""
    content = cast("dict[str, Any]", token).get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _added(settings: dict[str, Any]) -> list[str]:
    """The tokens that `tokenizer_config.json` adds, or repeats from `tokenizer.json`."""
    entries: object = settings.get("added_tokens_decoder")
    tokens = list(cast("dict[str, Any]", entries).values()) if isinstance(entries, dict) else []
    return [content for content in map(_content, tokens) if content is not None]


def _settings(path: Path) -> dict[str, Any]:
    """What `transformers` is told of the tokenizer besides its files."""
    if not path.is_file():
        return {}
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _gpt2(vocabulary: Path, merges: Path) -> str:
    """The JSON of a byte-level BPE, from what its tokens are and which pairs are merged."""
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises a plain Exception
        raise InputError(f"with {MERGES} no byte-level BPE: {error}") from error
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner.to_str()


def _opening_texts(tokenizer: Tokenizer, token: str) -> Tokenizer:
    """The same tokenizer with its end token put before a text, which is what `token` has to be."""
    if token != tokenizer.end:
        raise InputError(f"opens a text with {token!r}; only {tokenizer.end} can be read")
    inner = tokenizers.Tokenizer.from_str(tokenizer.standard_json())
    inner.post_processor = opening(tokenizer.end, tokenizer.end_id)
    return Tokenizer(inner, tokenizer.end)


def opening(end: str, end_id: int) -> processors.TemplateProcessing:
    """What puts the end token before a text, in the words of `tokenizer.json`."""
    return processors.TemplateProcessing(
        single=[end, "$A"], pair=[end, "$A:0", end, "$B:1"], special_tokens=[(end, end_id)]
    )

"""What the JSON of a `tokenizers` tokenizer says of it, and which ones can be used.

One that can be used gives every text back as it was, gives a text the same ids every time, and has
no text that becomes a token which marks something.
"""

import re
from collections.abc import Collection
from functools import cache
from typing import Any, TypeAlias

import tokenizers

from minigpt.errors import InputError

Description: TypeAlias = dict[str, Any]

END = "<|endoftext|>"

#: Tokens that end a document wherever they are: of GPT-2 and most others, and of Llama 3.
_ENDS = (END, "<|end_of_text|>")

#: Those that do where a tokenizer says nothing else: of Mistral and OPT, of DeepSeek.
_OTHER_ENDS = ("</s>", "<｜end▁of▁sentence｜>")  # noqa: RUF001  it is spelt so

#: What a byte-level BPE has to have, for its tokens to be spelt as text and a text to have one
#: spelling.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
}

#: Pre-tokenizers that only cut a text; of some it depends on their settings.
_CUTTERS = ("ByteLevel", "Digits", "FixedLength", "Punctuation", "Split", "UnicodeScripts")

#: A place where GPT-2's pattern cuts whatever stands around it: no alternative of it goes from a
#: character that is not a space to one that is. (Its "'s" is followed by no space; of " ?" the
#: space is the first; what looks ahead, `\s+(?!\S)`, ends in a space, and no place follows one.)
GPT2_CUT = re.compile(r"\S(?=[ \n])")

#: The same for patterns whose punctuation takes the ends of lines with it, but no space.
_SPACE_CUT = re.compile(r"\S(?= )")

#: Patterns that cover every text, and where they cut it for certain.
_PATTERNS = {
    # GPT-2's
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2_CUT,
    # GPT-4's and Llama 3's
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": _SPACE_CUT,
    # Qwen's
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": _SPACE_CUT,
    # GPT-4o's
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": _SPACE_CUT,
    # Mistral's Tekken's
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": _SPACE_CUT,
}


def vocab_size_of(vocabulary: dict[str, int]) -> int:
    """One more than the largest id, which is the size of a model's vocabulary.

    Raises `InputError` where an id is two tokens', or most ids are nobody's.
    """
    vocab_size = max(vocabulary.values(), default=-1) + 1
    if vocab_size > 2 * len(vocabulary):  # the library and the model keep memory for each id
        raise InputError(
            f"the tokenizer's ids go up to {vocab_size - 1:,} for {len(vocabulary)} tokens"
        )
    if len(set(vocabulary.values())) < len(vocabulary):
        raise InputError("the tokenizer gives two tokens the same id")
    return vocab_size


def kind_of(description: Description) -> str:
    """Which kind a tokenizer is; `InputError` if it does not keep every text."""
    model = description["model"]
    if model.get("type") != "BPE":
        raise InputError(f"the tokenizer's model is {model.get('type')}; only BPE can be used")
    _check_leaves_text(description)
    for name, plain in _PLAIN.items():
        if model.get(name) not in plain:
            raise InputError(
                f"the tokenizer's BPE has {name}={model[name]}; only one without it can be used"
            )
    steps = parts_of(description["pre_tokenizer"])
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]
    looked_for = [token for token in description["added_tokens"] if not token["special"]]
    if len(byte_level) > 1:
        raise InputError("the tokenizer writes bytes as symbols twice, so no text comes back")
    if byte_level:
        parts = model["merges"] or model.get("ignore_merges") or looked_for
        return "bpe" if parts or len(steps) > 1 or byte_level[0]["use_regex"] else "bytes"
    if model["merges"] or steps or looked_for:
        raise InputError("the tokenizer's BPE is not byte-level, so it cannot write every text")
    return "char"


def _check_leaves_text(description: Description) -> None:
    """Raise `InputError` that names what a tokenizer does to a text, beside cutting it."""
    fault = "the tokenizer changes a text before it encodes it"
    if normalizer := description["normalizer"]:
        said = ", ".join(part["type"] for part in parts_of(normalizer))
        raise InputError(f"{fault}: its normalizer is {said}")
    for step in parts_of(description["pre_tokenizer"]):
        name = step["type"]
        if step.get("add_prefix_space"):
            raise InputError(f"{fault}: it puts a space in front (add_prefix_space)")
        total = step.get("invert") and step["pattern"].get("Regex") in _PATTERNS
        if name not in _CUTTERS or (step.get("behavior") == "Removed" and not total):
            raise InputError(f"{fault}: its pre-tokenizer {name} does not keep all of it")
    for token in description["added_tokens"]:
        if not token["special"] and (token["lstrip"] or token["rstrip"]):
            raise InputError(f"{fault}: it drops spaces around {token['content']!r}")


def parts_of(component: Description | None) -> list[Description]:
    """The normalizers or pre-tokenizers that a text goes through, in order."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    held: list[Description] = component.get("normalizers") or component.get("pretokenizers") or []
    return [step for part in held for step in parts_of(part)]


def check_bytes(description: Description) -> None:
    """Raise `InputError` unless every byte is a token of the model."""
    if missing := len(byte_symbols().keys() - description["model"]["vocab"].keys()):
        raise InputError(
            f"the tokenizer has no token for {missing} of the 256 bytes, so it cannot write every"
            " text"
        )


def check_marks(inner: tokenizers.Tokenizer, description: Description) -> None:
    """Raise `InputError` if what is no mark can become a token that is one.

    Nor may a token that is looked for be another's text in the symbols of bytes.
    """
    added = description["added_tokens"]
    marks = {t["content"] for t in added if t["special"] or not t["content"].isascii()}
    if found := from_text(inner, description, marks):
        raise InputError(
            f"ordinary text can become the tokenizer's added token {min(found)!r}; only a tokenizer"
            " whose special tokens are in no text can be used"
        )


def cut_of(description: Description) -> re.Pattern[str] | None:
    r"""Where any text may be cut and each part encoded by itself; None if nothing is proven.

    A match of the pattern ends where a cut may be. The first step of the pre-tokenizer that always
    cuts there decides; one before it has to be indifferent to what stands around a character.
    """
    cut = None
    for step in parts_of(description["pre_tokenizer"]):
        if step["type"] == "ByteLevel" and step["use_regex"]:
            cut = GPT2_CUT
        elif step["type"] == "Split" and step["behavior"] in ("Isolated", "Removed"):
            cut = _PATTERNS.get(step["pattern"].get("Regex"))
            if step["invert"] != (step["behavior"] == "Removed"):
                cut = None
        elif step["type"] in ("Digits", "ByteLevel"):
            continue
        break
    for token in description["added_tokens"]:
        # tokens that are looked for in a text are found before it is cut
        if cut and not token["special"] and (token["single_word"] or cut.search(token["content"])):
            return None
    return cut


def end_of(
    inner: tokenizers.Tokenizer, description: Description, named: str | None = None
) -> str | None:
    """The token that ends a document: the first of these that there is and that no text becomes.

    `<|endoftext|>`; `<|end_of_text|>`; the one that the tokenizer's settings call its end
    (`named`); `</s>`; DeepSeek's. None if there is none of them.
    """
    names = (*_ENDS, *([named] if named else []), *_OTHER_ENDS)
    there = {name for name in names if inner.token_to_id(name) is not None}
    usable = there - from_text(inner, description, there)
    return next((name for name in names if name in usable), None)


def from_text(
    inner: tokenizers.Tokenizer, description: Description, tokens: Collection[str]
) -> set[str]:
    """Which of these tokens a text becomes where it is merged to them, not looked for."""
    model = description["model"]
    kept = {token for token in tokens if token in model["vocab"]}
    if not kept:
        return set()
    found = {token for token in kept if len(token) == 1}
    found |= kept & {left + right for left, right in model.get("merges", ())}
    if model.get("ignore_merges"):  # what the cutting leaves of a text is looked up whole
        found |= {token for token in kept if _uncut(inner, token) == token}
    return found


def _uncut(inner: tokenizers.Tokenizer, text: str) -> str:
    """What the pre-tokenizer makes of a text first."""
    cutter: Any = inner.pre_tokenizer
    return cutter.pre_tokenize_str(text)[0][0] if cutter else text


@cache
def byte_symbols() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable}
    symbols |= {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return symbols

"""A tokenizer in the words of llama.cpp: tokens in GPT-2's byte symbols, merges by rank.

llama.cpp cuts a text with GPT-2's pattern, writes each part as the symbols of its UTF-8 bytes, and
merges neighbours, the pair of the lowest rank first, the leftmost of those first. What remains is
looked up among the tokens.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import pre_tokenizers

from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import byte_symbols
from minigpt.errors import InputError

#: llama.cpp's kinds of token.
NORMAL, CONTROL, UNUSED = 1, 3, 5

#: What BPE settings have to be: the plain algorithm, to which llama.cpp has no alternatives.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0.0),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (False,),
    "ignore_merges": (False,),
}


@dataclass(frozen=True, slots=True)
class LlamaVocabulary:
    """The tokens and their kinds by id, and the pairs that are merged (`left right`), in order."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]


def llama_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LlamaVocabulary:
    """The tokenizer for a model of `vocab_size` rows; ids without a token get one out of use.

    Raises `InputError` for a tokenizer that llama.cpp's GPT-2 does not follow.
    """
    description = json.loads(tokenizer.standard_json())
    _check_followed(description, tokenizer)
    symbols = {byte: symbol for symbol, byte in byte_symbols().items()}
    if tokenizer.kind == "char":
        tokens = {i: _spelt(text, symbols) for i, text in enumerate(tokenizer.token_bytes)}
        merges = list(itertools.chain.from_iterable(map(_joining, tokens.values())))
    else:
        tokens = {i: token for token, i in description["model"]["vocab"].items()}
        merges = [" ".join(pair) for pair in description["model"]["merges"]]
    tokens[tokenizer.end_id] = tokenizer.end
    kinds = {
        i: CONTROL if i == tokenizer.end_id else NORMAL for i, token in tokens.items() if token
    }
    ids = range(vocab_size)
    vocabulary = LlamaVocabulary(
        tokens=[tokens.get(i) or f"[PAD{i}]" for i in ids],
        kinds=[kinds.get(i, UNUSED) for i in ids],
        # the key has to be there, with one entry at least: this left part is never formed
        merges=list(dict.fromkeys(merges)) or [f"{tokenizer.end} {tokenizer.end}"],
    )
    if len(set(vocabulary.tokens)) < vocab_size:
        raise InputError("the tokenizer has two ids for one token; llama.cpp needs one")
    return vocabulary


def _joining(token: str) -> list[str]:
    """The merges that make a token of its symbols from the left.

    UTF-8's first byte says how many follow, and no first byte is a following one: such a pair is
    never of two characters, and no character is another's beginning.
    """
    return [f"{token[:i]} {token[i]}" for i in range(1, len(token))]


def _check_followed(description: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Raise `InputError` that names what llama.cpp's GPT-2 tokenizer does not do."""
    kind, end = tokenizer.kind, tokenizer.end
    others = [token["content"] for token in description["added_tokens"] if token["content"] != end]
    if others:
        raise InputError(
            f"the tokenizer has the added token {others[0]!r}: llama.cpp would treat it otherwise;"
            f" only {end} can be written to GGUF"
        )
    if kind == "char":
        return
    model, cutting = description["model"], description["pre_tokenizer"]
    for name, plain in _PLAIN.items():
        if model.get(name) not in plain:
            raise InputError(f"the tokenizer's BPE has {name}={model[name]}: not what GPT-2's does")
    cuts = cutting["type"] == "ByteLevel" and not cutting["add_prefix_space"]
    if not cuts or (kind == "bpe" and not cutting["use_regex"]):
        shown = json.dumps(cutting, ensure_ascii=False)
        raise InputError(
            f"the tokenizer's pre-tokenizer is {shown[:200]}: only GPT-2's (ByteLevel with its"
            " pattern, no space put in front) can be written to GGUF"
        )


def _spelt(text: bytes, symbols: dict[int, str]) -> str:
    return "".join(symbols[byte] for byte in text)


def encoder(vocabulary: LlamaVocabulary, opening: Sequence[int]) -> Callable[[str], list[int]]:
    """From a text to its ids after the `opening` ones, by the algorithm at the top of this page.

    A part that is no token is left out, as llama.cpp leaves it out.
    """
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if vocabulary.kinds[i] == NORMAL}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)

    def encode(text: str) -> list[int]:
        merged = (_merged(part, ranks) for part, _ in cut.pre_tokenize_str(text))
        return [*opening, *(ids[each] for part in merged for each in part if each in ids)]

    return encode


def _merged(part: str, ranks: dict[str, int]) -> list[str]:
    symbols = list(part)
    while len(symbols) > 1:
        pairs = [f"{left} {right}" for left, right in itertools.pairwise(symbols)]
        rank, place = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairs))
        if rank == len(ranks):
            break
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
    return symbols


def decode(vocabulary: LlamaVocabulary, ids: Sequence[int]) -> str:
    """The text of ids: the bytes of the ordinary ones; what is not UTF-8 becomes U+FFFD."""
    byte_of = byte_symbols()
    spelt = "".join(vocabulary.tokens[i] for i in ids if vocabulary.kinds[i] == NORMAL)
    return bytes(byte_of[symbol] for symbol in spelt).decode("utf-8", "replace")

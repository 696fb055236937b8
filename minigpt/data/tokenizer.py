"""Text to tokens and back.

Three kinds, each kept as a standard `tokenizers` JSON: `bpe` (byte-level BPE with GPT-2's
pre-tokenizer), `bytes` (the 256 bytes, no merges) and `char` (one token a character of the
corpus). All of them have one more token, `END`, the boundary of documents. Nothing that can be
typed becomes that token: text that looks like it is text.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from minigpt.config import TokenizerConfig
from minigpt.errors import InputError

END = "<|endoftext|>"

#: Size a BPE vocabulary aims for where the setting is null.
DEFAULT_VOCAB_SIZE = 4096

#: A long text is encoded in pieces of at least so many characters, to bound memory.
PIECE = 1 << 20

#: A place where GPT-2's pre-tokenizer splits whatever stands around it: no alternative of its
#: pattern goes from a character that is not a space to one that is.
_SPLIT = re.compile(r"\S(?=[ \n])")

_N_CODE_POINTS = 0x110000

Ids: TypeAlias = npt.NDArray[np.int32]


class Tokenizer:
    """A `tokenizers` tokenizer with the end-of-document token found and the bytes of each token.

    `vocab_size` is the real one: every id is below it. `token_bytes[i]` is the UTF-8 that token
    `i` stands for; the end token's is empty. `opens_texts` is true where other programs that use
    the same JSON put the end token before a text.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        """Wrap a tokenizer; `InputError` if it is of another kind, or of ids without use."""
        # not stored in the JSON, so it is set on every load
        inner.encode_special_tokens = True
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        vocabulary = inner.get_vocab(with_added_tokens=True)
        if END not in vocabulary:
            raise InputError(f"the tokenizer has no token {END} to end a document with")
        self.vocab_size = max(vocabulary.values()) + 1
        if self.vocab_size > 2 * len(vocabulary):  # the library and this keep memory for each id
            raise InputError(
                f"the tokenizer's ids go up to {self.vocab_size - 1:,} for {len(vocabulary)} tokens"
            )
        self.kind = _kind(json.loads(inner.to_str()))
        self.end_id = vocabulary[END]
        added = {token.content for token in inner.get_added_tokens_decoder().values()}
        known = {token: i for token, i in vocabulary.items() if token not in added}
        unwritten = 0 if self.kind == "char" else len(byte_symbols().keys() - known.keys())
        if unwritten:
            raise InputError(
                f"the tokenizer has no token for {unwritten} of the 256 bytes, so it cannot write"
                " every text"
            )
        first = "a" if self.kind != "char" else next(filter(str.isprintable, known), "")
        self.opens_texts = inner.encode(first, add_special_tokens=True).ids[:1] == [self.end_id]
        self.token_bytes = _token_bytes(vocabulary, known, self.kind, self.vocab_size)
        self._table = _table(known, self.kind)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without end tokens. `InputError` names what cannot be encoded."""
        if self._table is not None:
            return self._look_up(text).tolist()
        _check_characters(text)
        ids: list[int] = []
        for piece in pieces(text):
            ids += self._inner.encode(piece, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several texts, as `encode` gives them one by one."""
        return [ids.tolist() for ids in self.encode_documents(texts)]

    def encode_documents(self, documents: Iterable[str]) -> Iterator[Ids]:
        """The ids of each document, in bounded memory beyond the documents themselves."""
        if self._table is not None:
            yield from map(self._look_up, documents)
            return
        _allow_threads()
        held: list[Ids] = []
        for group in _groups(documents):
            encodings = self._inner.encode_batch_fast(
                [piece for piece, _ in group], add_special_tokens=False
            )
            for encoding, (_, last) in zip(encodings, group, strict=True):
                held.append(np.array(encoding.ids, dtype=np.int32))
                if last:
                    yield np.concatenate(held)
                    held = []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, end tokens left out; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[i] for i in ids).decode("utf-8", "replace")

    def to_json(self) -> str:
        """The standard JSON of the `tokenizers` library."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Read what `to_json` wrote, or another byte-level BPE; `InputError` if it is neither."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises a plain Exception
            raise InputError(f"not a tokenizer's JSON: {error}") from error
        return cls(inner)

    def _look_up(self, text: str) -> Ids:
        """Ids where every symbol (byte or character) is a token of its own."""
        assert self._table is not None
        _check_characters(text)
        if self.kind == "bytes":
            return self._table[np.frombuffer(text.encode(), dtype=np.uint8)]
        ids = self._table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        if (ids < 0).any():
            place = int((ids < 0).argmax())
            raise InputError(
                f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is"
                f" not among the {self.vocab_size - 1} that the character tokenizer knows;"
                " one that is trained with tokenizer=bpe takes any text"
            )
        return ids


def train_tokenizer(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
    """Make a tokenizer of the kind asked for from documents (`bytes` needs none).

    BPE is to be given the training documents, `char` the whole corpus. The vocabulary may come
    out smaller than `config.vocab_size` where the text has too few repeated pairs.
    """
    match config.kind:
        case "bpe":
            return _train_bpe(config.vocab_size or DEFAULT_VOCAB_SIZE, documents)
        case "char":
            return _symbol_tokenizer(sorted(_alphabet(documents)))
        case "bytes":
            return _symbol_tokenizer(sorted(byte_symbols()), byte_level=True)
        case _:
            raise InputError(f"tokenizer.kind={config.kind}: choose one of bpe, char, bytes")


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Cut a text into parts of `size` characters or more that encode as the whole does."""
    start = 0
    while len(text) - start > size and (found := _SPLIT.search(text, start + size - 1)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


def _alphabet(documents: Iterable[str]) -> set[str]:
    alphabet: set[str] = set()
    for text in documents:
        alphabet.update(text)
    return alphabet


def _train_bpe(vocab_size: int, documents: Iterable[str]) -> Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=sorted(byte_symbols()),
        show_progress=False,
    )
    _allow_threads()
    inner.train_from_iterator(
        (piece for text in documents for piece in pieces(text)), trainer=trainer
    )
    return Tokenizer(inner)


def _symbol_tokenizer(symbols: list[str], *, byte_level: bool = False) -> Tokenizer:
    """A BPE without merges: one token a symbol, and the end token after them."""
    vocabulary = {symbol: i for i, symbol in enumerate([*symbols, END])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    if byte_level:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.decoder = decoders.ByteLevel()
    else:
        inner.decoder = decoders.Fuse()
    inner.add_special_tokens([END])
    return Tokenizer(inner)


def _kind(description: dict[str, Any]) -> str:
    """Which kind a tokenizer is, from its JSON; `InputError` if it does not keep every text."""
    model = description["model"]
    if model.get("type") != "BPE":
        raise InputError(f"the tokenizer's model is {model.get('type')}; only BPE can be used")
    outer: dict[str, Any] = description["pre_tokenizer"] or {}
    steps: list[dict[str, Any]] = [outer, *outer.get("pretokenizers", [])]
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    if description["normalizer"] or any(step["add_prefix_space"] for step in byte_level):
        raise InputError("the tokenizer changes a text before it encodes it")
    looked_for = [token for token in description["added_tokens"] if not token["special"]]
    if byte_level:
        parts = model["merges"] or model.get("ignore_merges") or looked_for
        cut = any(step["use_regex"] for step in byte_level)
        return "bpe" if parts or cut else "bytes"
    if model["merges"] or outer or looked_for:
        raise InputError("the tokenizer's BPE is not byte-level, so it cannot write every text")
    return "char"


def _token_bytes(
    vocabulary: dict[str, int], known: dict[str, int], kind: str, vocab_size: int
) -> list[bytes]:
    """The bytes of every id: characters of byte-level tokens are bytes in disguise.

    `known` are those of `vocabulary` that were not added to it.
    """
    result = [b""] * vocab_size
    for token, i in vocabulary.items():
        result[i] = token.encode() if kind == "char" or token not in known else _spelt(token)
    result[vocabulary[END]] = b""
    return result


def _spelt(token: str) -> bytes:
    try:
        return bytes(map(byte_symbols().__getitem__, token))
    except KeyError as error:
        raise InputError(
            f"the tokenizer's token {token!r} is not in the symbols that GPT-2 writes bytes in"
        ) from error


def _table(known: dict[str, int], kind: str) -> Ids | None:
    """The id of each byte or code point (-1: none), where every one is a token of its own."""
    if kind == "bpe":
        return None
    table = np.full(256 if kind == "bytes" else _N_CODE_POINTS, -1, dtype=np.int32)
    for token, i in known.items():
        if len(token) == 1:  # without merges nothing becomes a longer one
            table[ord(token) if kind == "char" else byte_symbols()[token]] = i
    return table


@cache
def byte_symbols() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, to the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable}
    symbols |= {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return symbols


def _groups(documents: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces of the documents, about `PIECE` characters at a time; True marks a document's last."""
    group: list[tuple[str, bool]] = []
    size = 0
    for text in documents:
        _check_characters(text)
        for piece in pieces(text):
            if size + len(piece) > PIECE and group:
                yield group
                group, size = [], 0
            group.append((piece, False))
            size += len(piece)
        group[-1] = (group[-1][0], True)
    if group:
        yield group


def _check_characters(text: str) -> None:
    """Refuse half a surrogate pair, the one thing a str can hold that is not Unicode text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"position {error.start} holds U+{ord(text[error.start]):04X}, half of a surrogate"
            " pair: not text that can be encoded"
        ) from error


@cache
def _allow_threads() -> None:
    """Let the library use its threads in this process and not in those forked from it.

    It warns of a fork after threaded work unless this variable says what is wanted, and a forked
    worker would wait for threads that were not forked with it.
    """
    name = "TOKENIZERS_PARALLELISM"
    os.environ.setdefault(name, "true")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: os.environ.update({name: "false"}))

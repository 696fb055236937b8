"""Text to tokens and back.

Three kinds, each kept as a standard `tokenizers` JSON: `bpe` (byte-level BPE), `bytes` (the 256
bytes, no merges) and `char` (one token a character of the corpus). `tokenizer_training` makes one,
`tokenizer_files` reads another program's, `tokenizer_json` says which of those can be used. Every
one has a token that ends a document. Nothing that can be typed becomes that token: text that looks
like it is text.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tokenizers

from minigpt.data.pieces import cut_parts, groups, pieces
from minigpt.data.tokenizer_json import (
    END,
    byte_symbols,
    check_bytes,
    check_marks,
    cut_of,
    end_of,
    kind_of,
    vocab_size_of,
)
from minigpt.errors import InputError

_N_CODE_POINTS = 0x110000

#: How a JSON begins that says which token ends a document, where the standard one does not tell.
_WITH_END = '{"end_token": '

Ids: TypeAlias = npt.NDArray[np.int32]


class Tokenizer:
    """A `tokenizers` tokenizer with the end-of-document token found and the bytes of each token.

    `end` is the end token as it is written, `end_id` its id. `vocab_size` is the real one: every id
    is below it; `unused` are those below it that no token has. `token_bytes[i]` is the UTF-8 that
    token `i` stands for; that of the end token, and of any other that marks something, is empty.
    `opens_texts` is true where other programs that use the same JSON put the end token before a
    text.
    """

    def __init__(self, inner: tokenizers.Tokenizer, end: str | None = None) -> None:
        """Wrap a tokenizer; `end` None is by the rule of `end_of`.

        Raises `InputError` if it is of a kind that cannot be used, has no end token, or ids without
        use.
        """
        # not stored in the JSON, so it is set on every load
        inner.encode_special_tokens = True
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size = vocab_size_of(vocabulary)
        description = json.loads(inner.to_str())
        by_rule = end_of(inner, description)
        self.end = end or by_rule or ""
        self._told_end = self.end != by_rule
        if self.end not in vocabulary:
            raise InputError(f"the tokenizer has no token {end or END} to end a document with")
        self.end_id = vocabulary[self.end]
        inner.add_special_tokens([self.end])  # it keeps its id, and is looked for no longer
        added = {token["content"]: token for token in description["added_tokens"]}
        added[self.end] = {"content": self.end, "special": True}
        description["added_tokens"] = list(added.values())
        self.kind = kind_of(description)
        check_marks(inner, description)
        if self.kind != "char":
            check_bytes(description)
        known = {token: i for token, i in vocabulary.items() if token not in added}
        first = "a" if self.kind != "char" else next(filter(str.isprintable, known), "")
        self.opens_texts = inner.encode(first, add_special_tokens=True).ids[:1] == [self.end_id]
        marks = {token for token in added if added[token]["special"]}
        written = {token: i for token, i in vocabulary.items() if token not in marks}
        self.token_bytes = _token_bytes(written, known, self.kind, self.vocab_size)
        self.unused = tuple(sorted(set(range(self.vocab_size)) - set(vocabulary.values())))
        self._cut = cut_of(description)
        self._table = _table(known, self.kind)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without end tokens. `InputError` names what cannot be encoded."""
        if self._table is not None:
            return self._look_up(text).tolist()
        _check_characters(text)
        ids: list[int] = []
        for piece in self.pieces(text):
            ids += self._inner.encode(piece, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several texts, as `encode` gives them one by one."""
        return [ids.tolist() for ids in self.encode_documents(texts)]

    def encode_documents(self, documents: Iterable[str]) -> Iterator[Ids]:
        """The ids of each document, in bounded memory beyond the documents themselves."""
        held: list[Ids] = []
        for ids, last in self.encode_parts((text, True) for text in documents):
            held.append(ids)
            if last:
                yield np.concatenate(held)
                held = []

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> Iterator[tuple[Ids, bool]]:
        """The ids of documents that come in parts, with True for the last of each.

        The library encodes on all cores while the caller does something with what came before.
        """
        if self._table is not None:
            yield from self._look_up_parts(parts)
            return
        allow_threads()
        encode = partial(self._inner.encode_batch_fast, add_special_tokens=False)
        with ThreadPoolExecutor(1) as thread:
            waiting: list[tuple[Future[list[tokenizers.Encoding]], list[bool]]] = []
            for texts, lasts in groups(cut_parts(parts, self._cut)):
                for text in texts:
                    _check_characters(text)
                waiting.append((thread.submit(encode, texts), lasts))
                if len(waiting) > 1:
                    yield from _ids(*waiting.pop(0))
            for each in waiting:
                yield from _ids(*each)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes[i] for i in ids).decode("utf-8", "replace")

    def pieces(self, text: str) -> Iterator[str]:
        """Cut a text into parts of `PIECE` characters or more that encode as the whole does.

        It stays whole where the tokenizer's pattern is none of which a safe place is known.
        """
        return pieces(text, self._cut)

    def to_json(self) -> str:
        """The standard JSON of the `tokenizers` library.

        Where that does not tell by itself which token ends a document, `end_token` stands before
        the rest, for `from_json` alone.
        """
        standard = self.standard_json()
        return f"{_WITH_END}{json.dumps(self.end)}, {standard[1:]}" if self._told_end else standard

    def __contains__(self, token: str) -> bool:
        """Whether there is a token that is written so."""
        return self._inner.token_to_id(token) is not None

    def standard_json(self) -> str:
        """What the `tokenizers` library reads, and any program that uses it."""
        return self._inner.to_str()

    @classmethod
    def from_json(cls, text: str, end: str | None = None) -> "Tokenizer":
        """Read what `to_json` wrote, or another byte-level BPE; `InputError` if it is neither.

        `end` is the token that ends a document, where the text does not tell.
        """
        try:
            if text.startswith(_WITH_END):
                values: dict[str, Any] = json.loads(text)
                end = values.pop("end_token")
                text = json.dumps(values)
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises a plain Exception
            raise InputError(f"not a tokenizer's JSON: {error}") from error
        return cls(inner, end)

    def _look_up_parts(self, parts: Iterable[tuple[str, bool]]) -> Iterator[tuple[Ids, bool]]:
        before = 0
        for text, last in parts:
            yield self._look_up(text, before), last
            before = 0 if last else before + len(text)

    def _look_up(self, text: str, before: int = 0) -> Ids:
        """Ids where every symbol (byte or character) is a token of its own.

        So many characters of the document stand before the text.
        """
        assert self._table is not None
        _check_characters(text)
        if self.kind == "bytes":
            return self._table[np.frombuffer(text.encode(), dtype=np.uint8)]
        ids = self._table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")]
        if (ids < 0).any():
            place = int((ids < 0).argmax())
            raise InputError(
                f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position"
                f" {before + place} is"
                f" not among the {self.vocab_size - 1} that the character tokenizer knows;"
                " one that is trained with tokenizer=bpe takes any text"
            )
        return ids


def _ids(
    encoded: "Future[list[tokenizers.Encoding]]", lasts: list[bool]
) -> Iterator[tuple[Ids, bool]]:
    for encoding, last in zip(encoded.result(), lasts, strict=True):
        yield np.fromiter(encoding.ids, np.int32, len(encoding.ids)), last


def _token_bytes(
    vocabulary: dict[str, int], known: dict[str, int], kind: str, vocab_size: int
) -> list[bytes]:
    """The bytes of every id: characters of byte-level tokens are bytes in disguise.

    `known` are those of `vocabulary` that were not added to it.
    """
    result = [b""] * vocab_size
    for token, i in vocabulary.items():
        result[i] = token.encode() if kind == "char" or token not in known else _spelt(token)
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
def allow_threads() -> None:
    """Let the library use its threads in this process and not in those forked from it.

    It warns of a fork after threaded work unless this variable says what is wanted, and a forked
    worker would wait for threads that were not forked with it.
    """
    name = "TOKENIZERS_PARALLELISM"
    os.environ.setdefault(name, "true")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: os.environ.update({name: "false"}))

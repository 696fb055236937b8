"""Documents in the pieces that they are encoded in, which give the tokens of the whole."""

import re
from collections.abc import Iterable, Iterator

#: A long text is encoded in pieces of at least so many characters, to bound memory and to give
#: every core something to do, ...
PIECE = 1 << 15
#: ... and so many characters are encoded at once.
GROUP = 1 << 21

#: Characters of a word that merges are learned from.
LONGEST_WORD = 512
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}(?=\S)")


def pieces(text: str, cut: re.Pattern[str] | None, size: int | None = None) -> Iterator[str]:
    """Cut a text after matches of `cut`, each part of `size` characters or more but the last."""
    return (piece for piece, _ in cut_parts([(text, True)], cut, size))


def cut_parts(
    parts: Iterable[tuple[str, bool]], cut: re.Pattern[str] | None, size: int | None = None
) -> Iterator[tuple[str, bool]]:
    """Documents that come in parts, cut elsewhere: after matches of `cut`, as `pieces` does."""
    size = size or PIECE
    held = ""
    for text, last in parts:
        held += text
        start = 0
        while cut and len(held) - start > size and (found := cut.search(held, start + size - 1)):
            yield held[start : found.end()], False
            start = found.end()
        held = held[start:]
        if last:
            yield held, True
            held = ""


def bounded(text: str) -> Iterator[str]:
    """A text in parts, for what learns from it: none has a longer word than `LONGEST_WORD`.

    Learning merges takes time with the square of a word's length, and base64 is all one word.
    """
    start = 0
    for word in _LONG_WORD.finditer(text):
        yield text[start : word.end()]
        start = word.end()
    yield text[start:]


def groups(parts: Iterable[tuple[str, bool]]) -> Iterator[tuple[list[str], list[bool]]]:
    """Parts to be encoded together: of about `GROUP` characters."""
    texts, lasts, size = list[str](), list[bool](), 0
    for text, last in parts:
        texts.append(text)
        lasts.append(last)
        size += len(text)
        if size >= GROUP:
            yield texts, lasts
            texts, lasts, size = [], [], 0
    if texts:
        yield texts, lasts

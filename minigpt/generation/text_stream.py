"""From tokens to text as it grows: a character appears when its last byte is there."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Joins the bytes of tokens into whole characters.

    The pieces, with what `finish` returns, are the text of all tokens at once:
    `b"".join(bytes of the tokens).decode("utf-8", "replace")`.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """`token_bytes` holds the bytes of each token of the vocabulary, by id."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes; "" while one is unfinished."""
        return self._decoder.decode(self._token_bytes[token])

    def finish(self) -> str:
        """What is unfinished at the end, as U+FFFD; "" if nothing is. The stream starts afresh."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

"""From tokens to text as it grows: what appears is certain, and nothing that stops it appears.

A character appears when its last byte is there. The text ends before the first stop string, and
what may become one is held back until it is clear that it does not.
"""

import codecs
from collections.abc import Sequence


class TextStream:
    """Joins the bytes of tokens into whole characters, up to a stop string.

    The text is the bytes of all tokens, cut before the stop string that is complete first (of
    several that are complete with the same byte, the longest), as UTF-8 with U+FFFD for what is
    not. How the bytes are cut into tokens does not matter. The pieces, with what `finish` returns,
    are this text. Stop strings are looked for in the bytes: U+FFFD finds only itself.

    `stopped` says that a stop string is complete. `size` is how many of the tokens' bytes are the
    text: all of them, and after a stop those before the stop string.
    """

    def __init__(self, token_bytes: Sequence[bytes], stop: Sequence[str] = ()) -> None:
        """`token_bytes` holds the bytes of each token by id; no string of `stop` is empty."""
        assert all(stop), "an empty stop string"
        self._token_bytes = token_bytes
        self._stop = [text.encode() for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: bytes = b""  # the end of the text where it is the start of a stop string
        self.stopped = False
        self.size = 0

    def push(self, token: int) -> str:
        """The characters that are certain with this token; "" if none are, or after a stop."""
        data = self._token_bytes[token]
        if self._stop:
            return "" if self.stopped else self._push_watched(data)
        self.size += len(data)
        return self._decoder.decode(data)

    def _push_watched(self, data: bytes) -> str:
        """`push` where there are stop strings and none of them is complete yet."""
        self.size += len(data)
        data = self._held + data
        # what is complete with the new bytes begins in `_held` or after it, so it is in `data`
        found = [(at + len(text), at) for text in self._stop if (at := data.find(text)) >= 0]
        if found:
            _, start = min(found)  # the first end; of those with the same end the longest
            self.size -= len(data) - start
            self.stopped = True
            self._held = b""
            return self._decoder.decode(data[:start], final=True)
        certain = len(data) - max(matched_length(data, text) for text in self._stop)
        self._held = data[certain:]
        return self._decoder.decode(data[:certain])

    def finish(self) -> str:
        """What was held back, with U+FFFD for an unfinished character; "" after a stop.

        The stream starts afresh: read `stopped` and `size` before.
        """
        rest = self._decoder.decode(self._held, final=True)
        self._held, self.stopped, self.size = b"", False, 0
        return rest


def matched_length(data: bytes, text: bytes) -> int:
    """How many bytes of `text`, fewer than all, are the end of `data`: the most that are."""
    longest = min(len(data), len(text) - 1)
    return next(n for n in range(longest, -1, -1) if data.endswith(text[:n]))

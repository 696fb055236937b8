"""One row of a generation as it is read: its tokens, its text, and where and why it ends."""

from typing import TYPE_CHECKING

from minigpt.generation.text_stream import TextStream

if TYPE_CHECKING:
    from minigpt.generation.decode import Decoding

#: Stands in a token's place where every token was banned.
NO_TOKEN = -1


class Continuation:
    """What is generated after a prompt, without the prompt and without what ended it.

    `ids` are the tokens that `text` is made of: where a stop text begins inside a token, that token
    is the last of them. `logprobs` has, where they are asked for, the model's log-probability of
    each, in nats. `reason` is "" while it goes on, then "end" (the model ended the document),
    "stop" (a stop token or text), "length" (`max_new_tokens`) or "banned" (no token was allowed).
    `seconds` is how long its batch took.
    """

    def __init__(self, decoding: "Decoding") -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.reason = "" if decoding.max_new_tokens else "length"
        self.seconds = 0.0
        self._max_new_tokens = decoding.max_new_tokens
        self._token_bytes = decoding.token_bytes
        self._text = TextStream(decoding.token_bytes, decoding.stop)
        self._pieces: list[str] = []
        self._ends = dict.fromkeys(decoding.stop_ids, "stop")
        self._ends |= {decoding.end_id: "end", NO_TOKEN: "banned"}

    @property
    def text(self) -> str:
        """The text so far: whole characters, and nothing that may become a stop text."""
        return "".join(self._pieces)

    def push(self, token: int, logprob: float | None = None) -> str:
        """Add a token; what it adds to `text`. With the last one that is all there is left."""
        if token in self._ends:
            return self.finish(self._ends[token])
        self.ids.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        piece = self._text.push(token) if self._token_bytes else ""
        self._pieces.append(piece)
        if self._text.stopped:
            self._keep_what_is_shown()
            return piece + self.finish("stop")
        if len(self.ids) == self._max_new_tokens:
            return piece + self.finish("length")
        return piece

    def _keep_what_is_shown(self) -> None:
        """Leave out the tokens that have no part in the text."""
        size = sum(len(self._token_bytes[token]) for token in self.ids)
        while (rest := size - len(self._token_bytes[self.ids[-1]])) >= self._text.size:
            size = rest
            self.ids.pop()
            if not self.ids:
                break
        del self.logprobs[len(self.ids) :]

    def finish(self, reason: str = "") -> str:
        """End here; the text that was held back until it was certain."""
        self.reason = reason or self.reason
        piece = self._text.finish()
        self._pieces.append(piece)
        return piece

"""What the next token's logits owe to the tokens before it: biases, penalties, bans.

Each control changes the logits (B, V) of a step and is then told the token of each row, (B,).
They are whole-batch tensor operations: no row is looked at by itself, nothing waits for the
device. Only those in use are made (`controls_in_use`), so the others cost nothing.

The token that ends a document is no word of the text: no penalty and no ban of repetition reaches
it. Shapes: B rows, V tokens, P texts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor

from minigpt.generation.continuation import NO_TOKEN
from minigpt.generation.text_match import TextMatch

if TYPE_CHECKING:
    from minigpt.generation.decode import Decoding


#: By how many tokens the room for rows grows when it is full.
COLUMNS_AT_A_TIME = 256


class Control(Protocol):
    """A change of the logits that may depend on the tokens so far."""

    def adjust(self, logits: Tensor) -> Tensor:
        """The logits of the next token, (B, V), as they are to be sampled from."""
        ...

    def append(self, ids: Tensor) -> None:
        """Take note of each row's new token, (B,); -1 where there is none."""
        ...


def controls_in_use(
    decoding: "Decoding", prompts: Sequence[Sequence[int]], device: torch.device
) -> list[Control]:
    """The controls that change anything, in the order in which they act."""
    sampling = decoding.sampling
    controls: list[Control] = []
    if sampling.logit_bias_ids:
        controls.append(TokenBias(decoding, device))
    if sampling.logit_bias:
        controls.append(TextBias(decoding, prompts, device))
    if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
        1, 0, 0,
    ):  # fmt: skip
        controls.append(Penalties(decoding, prompts, device))
    if sampling.no_repeat_ngram:
        controls.append(NoRepeat(decoding, prompts, device))
    return controls


class TokenBias:
    """`logit_bias_ids`: a number added to the logit of a token."""

    def __init__(self, decoding: "Decoding", device: torch.device) -> None:
        bias = torch.zeros(decoding.vocab_size)
        for token, value in decoding.sampling.logit_bias_ids:
            bias[token] += value
        self._bias = bias.to(device)

    def adjust(self, logits: Tensor) -> Tensor:
        """Add the biases."""
        return logits + self._bias

    def append(self, ids: Tensor) -> None:
        """No token changes the biases."""


class TextBias:
    """`logit_bias`: a number added to the logit of every token that would complete a text.

    The text may begin in the prompt.
    """

    def __init__(
        self, decoding: "Decoding", prompts: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        texts = [text for text, _ in decoding.sampling.logit_bias]
        self._match = TextMatch(texts, decoding.token_bytes, device)
        self._states = self._match.start(
            [b"".join(decoding.token_bytes[i] for i in prompt) for prompt in prompts]
        )  # (B, P)
        # a bias for each state of each text: the states of a text stand together
        by_state = [bias for text, bias in decoding.sampling.logit_bias for _ in text.encode()]
        biases = torch.tensor(by_state, device=device)[:, None]
        completing = self._match.completing(torch.arange(len(by_state), device=device))
        self._table = torch.where(completing, biases, 0.0)  # (N states, V)

    def adjust(self, logits: Tensor) -> Tensor:
        """Add the biases of the texts that each token would complete."""
        return logits + F.embedding_bag(self._states, self._table, mode="sum")

    def append(self, ids: Tensor) -> None:
        """Follow the texts."""
        self._states = self._match.advance(self._states, ids)


class Penalties:
    """`repetition_penalty` (Keskar et al. 2019, section 4.1), then `frequency_` and `presence_`.

    The first counts the prompt's tokens as well, the others those of the new text alone.
    """

    def __init__(
        self, decoding: "Decoding", prompts: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        self._sampling = decoding.sampling
        seen = torch.zeros(len(prompts), decoding.vocab_size, dtype=torch.bool)
        for row, prompt in zip(seen, prompts, strict=True):
            row[list(prompt)] = True
        if 0 <= decoding.end_id < decoding.vocab_size:
            seen[:, decoding.end_id] = False  # it is in no new text: with it the row has ended
        self._seen = seen.to(device)
        self._counts = torch.zeros(seen.shape, device=device)

    def adjust(self, logits: Tensor) -> Tensor:
        """Penalise what has been used."""
        sampling = self._sampling
        if (penalty := sampling.repetition_penalty) != 1:
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(self._seen, penalised, logits)
        if sampling.frequency_penalty:
            logits = logits.sub(self._counts, alpha=sampling.frequency_penalty)
        if sampling.presence_penalty:
            logits = logits.sub(self._counts.sign(), alpha=sampling.presence_penalty)
        return logits

    def append(self, ids: Tensor) -> None:
        """Count the tokens."""
        ids = ids.clamp(min=0)[:, None]
        self._seen.scatter_(1, ids, value=True)
        self._counts.scatter_add_(1, ids, torch.ones_like(ids, dtype=self._counts.dtype))


class NoRepeat:
    """`no_repeat_ngram` n: no token that would end n tokens which stand in the row already.

    The prompt is part of the row (Paulus et al. 2018, section 2.5, for n = 3).
    """

    def __init__(
        self, decoding: "Decoding", prompts: Sequence[Sequence[int]], device: torch.device
    ) -> None:
        n = decoding.sampling.no_repeat_ngram
        assert n is not None
        self._n = n
        self._end_id = decoding.end_id
        self._length = max(n, *map(len, prompts))
        rows = [[-1] * (self._length - len(prompt)) + list(prompt) for prompt in prompts]
        self._rows = torch.tensor(rows, device=device)  # (B, ...), -1 in front of shorter prompts

    def adjust(self, logits: Tensor) -> Tensor:
        """Ban what would repeat."""
        row = self._rows[:, : self._length]
        grams = row.unfold(1, self._n, 1)  # (B, length - n + 1, n)
        begun = row[:, self._length - self._n + 1 :]  # (B, n - 1), the newest
        last = grams[..., -1]
        again = (grams[..., :-1] == begun[:, None]).all(-1) & (last >= 0)
        times = torch.zeros_like(logits).scatter_add_(1, last.clamp(min=0), again.to(logits.dtype))
        if 0 <= self._end_id < logits.size(1):
            times[:, self._end_id] = 0
        return logits.masked_fill(times > 0, -torch.inf)

    def append(self, ids: Tensor) -> None:
        """Make the rows longer."""
        if self._length == self._rows.size(1):
            self._rows = F.pad(self._rows, (0, COLUMNS_AT_A_TIME))
        self._rows[:, self._length] = ids
        self._length += 1


class Ends:
    """Which rows have ended, and what would end one: the document's end, stop tokens and texts."""

    def __init__(self, decoding: "Decoding", n_rows: int, device: torch.device) -> None:
        ids = [i for i in (decoding.end_id, *decoding.stop_ids) if 0 <= i < decoding.vocab_size]
        ends = torch.zeros(decoding.vocab_size + 1, dtype=torch.bool)
        ends[[*ids, NO_TOKEN]] = True  # NO_TOKEN finds the last one
        self._ends = ends.to(device)
        self._match = None
        if decoding.stop:
            self._match = TextMatch(decoding.stop, decoding.token_bytes, device)
            self._states = self._match.start([b""] * n_rows)  # (B, P)
        self.ended = torch.zeros(n_rows, dtype=torch.bool, device=device)

    def forbid(self, logits: Tensor) -> Tensor:
        """The logits (B, V) with nothing left that would end a row."""
        ends = self._ends[:-1]
        if self._match is not None:
            ends = ends | self._match.completing(self._states).any(1)
        return logits.masked_fill(ends, -torch.inf)

    def append(self, ids: Tensor) -> None:
        """Take note of each row's new token, (B,); -1 where there is none."""
        self.ended |= self._ends[ids]
        if self._match is not None:
            self.ended |= self._match.completed(self._states, ids).any(1)
            self._states = self._match.advance(self._states, ids)

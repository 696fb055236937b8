"""Where rows of tokens are in given texts, and which tokens would complete one.

A text may begin and end inside tokens and span several. Each text is matched byte by byte as
Knuth, Morris and Pratt do. What a whole token does is looked up in tables, so a step for a batch
is one indexing on the device: no loop over rows or tokens, and no waiting for the device.

A state is an integer: text p in which the last j bytes so far match is `first[p] + j`. A complete
text is left at once for the longest shorter match, so j is 0 to the text's length less 1.
Shapes: B rows, P texts, N states of all texts (their bytes in UTF-8), V tokens.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.errors import InputError
from minigpt.generation.text_stream import matched_length

#: The most that the tables of a `TextMatch` may take, in bytes.
MAX_TABLES = 2 << 30

#: Entries of the tables that are worked out at a time: few enough to stay in a processor's cache.
ENTRIES_AT_A_TIME = 1 << 18

States: TypeAlias = npt.NDArray[np.int32]


class TextMatch:
    """Several texts, to be found in rows of tokens side by side.

    Wherever ids are taken, -1 is a token without bytes: a row that has ended stays where it is.
    """

    def __init__(
        self, texts: Sequence[str], token_bytes: Sequence[bytes], device: torch.device
    ) -> None:
        """Work out the tables for `texts`, of which there is one and none is empty.

        `token_bytes` holds the bytes of each token by id. How large they get, `check_size` tells.
        """
        assert texts, "no texts"
        assert all(texts), "an empty text"
        self._texts = [text.encode() for text in texts]
        self._first = [0, *accumulate(map(len, self._texts))][:-1]
        self._device = device
        # an empty token after the others is what the index -1 finds
        after = token_moves(byte_moves(self._texts), [*token_bytes, b""])
        n_states = len(after)
        completes = after >= n_states
        np.subtract(after, n_states, out=after, where=completes)
        self._moves = torch.from_numpy(after).to(device)  # (N, V + 1) int32
        self._completes = torch.from_numpy(completes).to(device)  # (N, V + 1) bool

    def start(self, prefixes: Sequence[bytes]) -> Tensor:
        """The states after the text that each row begins with (b"" for none): (B, P) int32."""
        states = [
            [
                first + matched_length(prefix, text)
                for first, text in zip(self._first, self._texts, strict=True)
            ]
            for prefix in prefixes
        ]
        return torch.tensor(states, dtype=torch.int32, device=self._device)

    def advance(self, states: Tensor, ids: Tensor) -> Tensor:
        """The states (B, P) after a token more in each row, from `ids` (B,)."""
        return self._moves[states, ids[:, None]]

    def completed(self, states: Tensor, ids: Tensor) -> Tensor:
        """Whether a text is completed by, or within, a row's next token: (B, P) bool.

        `states` (B, P) are those before the token, `ids` (B,).
        """
        return self._completes[states, ids[:, None]]

    def completing(self, states: Tensor) -> Tensor:
        """Which tokens would complete a text (see `completed`): (..., V) bool for states (...)."""
        return self._completes[states][..., :-1]


def check_size(key: str, texts: Sequence[str], n_tokens: int) -> None:
    """`InputError`, which the setting `key` begins, if tables would be larger than `MAX_TABLES`."""
    n_states = sum(len(text.encode()) for text in texts)
    # moves, completes and a bias, made from one another; the moves of bytes, twice
    state_size = 16 * (n_tokens + 1) + 2 * (4 + 8) * 256
    if n_states * state_size > MAX_TABLES:
        raise InputError(
            f"{key}: the texts are too long together: {n_states:,} bytes, and with a vocabulary of"
            f" {n_tokens:,} tokens at most {MAX_TABLES // state_size:,} fit"
        )


def byte_moves(texts: Sequence[bytes]) -> States:
    """The state after a byte more, (2 N, 256).

    The second half is the first again for those that have completed their text on the way: N is
    added to a state when it does, and stays.
    """
    n_states = sum(map(len, texts))
    moves = np.zeros((2, n_states, 256), dtype=np.int32)
    first = 0
    for text in texts:
        end = first + len(text)
        moves[:, first:end] = first + _moves_in(text)
        moves[1, first:end] += n_states
        moves[0, end - 1, text[-1]] += n_states
        first = end
    return moves.reshape(2 * n_states, 256)


def _moves_in(text: bytes) -> States:
    """How much of a text matches after a byte more, by how much does before: (length, 256)."""
    moves = np.zeros((len(text), 256), dtype=np.int32)
    shorter = 0  # the next longest match where j bytes match
    for j, byte in enumerate(text):
        moves[j] = moves[shorter]
        after = moves[shorter, byte]
        moves[j, byte] = j + 1
        shorter = after
    moves[-1, text[-1]] = shorter
    return moves


def token_moves(moves: States, token_bytes: Sequence[bytes]) -> States:
    """The state after a token more, (N, V), from the moves (2 N, 256) of `byte_moves`.

    N is added to it if the token completes the text.
    """
    n_states, n_tokens = len(moves) // 2, len(token_bytes)
    lengths = np.array([len(data) for data in token_bytes])
    by_length = np.argsort(-lengths, kind="stable")  # the ones that have a byte i come first
    joined = np.frombuffer(b"".join(token_bytes), dtype=np.uint8)
    starts = (np.cumsum(lengths) - lengths)[by_length]
    n_longer = [int((lengths > i).sum()) for i in range(lengths.max())]
    # a state is kept as the place of its row, so that adding a byte gives the place of the move
    moves_flat = moves.ravel().astype(np.intp) * 256
    result = np.empty((n_states, n_tokens), dtype=np.int32)
    rows = max(1, ENTRIES_AT_A_TIME // n_tokens)
    for first in range(0, n_states, rows):
        block = result[first : first + rows]
        places = np.empty((n_tokens, len(block)), dtype=np.intp)
        places[:] = 256 * np.arange(first, first + len(block))
        for i, n in enumerate(n_longer):
            places[:n] = moves_flat[places[:n] + joined[starts[:n] + i][:, None]]
        block[:, by_length] = places.T >> 8
    return result

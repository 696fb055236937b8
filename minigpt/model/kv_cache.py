"""The keys and values of positions already read, so that decoding reads each token once.

One object serves one batch of sequences. Every layer writes its part (`append`; a decoding step by
itself); the model, not the last layer, moves `length` on with `advance`, once per forward pass. It
is for decoding under `torch.no_grad` or `torch.inference_mode`: writing in place is not
differentiable.

The places of a row lie close together in memory: the first `room` of the capacity, which grows
with the text. A processor reads ahead in memory, and holes between the heads would stop it: eight
rows of 200 positions are read in two thirds of the time.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT

#: Positions by which the room of a row grows.
ROOM = 64


class KVCache:
    """Room for `capacity` positions of every layer, allocated once.

    `length` is a Python integer, the same for every row: that of the longest. Shorter ones are
    padded on the left, or have their places counted outside (`places`). `keys` and `values`
    (n_layer, B, H, room, D) are views of all that is held; what lies after a row's own positions
    is finite and means nothing.
    """

    keys: Tensor
    values: Tensor

    def __init__(
        self,
        n_layer: int,
        batch_size: int,
        n_head: int,
        capacity: int,
        head_width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._shape = (n_layer, batch_size, n_head, head_width)
        shape = (n_layer, batch_size * n_head * capacity * head_width)
        self._memory = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
        self.capacity = capacity
        self.length = 0
        self._lay_out(capacity)

    @classmethod
    def for_model(cls, model: "GPT", batch_size: int, capacity: int | None = None) -> "KVCache":
        """An empty cache of a model's shape, dtype and device; it holds a context by default."""
        config, weight = model.config, model.embedding.weight
        return cls(
            config.n_layer,
            batch_size,
            config.n_head,
            config.block_size if capacity is None else capacity,
            config.n_embd // config.n_head,
            dtype=weight.dtype,
            device=weight.device,
        )

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values, (B, H, T, D); return views of all S, (B, H, S, D).

        Raises:
            ValueError: there is no room for T more positions.
        """
        start, T = self.length, k.size(2)
        self.make_room(T)
        keys, values = self.keys[layer], self.values[layer]
        keys.narrow(2, start, T).copy_(k)
        values.narrow(2, start, T).copy_(v)
        return keys.narrow(2, 0, start + T), values.narrow(2, 0, start + T)

    def advance(self, T: int) -> None:
        """Count T positions as read, once every layer has appended them."""
        self.length += T

    def make_room(self, T: int) -> int:
        """Lay the rows out for T more positions, unless they are; the room of a row.

        Raises:
            ValueError: there is no room for them.
        """
        end, room = self.length + T, self.keys.size(3)
        if end > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} positions that holds {self.length} has no room for"
                f" {T} more"
            )
        if self.length == 0 or end > room:
            wanted = min(self.capacity, -(-end // ROOM) * ROOM)
            if wanted != room:
                self._lay_out(wanted)
            return wanted
        return room

    def _lay_out(self, room: int) -> None:
        """Give every row of every layer `room` places, and move there what is held."""
        n_layer, B, H, D = self._shape
        before = (self.keys, self.values) if self.length else ()
        self.keys, self.values = (
            memory[:, : B * H * room * D].view(n_layer, B, H, room, D) for memory in self._memory
        )
        for old, new in zip(before, (self.keys, self.values), strict=False):
            for layer in range(n_layer):
                new[layer].narrow(2, 0, old.size(3)).copy_(old[layer].clone())

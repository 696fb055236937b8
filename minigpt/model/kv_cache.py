"""The keys and values of positions already read, so that decoding reads each token once.

One object serves one batch of sequences. Every layer writes its part with `append`; the model, not
the last layer, moves `length` on with `advance`, once per forward pass. It is for decoding under
`torch.no_grad` or `torch.inference_mode`: writing in place is not differentiable.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from minigpt.model.gpt import GPT


class KVCache:
    """Room for `capacity` positions of every layer, allocated once.

    `length` is a Python integer, the same for every row: that of the longest. Shorter ones are
    padded on the left, or have their places counted outside (`places`).
    """

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
        shape = (n_layer, batch_size, n_head, capacity, head_width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = torch.arange(batch_size, device=device)
        self._layers = list(zip(self.keys.unbind(), self.values.unbind(), strict=True))
        self.capacity = capacity
        self.length = 0

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

    def append(
        self, layer: int, k: Tensor, v: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's new keys and values, (B, H, T, D); return views of all S, (B, H, S, D).

        They go after those that are there, or with `places` (B,) a row's one (T = 1) to a place of
        its own among the first S.

        Raises:
            ValueError: there is no room for T more positions.
        """
        start, T = self.length, k.size(2)
        end = start + T
        if end > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} positions that holds {start} has no room for {T} more"
            )
        keys, values = self._layers[layer]
        if places is None:
            keys.narrow(2, start, T).copy_(k)
            values.narrow(2, start, T).copy_(v)
        else:
            keys[self._rows, :, places] = k[:, :, 0]
            values[self._rows, :, places] = v[:, :, 0]
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)

    def advance(self, T: int) -> None:
        """Count T positions as read, once every layer has appended them."""
        self.length += T

"""Scaled dot-product attention, from the mask to the module.

Shapes: B batch, T query positions, S key positions, H heads, D head width, C = H * D.

One mask convention: boolean, True = "may be read". PyTorch's `scaled_dot_product_attention` reads
masks the same way, so nothing is turned here. The T queries are the *last* T of the S positions
(query t sits at key S - T + t), which is what a KV cache makes of them.

There are two ways to the same numbers: `readable_attention` writes the formula out and returns its
weights, `fast_attention` is PyTorch's fused kernel. So it is with the norm of queries and keys.
`torch.compile` makes the fast way of the readable one where sequences are short. Where rows are
long and hold several documents, `document_attention` is the fused kernel once a document.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn

from minigpt.config import ModelConfig
from minigpt.model.kv_cache import KVCache
from minigpt.model.linear import Linear
from minigpt.model.positions import turned
from minigpt.model.query_key_norm import NormedHeads, rms_normed

#: Keys up to which the fused kernel is slower on a CPU than what a compiler makes of the formula.
SHORT = 128

#: Keys from which on the documents of a row are faster on a CPU one by one than behind a mask.
LONG = 512


def attention_mask(
    T: int,
    S: int,
    *,
    real: Tensor | None = None,
    documents: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Which keys each query may read: earlier ones that are real and of its own document.

    A query may always read its own position. So a padded query has something to read, no row of
    the mask is empty, and no softmax is over nothing.

    Args:
        T: number of queries, the last T of the S positions.
        S: number of keys.
        real: (B, S) bool, False for padding.
        documents: (B, S) integer, equal inside a document.
        device: where the mask is wanted.

    Returns:
        (B, 1, T, S) bool; (T, S) where no row of the batch differs; None where it would be plain
        causality with T = S or one query that reads every key, for which kernels need no mask.
    """
    if T > S:
        raise ValueError(f"{T} queries are more than the {S} keys they are the last of")
    if real is None and documents is None and T in (1, S):
        return None
    keys = torch.arange(S, device=device)
    queries = keys[S - T :, None]
    mask = keys <= queries
    if documents is not None:
        mask = mask & (documents[:, S - T :, None] == documents[:, None, :])
    if real is not None:
        mask = mask & real[:, None, :]
    mask = mask | (keys == queries)
    return mask if mask.dim() == 2 else mask[:, None]


def readable_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ / √D) v (Vaswani et al. 2017, eq. 1), and its weights before dropout.

    Args:
        q: (B, H, T, D).
        k: (B, H, S, D).
        v: (B, H, S, D).
        mask: bool, broadcast to (B, H, T, S); True may be read; a query must have a key to read.
        causal: instead of a mask: queries are the last T positions and read no later ones.
        dropout: share of weights to drop.

    Returns:
        Output (B, H, T, D) and weights (B, H, T, S).
    """
    mask = _checked_mask(q, k, v, mask, causal=causal)
    scores = q / math.sqrt(q.size(-1)) @ k.mT  # q first: q kᵀ itself could leave float16's range
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v, weights


def fast_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`readable_attention`'s output, (B, H, T, D), from PyTorch's fused kernel."""
    if torch.compiler.is_compiling() and q.device.type == "cpu" and k.size(-2) <= SHORT:
        return readable_attention(q, k, v, mask, causal=causal, dropout=dropout)[0]
    if causal and mask is None and q.size(-2) == k.size(-2) == v.size(-2):
        # is_causal is aligned to the top left: only where T = S does it mean what ours means.
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    mask = _checked_mask(q, k, v, mask, causal=causal)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)


def document_lengths(documents: Tensor) -> list[int] | None:
    """How long the documents of rows (B, T) are that `document_attention` is the faster way for.

    Row after row: they add up to B * T. None where the mask is the faster way, or the only one: a
    compiler would make code anew for every batch's lengths, a tensor without contents has none,
    and of documents that are not numbered in order one may lie in several places.
    """
    B, T = documents.shape
    plain = type(documents) is Tensor and documents.device.type == "cpu"
    if T < LONG or not plain or torch.compiler.is_compiling():
        return None
    turns = documents.diff(dim=1)
    if (turns < 0).any():
        return None
    begins = F.pad(turns > 0, (1, 0), value=True).flatten().nonzero()[:, 0]
    return cast("list[int]", begins.diff(append=begins.new_tensor([B * T])).tolist())


def document_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], *, dropout: float = 0.0
) -> Tensor:
    """Causal attention of q, k, v, each (B, H, T, D), inside each document; (B, H, T, D).

    `lengths` are those of `document_lengths`. A row costs the sum of its documents' squares, where
    the kernel with a mask computes all T² products.
    """
    B, H, T, D = q.shape
    streams = (torch.split(x.transpose(1, 2).reshape(B * T, H, D), lengths) for x in (q, k, v))
    outputs: list[Tensor] = []
    for document in zip(*streams, strict=True):
        heads = (part.transpose(0, 1)[None] for part in document)  # (1, H, length, D)
        y = F.scaled_dot_product_attention(*heads, dropout_p=dropout, is_causal=True)
        outputs.append(y[0].transpose(0, 1))
    return torch.cat(outputs).view(B, T, H, D).transpose(1, 2)


def _checked_mask(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool
) -> Tensor | None:
    """The mask to apply to scores (.., T, S); ValueError where the arguments do not belong."""
    T, S = q.size(-2), k.size(-2)
    if v.size(-2) != S:
        raise ValueError(f"{v.size(-2)} values for {S} keys: each key needs its one value")
    if mask is not None:
        if causal:
            raise ValueError("a mask and causal=True together: put causality into the mask")
        return mask
    if not causal:
        return None
    return torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)


class CausalSelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself, with one projection for q, k and v."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        if config.n_embd % config.n_head:
            raise ValueError(f"n_embd={config.n_embd} is not a multiple of n_head={config.n_head}")
        self.layer = layer
        self.n_head = config.n_head
        self.qk_norm = config.qk_norm
        self.dropout = config.dropout
        self.qkv = Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.output = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        attention: list[Tensor] | None = None,
        angles: Tensor | None = None,
        documents: list[int] | None = None,
    ) -> Tensor:
        """(B, T, C) to (B, T, C).

        `mask` comes from `attention_mask`; None means causal. With a `cache` the keys are all it
        holds, these T included. A list given as `attention` gets the weights, (B, H, T, S): asking
        for them is what chooses the readable path. `angles` are those of the T positions, from
        `rotary_angles`; None turns nothing. `documents` are the lengths for `document_attention`,
        which takes neither mask, cache nor list.
        """
        B, T, C = x.shape
        q, k, v = self._heads(x, angles, readable=attention is not None)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        causal = mask is None
        dropout = self.dropout if self.training else 0.0
        if documents is not None:
            y = document_attention(q, k, v, documents, dropout=dropout)
        elif attention is None:
            y = fast_attention(q, k, v, mask, causal=causal, dropout=dropout)
        else:
            y, weights = readable_attention(q, k, v, mask, causal=causal, dropout=dropout)
            attention.append(weights)
        return self.output(y.transpose(1, 2).reshape(B, T, C))

    def _heads(
        self, x: Tensor, angles: Tensor | None, *, readable: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x (B, T, C), each (B, H, T, D), as attention takes them.

        The fast way is for what runs as it is written; a compiler makes it of the readable one.
        """
        B, T, C = x.shape
        wide = self.qkv(x)
        if self.qk_norm and not (readable or torch.compiler.is_compiling()):
            q, k, v = cast(
                "tuple[Tensor, Tensor, Tensor]",
                NormedHeads.apply(wide.view(B, T, 3, self.n_head, -1), angles),
            )
        else:
            q, k, v = (part.view(B, T, self.n_head, -1) for part in wide.split(C, dim=-1))
            if self.qk_norm:
                q, k = rms_normed(q), rms_normed(k)
            if angles is not None:
                q, k = turned(q, angles), turned(k, angles)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

"""The decoder-only Transformer (Radford et al. 2019): embed, L blocks, norm, and the tied head.

Shapes: B batch, T positions read now, S all positions with the cached ones, C = n_embd, V tokens.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import Tensor, nn
from torch.utils import checkpoint

from minigpt.config import ModelConfig
from minigpt.model.attention import attention_mask, document_lengths
from minigpt.model.block import Block
from minigpt.model.kv_cache import KVCache
from minigpt.model.positions import position_table, rotary_angles
from minigpt.model.undrawn import Undrawn


class GPT(nn.Module):
    """Token ids to the logits of the token that follows each.

    The head has no weight of its own: it is the embedding read the other way, one parameter.

    `activation_checkpointing` trades time for memory: while gradients are recorded a block keeps
    its input alone, and the backward pass computes the rest of it again (Chen et al. 2016). It
    changes no number.
    """

    activation_checkpointing: bool = False

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.position = position_table(config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        # A post-norm block ends in its norm already.
        pre = config.norm_order == "pre"
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias) if pre else nn.Identity()
        self.head: nn.Module | None = None  # see `minigpt.model.int8`
        self._initialise()

    def _initialise(self) -> None:
        """GPT-2's: N(0, 0.02²), biases 0; what adds to the residual stream is scaled for depth.

        Or that begins at zero (`residual_init`): then a new block hands on what it is given.
        """
        zero = self.config.residual_init == "zero"
        residual = 0.0 if zero else 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                adds = name.endswith((".attention.output.weight", ".mlp.down.weight"))
                nn.init.normal_(parameter, std=residual if adds else 0.02)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.weight.device

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        real: Tensor | None = None,
        documents: Tensor | None = None,
        cache: KVCache | None = None,
        attention: list[Tensor] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits (B, T, V) of tokens (B, T), or (B, 1, V) of the last position alone.

        The other arguments are those of `hidden`.
        """
        hidden = self.hidden(
            tokens,
            positions=positions,
            real=real,
            documents=documents,
            cache=cache,
            attention=attention,
        )
        return self.logits(hidden[:, -1:] if last_only else hidden)

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        real: Tensor | None = None,
        documents: Tensor | None = None,
        cache: KVCache | None = None,
        attention: list[Tensor] | None = None,
    ) -> Tensor:
        """The residual stream after the last norm, (B, T, C).

        Args:
            tokens: (B, T) int64.
            positions: (T,) or (B, T) int64 below block_size; those after the cache by default.
            real: (B, S) bool, False for padding, which no other position reads.
            documents: (B, S) integer; attention stays where it is equal.
            cache: what was read before; these T positions are added to it.
            attention: a list that gets the weights of each block, (B, H, T, S).

        Raises:
            ValueError: S is beyond block_size or the cache's capacity.
        """
        past, T = 0 if cache is None else cache.length, tokens.size(1)
        S = past + T
        if self.config.block_size < S:
            raise ValueError(f"{S} positions are beyond block_size={self.config.block_size}")
        if positions is None:
            positions = torch.arange(past, S, device=tokens.device)
        mask = lengths = None
        if documents is not None and real is None and cache is None and attention is None:
            lengths = document_lengths(documents)
        if lengths is None:
            mask = attention_mask(T, S, real=real, documents=documents, device=tokens.device)
        x = cast("Tensor", self.embedding(tokens))
        angles = None
        if self.config.position == "rotary":
            angles = rotary_angles(positions, self.config.n_embd // self.config.n_head, x.dtype)
        else:
            x = x + self.position(positions)
        x = self.dropout(x)
        recomputed = self.activation_checkpointing and torch.is_grad_enabled()
        for block in self.blocks:
            if recomputed and cache is None and attention is None:
                others = (mask, None, None, angles, lengths)
                x = cast("Tensor", checkpoint.checkpoint(block, x, *others, use_reentrant=False))
            else:
                x = block(x, mask, cache, attention, angles, lengths)
        if cache is not None:
            cache.advance(T)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, C) to (…, V), through the embedding's own weight."""
        if self.head is not None:
            return cast("Tensor", self.head(hidden))
        return F.linear(hidden, self.embedding.weight)

    def parameter_count(self, *, embeddings: bool = True) -> int:
        """How many numbers are trained, with the token and position tables or without."""
        tables = [m for m in self.modules() if isinstance(m, nn.Embedding) and not embeddings]
        return sum(p.numel() for p in self.parameters()) - sum(t.weight.numel() for t in tables)

    def shape(self) -> str:
        """Its sizes, in words."""
        config = self.config
        return (
            f"{config.n_layer} layers, {config.n_head} heads, {config.n_embd} wide, context"
            f" {config.block_size}, vocabulary {self.vocab_size:,}"
        )


def state_shapes(config: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a model by its name, without memory for any.

    Raises `ValueError` for a model of more bytes than a number can count.
    """
    try:
        with torch.device("meta"), Undrawn():
            state = GPT(config, vocab_size).state_dict()
    except (RuntimeError, TypeError) as error:
        raise ValueError("of no possible model") from error
    return {name: tuple(tensor.shape) for name, tensor in state.items()}

"""What the checks share: the model they look at, and what they find."""

import copy
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from minigpt.data.batches import Batch
from minigpt.data.token_store import TokenStore
from minigpt.model.gpt import GPT

if TYPE_CHECKING:
    from minigpt.model.block import Block

_Way = TypeVar("_Way")

#: Positions that a check reads; few, as float64 is slow, and more than a fused kernel's vector.
POSITIONS = 32

#: The largest share of its size that a number may be off by, after a forward pass in float64.
EXACT = 1e-10


@dataclass(frozen=True, slots=True)
class Subject:
    """A model to look at, in evaluation mode: as it is, and a float64 copy of it on the CPU.

    `batch` is the first micro-batch that it would be trained on, and `data` says of what; `fresh`
    says that it has not been trained; `store`, where it is known, is the stream that the batch was
    cut from. A new model may begin with zeros in what attention and MLP add to the residual stream,
    which would hide all that they do: the copy has there what other new models begin with.
    """

    model: GPT
    exact: GPT
    batch: Batch
    fresh: bool
    store: TokenStore | None = None
    data: str = ""

    @classmethod
    def of(
        cls,
        model: GPT,
        batch: Batch,
        *,
        fresh: bool,
        store: TokenStore | None = None,
        data: str = "",
    ) -> "Subject":
        """Copy the model, so that nothing a check does to it is left behind."""
        as_it_is = copy.deepcopy(model).eval()
        exact = copy.deepcopy(as_it_is).cpu().double()
        if fresh and model.config.residual_init == "zero":
            _fill_residual(exact)
        return cls(as_it_is, exact, batch, fresh, store, data)

    def tokens(self) -> Tensor:
        """Token ids drawn at random, (2, T): as many as fit the context, at most `POSITIONS`."""
        T = min(POSITIONS, self.model.config.block_size)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.model.vocab_size, (2, T), generator=generator)

    def other_tokens(self, tokens: Tensor) -> Tensor:
        """Tokens that differ from the given ones everywhere."""
        return (tokens + 1) % self.model.vocab_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found.

    `figure` says in words what was measured and what it may be; `value` and `bound` are its numbers
    where it is one; `cause` says what it points at, where that was recognised; `details` are lists
    of numbers for the report's plots.
    """

    status: Literal["ok", "failed", "warning", "skipped"]
    figure: str
    value: float | None = None
    bound: float | None = None
    cause: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Check:
    """A statement that holds of a healthy model, and what it means if it does not."""

    name: str
    claim: str
    meaning: str
    look: Callable[[Subject], Finding]


def blocks(model: GPT) -> "list[Block]":
    """The model's blocks, from the first on."""
    return [cast("Block", block) for block in model.blocks]


def _fill_residual(model: GPT) -> None:
    """Draw the projections that add to the residual stream, N(0, 0.02²), if they are zero."""
    generator = torch.Generator().manual_seed(0)
    for block in blocks(model):
        for weight in (block.attention.output.weight, block.mlp.down.weight):
            if not weight.any():
                torch.nn.init.normal_(weight, std=0.02, generator=generator)


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Generator[None, None, None]:
    """Take hooks away again after the block, in spite of what the model raises there."""
    with ExitStack() as hooks:
        for handle in handles:
            hooks.enter_context(handle)
        yield


def recognised(mistakes: Mapping[str, _Way], distance: Callable[[_Way], float]) -> str:
    """The known mistakes that give just the numbers seen; of some shapes two of them do."""
    return ", or ".join(what for what, way in mistakes.items() if distance(way) <= EXACT)


def skipped(reason: str) -> Finding:
    """The check does not apply."""
    return Finding(status="skipped", figure=reason)


def judged(what: str, value: float, bound: float, cause: Callable[[], str] = str) -> Finding:
    """A number that must be at most `bound` (NaN is not); `cause` is asked only if it is more."""
    passed = value <= bound
    return Finding(
        status="ok" if passed else "failed",
        figure=f"{what}: {value:.3g}, at most {bound:.3g}",
        value=value,
        bound=bound,
        cause="" if passed else cause(),
    )


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors as a share of the larger's size.

    Two NaN are alike; one is infinitely far from a number.
    """
    if not a.numel():
        return 0.0
    size = torch.maximum(a.abs(), b.abs()).nan_to_num(0.0).max()
    size = size.clamp(min=torch.finfo(size.dtype).tiny)  # where both are zero, nothing is apart
    apart = (a - b).abs() / size
    apart = torch.where(a.isnan() & b.isnan(), 0.0, apart.nan_to_num(torch.inf, posinf=torch.inf))
    return apart.max().item()

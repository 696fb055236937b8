"""Law 4 in the model: padded positions change no real logit and no gradient, and never give NaN."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT
from tests.laws.choices import choices

V = 13


def small_gpt(**made_of: Any) -> GPT:
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=12, **made_of)
    model = GPT(config, V).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return model


def results(
    model: GPT, tokens: Tensor, targets: Tensor, readable: bool, **inputs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the gradients of the loss over the targets that are not -100."""
    logits = model(tokens, attention=[] if readable else None, **inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return logits.detach(), list(torch.autograd.grad(loss, list(model.parameters())))


def padded(lengths: list[int], left: bool) -> Tensor:
    """(B, T) bool: True for the real positions of rows padded to the longest."""
    T = max(lengths)
    columns = torch.arange(T)
    rows = [columns >= T - n if left else columns < n for n in lengths]
    return torch.stack(rows)


settings_of_a_batch = given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    left=st.booleans(),
    readable=st.booleans(),
    made_of=choices,
    seed=st.integers(0, 99),
)


@settings_of_a_batch
@settings(deadline=None, max_examples=40)
def test_model_is_deaf_to_what_stands_in_the_padding(
    lengths: list[int], left: bool, readable: bool, made_of: dict[str, Any], seed: int
) -> None:
    model, real = small_gpt(**made_of), padded(lengths, left)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, real.shape, generator=generator)
    targets = torch.randint(0, V, real.shape, generator=generator).where(real, -100)
    other = tokens.where(real, torch.randint(0, V, real.shape, generator=generator))
    logits, gradients = results(model, tokens, targets, readable, real=real)
    logits_2, gradients_2 = results(model, other, targets, readable, real=real)
    assert torch.equal(logits[real], logits_2[real])
    assert all(torch.equal(a, b) for a, b in zip(gradients, gradients_2, strict=True))


@settings_of_a_batch
@settings(deadline=None, max_examples=40)
def test_model_gives_a_padded_batch_what_it_gives_each_row_alone(
    lengths: list[int], left: bool, readable: bool, made_of: dict[str, Any], seed: int
) -> None:
    model, real = small_gpt(**made_of), padded(lengths, left)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, real.shape, generator=generator)
    targets = torch.randint(0, V, real.shape, generator=generator).where(real, -100)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    logits, gradients = results(model, tokens, targets, readable, real=real, positions=positions)
    summed = [torch.zeros_like(gradient) for gradient in gradients]
    for row, mask in enumerate(real):
        alone, parts = results(
            model, tokens[row : row + 1, mask], targets[row : row + 1, mask], readable
        )
        assert torch.allclose(logits[row, mask], alone[0], rtol=0, atol=1e-12)
        summed = [total + part for total, part in zip(summed, parts, strict=True)]
    for found, expected in zip(gradients, summed, strict=True):
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


@given(readable=st.booleans(), made_of=choices)
@settings(deadline=None, max_examples=12)
def test_model_is_finite_on_a_row_with_nothing_real(
    readable: bool, made_of: dict[str, Any]
) -> None:
    model, tokens = small_gpt(**made_of), torch.arange(10).reshape(2, 5)
    real = torch.tensor([[True] * 5, [False] * 5])
    logits, gradients = results(model, tokens, tokens.where(real, -100), readable, real=real)
    assert logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)

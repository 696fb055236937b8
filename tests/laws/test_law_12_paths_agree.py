"""Law 12: the readable attention, the fast one and what a compiler is given are one function.

In float64 to 1e-10. In the others, where the two round and add in different orders, to the
tolerance of `TOLERANCE` with inputs of variance 1; mixed precision computes attention in its lower
one.
"""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.model import attention as of_attention
from minigpt.model.attention import (
    attention_mask,
    document_attention,
    document_lengths,
    fast_attention,
    readable_attention,
)
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from tests.laws.choices import choices

KINDS = ["causal", "padding", "document", "padding and document", "cross", "cross with a mask"]
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,  # 10 times its rounding of a number near 1
    torch.bfloat16: 8e-2,
}


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def masking(kind: str, B: int, T: int, S: int, seed: int) -> tuple[Tensor | None, bool]:
    """The mask of a kind and whether attention is causal without one."""
    if kind == "causal":
        return None, True
    if kind == "cross":
        return None, False
    chance = torch.rand(B, S, generator=torch.Generator().manual_seed(seed))
    if kind == "cross with a mask":
        readable = chance < 0.5
        readable[:, 0] = True
        return readable[:, None, None, :], False
    real = chance < 0.6 if "padding" in kind else None
    documents = (chance < 0.3).cumsum(1) if "document" in kind else None
    return attention_mask(T, S, real=real, documents=documents), False


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 3),
    D=st.sampled_from([1, 3, 8, 16]),
    T=st.integers(1, 9),
    past=st.integers(0, 20),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=20)
def test_functions_agree(
    kind: str, dtype: torch.dtype, B: int, H: int, D: int, T: int, past: int, seed: int
) -> None:
    S = 1 + past if kind.startswith("cross") else T + past  # crossing, also shorter than T
    mask, causal = masking(kind, B, T, S, seed)
    q, k, v = (random(B, H, n, D, seed=seed + n, dtype=dtype).requires_grad_() for n in (T, S, S))
    pull = random(B, H, T, D, seed=seed, dtype=dtype)
    readable, weights = readable_attention(q, k, v, mask, causal=causal)
    fast = fast_attention(q, k, v, mask, causal=causal)
    tolerance = TOLERANCE[dtype]
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=tolerance)
    assert torch.allclose(readable, fast, rtol=tolerance, atol=tolerance)
    for a, b in zip(
        torch.autograd.grad(readable, (q, k, v), pull),
        torch.autograd.grad(fast, (q, k, v), pull),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(
    B=st.integers(1, 3),
    H=st.integers(1, 3),
    D=st.sampled_from([1, 3, 8, 16]),
    T=st.integers(1, 40),
    chance=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=30)
def test_documents_one_by_one_are_documents_behind_a_mask(
    dtype: torch.dtype, B: int, H: int, D: int, T: int, chance: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    documents = (torch.rand(B, T, generator=generator) < chance).cumsum(1)
    with patch.object(of_attention, "LONG", 1):
        lengths = document_lengths(documents)
    assert lengths is not None
    q, k, v = (random(B, H, T, D, seed=n, dtype=dtype).requires_grad_() for n in range(3))
    pull = random(B, H, T, D, seed=seed, dtype=dtype)
    readable, _ = readable_attention(q, k, v, attention_mask(T, T, documents=documents))
    found = document_attention(q, k, v, lengths)
    tolerance = TOLERANCE[dtype]
    assert found.dtype == dtype
    assert torch.allclose(readable, found, rtol=tolerance, atol=tolerance)
    for a, b in zip(
        torch.autograd.grad(readable, (q, k, v), pull),
        torch.autograd.grad(found, (q, k, v), pull),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def small_gpt(**made_of: Any) -> GPT:
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=16, **made_of)
    model = GPT(config, 13).double().eval()
    for index, parameter in enumerate(model.parameters()):
        parameter.data = 0.4 * random(*parameter.shape, seed=index)
    return model


@given(
    T=st.integers(1, 12),
    padding=st.booleans(),
    document=st.booleans(),
    made_of=choices,
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=60)
def test_models_agree(
    T: int, padding: bool, document: bool, made_of: dict[str, Any], seed: int
) -> None:
    model = small_gpt(**made_of)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 13, (2, T), generator=generator)
    chance = torch.rand(2, T, generator=generator)
    real = chance < 0.7 if padding else None
    documents = (chance < 0.3).cumsum(1) if document else None
    readable = model(tokens, real=real, documents=documents, attention=[])
    fast = model(tokens, real=real, documents=documents)
    with patch.object(torch.compiler, "is_compiling", lambda: True):
        for_a_compiler = model(tokens, real=real, documents=documents)
    with patch.object(of_attention, "LONG", 1):
        one_by_one = model(tokens, real=real, documents=documents)
    pull = random(2, T, 13, seed=seed)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(readable, parameters, pull)
    for logits in (fast, for_a_compiler, one_by_one):
        assert torch.allclose(readable, logits, rtol=0, atol=1e-10)
        others = torch.autograd.grad(logits, parameters, pull)
        for a, b in zip(gradients, others, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


@given(
    parts=st.lists(st.integers(1, 6), min_size=1, max_size=4).filter(lambda p: sum(p) <= 16),
    padding=st.booleans(),
    made_of=choices,
    seed=st.integers(0, 999),
)
@settings(deadline=None, max_examples=40)
def test_models_agree_with_a_cache(
    parts: list[int], padding: bool, made_of: dict[str, Any], seed: int
) -> None:
    model, S = small_gpt(**made_of), sum(parts)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 13, (2, S), generator=generator)
    real = torch.rand(2, S, generator=generator) < 0.7
    caches = [KVCache.for_model(model, 2), KVCache.for_model(model, 2)]
    with torch.no_grad():
        for chunk in tokens.split(parts, dim=1):
            stop = caches[0].length + chunk.size(1)
            mask = real[:, :stop] if padding else None
            readable = model(chunk, real=mask, cache=caches[0], attention=[])
            fast = model(chunk, real=mask, cache=caches[1])
            assert torch.allclose(readable, fast, rtol=0, atol=1e-10)
    assert torch.allclose(caches[0].keys, caches[1].keys, rtol=0, atol=1e-10)

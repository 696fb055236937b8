"""The norm of queries and keys: by its formula, and the fast way with its gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from minigpt.model.positions import rotary_angles, turned
from minigpt.model.query_key_norm import NormedHeads, rms_normed


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_by_its_formula() -> None:
    x = random(3, 5)
    for vector, found in zip(x.tolist(), rms_normed(x).tolist(), strict=True):
        size = math.sqrt(sum(number**2 for number in vector) / 5 + 1e-6)
        assert found == pytest.approx([number / size for number in vector], abs=1e-14)


def test_as_in_torch() -> None:
    x = random(3, 5)
    expected = torch.nn.functional.rms_norm(x, (5,), eps=1e-6)
    assert torch.allclose(rms_normed(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_squared_in_single(dtype: torch.dtype) -> None:
    x = (300 * random(3, 8)).to(dtype)  # whose squares float16 cannot hold
    found = rms_normed(x)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), rms_normed(x.double()), rtol=0, atol=0.02)


def readable(wide: Tensor, angles: Tensor | None) -> list[Tensor]:
    q, k, v = wide.unbind(2)
    q, k = rms_normed(q), rms_normed(k)
    if angles is not None:
        q, k = turned(q, angles), turned(k, angles)
    return [q, k, v]


def fast(wide: Tensor, angles: Tensor | None) -> list[Tensor]:
    return list(NormedHeads.apply(wide, angles))


@given(
    B=st.integers(1, 3),
    T=st.integers(1, 5),
    H=st.integers(1, 3),
    pairs=st.integers(1, 4),
    turn=st.sampled_from(["none", "all rows alike", "each row its own"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_the_fast_way_and_its_gradient(
    B: int, T: int, H: int, pairs: int, turn: str, dtype: torch.dtype, seed: int
) -> None:
    wide = random(B, T, 3, H, 2 * pairs, seed=seed).to(dtype).requires_grad_()
    angles = None
    if turn != "none":
        positions = torch.arange(T) if turn == "all rows alike" else torch.arange(B * T).view(B, T)
        angles = rotary_angles(positions, 2 * pairs, dtype)
    pull = [random(B, T, H, 2 * pairs, seed=seed + n).to(dtype) for n in range(3)]
    found, expected = fast(wide, angles), readable(wide, angles)
    gradients = [torch.autograd.grad(each, wide, pull)[0] for each in (found, expected)]
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.06}[dtype]
    for a, b in zip([*found, gradients[0]], [*expected, gradients[1]], strict=True):
        assert a.dtype == dtype
        assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


def test_its_gradient_by_differences() -> None:
    wide = random(2, 3, 3, 2, 4).requires_grad_()
    angles = rotary_angles(torch.arange(3), 4, torch.float64)
    assert torch.autograd.gradcheck(lambda x: tuple(fast(x, angles)), (wide,))
    assert torch.autograd.gradcheck(lambda x: tuple(fast(x, None)), (wide,))


def test_zeros_stay_zeros_and_have_a_gradient() -> None:
    for way in (readable, fast):
        wide = torch.zeros(1, 1, 3, 1, 4, requires_grad=True)
        q, k, _ = way(wide, None)
        assert not torch.stack((q, k)).any()
        q.sum().backward()
        assert wide.grad is not None
        assert wide.grad.isfinite().all()

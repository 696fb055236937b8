"""The loss is a sum over real targets, in a float that can hold it."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.data.batches import IGNORED
from minigpt.training import loss as loss_module
from minigpt.training.loss import _parts, bits_per_byte, head_loss, perplexity, summed_loss


@given(st.integers(1, 4), st.integers(1, 6), st.integers(2, 9), st.integers(0, 2**31))
def test_equal_to_plain_loops(rows: int, width: int, vocab: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, vocab, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocab, (rows, width), generator=generator)
    padded = torch.rand(rows, width, generator=generator) < 0.3
    expected = 0.0
    for b in range(rows):
        for t in range(width):
            if not padded[b, t]:
                scores = logits[b, t].tolist()
                total = sum(math.exp(score) for score in scores)
                expected -= math.log(math.exp(scores[targets[b, t]]) / total)
    loss = summed_loss(logits, targets.masked_fill(padded, IGNORED))
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits = torch.zeros(1, 30_000, 4, dtype=dtype)
    loss = summed_loss(logits, torch.zeros(1, 30_000, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(30_000 * math.log(4), rel=1e-5)


def test_the_units() -> None:
    assert bits_per_byte(8 * math.log(2), 4) == pytest.approx(2.0)
    assert perplexity(math.log(50.0)) == pytest.approx(50.0)
    assert perplexity(1e6) == math.inf


# ---- without the logits ----


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five positions at a time, however small the vocabulary is."""
    monkeypatch.setattr(loss_module, "_LOGITS", 0)
    monkeypatch.setattr(loss_module, "_POSITIONS", 5)


def loss_and_gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return loss.detach(), *torch.autograd.grad(loss * 3, of)


def assert_near(mine: tuple[Tensor, ...], reference: tuple[Tensor, ...], within: float) -> None:
    for a, b in zip(mine, reference, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm().item() <= within * max(b.norm().item(), 0.1)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 9),
    vocab=st.integers(2, 30),
    ignored=st.sampled_from([0.0, 0.4, 1.0]),
    size=st.sampled_from([1e-3, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_in_parts_it_is_the_loss_of_the_logits(
    dtype: torch.dtype,
    within: float,
    rows: int,
    width: int,
    vocab: int,
    ignored: float,
    size: float,
    seed: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, 8, generator=draw, dtype=dtype).requires_grad_()
    weight = (torch.randn(vocab, 8, generator=draw, dtype=dtype) * size).requires_grad_()
    targets = torch.randint(vocab, (rows, width), generator=draw)
    targets[torch.rand(rows, width, generator=draw) < ignored] = IGNORED
    scale = 1 / 13
    mine = head_loss(hidden, weight, targets, scale)
    with torch.no_grad():
        assert torch.equal(head_loss(hidden, weight, targets, scale), mine)
    plain = summed_loss(F.linear(hidden, weight), targets) * scale
    of = hidden, weight
    assert_near(loss_and_gradients(mine, *of), loss_and_gradients(plain, *of), within)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_parts_under_autocast_the_sums_are_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 16).requires_grad_() for n in (40, 30))
    targets = torch.randint(30, (1, 40))
    exact = summed_loss(F.linear(hidden, weight)[None], targets)
    with torch.autocast("cpu", dtype=dtype):
        loss = head_loss(hidden[None], weight, targets)
    of = hidden, weight
    assert_near(loss_and_gradients(loss, *of), loss_and_gradients(exact, *of), 1e-2)


@pytest.mark.usefixtures("in_parts")
def test_in_parts_a_weight_alone_has_its_gradient_too() -> None:
    """And hidden states alone theirs: what is frozen takes nothing from the other."""
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(1, 12, 4), torch.randn(7, 4), torch.randint(7, (1, 12))
    for learns in (hidden, weight):
        learns.requires_grad_()
        mine = head_loss(hidden, weight, targets)
        plain = summed_loss(F.linear(hidden, weight), targets)
        assert_near(loss_and_gradients(mine, learns), loss_and_gradients(plain, learns), 1e-6)
        learns.requires_grad = False


@pytest.mark.usefixtures("in_parts")
def test_gradients_that_are_used_up_are_not_given_twice() -> None:
    hidden, weight = torch.randn(1, 12, 4).requires_grad_(), torch.randn(7, 4).requires_grad_()
    loss = head_loss(hidden, weight, torch.randint(7, (1, 12)))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


@pytest.mark.usefixtures("in_parts")
def test_in_parts_logits_may_be_as_large_as_they_like() -> None:
    """Their exponentials are beyond float32; the target's own is nothing beside the largest."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 23, 8), 1000 * torch.randn(30, 8)
    targets = torch.randint(30, (1, 23))
    plain = summed_loss(F.linear(hidden.double(), weight.double()), targets)
    assert head_loss(hidden, weight, targets).item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.usefixtures("in_parts")
def test_numbers_that_are_none_stay_so() -> None:
    weight = torch.randn(7, 4).requires_grad_()
    for value in (math.nan, math.inf):
        loss = head_loss(torch.full((1, 12, 4), value), weight, torch.zeros(1, 12).long())
        assert not torch.isfinite(loss)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("n", [1, 5, 9, 10, 11, 23])
def test_no_part_is_smaller_than_is_worth_it(n: int) -> None:
    parts = _parts(torch.empty(n, 1), torch.empty(3, 1))
    positions = [position for part in parts for position in range(n)[part]]
    assert positions == list(range(n))
    assert all(5 <= len(range(n)[part]) < 10 for part in parts) or n < 5

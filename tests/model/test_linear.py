"""A linear layer is the plain one, whichever library multiplies."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)

from minigpt.model import linear
from minigpt.model.linear import Linear

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that go through oneDNN, with every weight large enough for it."""
    shapes: list[torch.Size] = []
    product = linear.onednn_product

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.append(x.shape)
        return product(x, weight, bias)

    monkeypatch.setattr(linear, "LARGE", 0)
    monkeypatch.setattr(linear, "onednn_product", noted)
    return shapes


@pytest.mark.parametrize("rows", [(), (1,), (7,), (2, 5), (2, 3, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(rows: tuple[int, ...], used: list[torch.Size], *, bias: bool) -> None:
    layer, x = Linear(20, 48, bias=bias), some(*rows, 20).requires_grad_()
    pull = some(*rows, 48)
    learned = [x, *layer.parameters()]
    y = layer(x)
    found = torch.autograd.grad(y, learned, pull)
    assert used == [x.shape, pull.shape]
    exact = [each.detach().double().requires_grad_() for each in learned]
    expected = F.linear(*exact)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-5)
    for mine, other in zip(found, torch.autograd.grad(expected, exact, pull.double()), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=0, atol=1e-5)
        assert mine.is_contiguous()


def test_what_needs_no_gradient_gets_none(used: list[torch.Size]) -> None:
    layer, x = Linear(8, 4), some(3, 8)
    layer.bias.requires_grad = False
    layer(x).sum().backward()
    assert used == [x.shape]  # nothing is multiplied for an input that wants no gradient
    assert x.grad is layer.bias.grad is None
    assert layer.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by dynamo
def test_it_is_part_of_one_graph(used: list[torch.Size]) -> None:
    torch.compiler.reset()
    layer, x = Linear(8, 4), some(3, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    used.clear()
    found = torch.autograd.grad(compiled(x).square().sum(), list(layer.parameters()))
    assert used
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_kernel(dtype: torch.dtype, used: list[torch.Size]) -> None:
    layer, x = Linear(8, 4).to(dtype), some(2, 8).to(dtype)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert not used


def test_mixed_precision_takes_the_plain_kernel(used: list[torch.Size]) -> None:
    layer = Linear(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(some(2, 8)).dtype == torch.bfloat16
    assert not used


def test_small_weights_take_the_plain_kernel(
    used: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "LARGE", 33)
    Linear(8, 4)(some(2, 8))
    assert not used

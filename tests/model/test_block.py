"""The MLP and the block around it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from minigpt.config import ModelConfig
from minigpt.model.block import MLP, Block, activated
from minigpt.model.positions import sinusoidal_table


def config(**changes: object) -> ModelConfig:
    return ModelConfig(**{"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16} | changes)  # pyright: ignore[reportArgumentType]


def block(**changes: object) -> Block:
    torch.manual_seed(0)
    return Block(config(**changes), layer=0).double()


def stream(seed: int = 3, T: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, T, 8, generator=generator, dtype=torch.float64)


def test_mlp_parameters() -> None:
    mlp = MLP(ModelConfig(n_embd=512))
    counts = [sum(p.numel() for p in layer.parameters()) for layer in (mlp.up, mlp.down)]
    assert counts == [1_050_624, 1_049_088]
    assert sum(p.numel() for p in mlp.parameters()) == 2_099_712


def test_mlp_mixes_no_positions() -> None:
    mlp, x = MLP(config()).double(), stream()
    changed = x.clone()
    changed[:, 2] += 1
    same = (mlp(changed) == mlp(x)).all(-1)
    assert same.tolist() == [[True, True, False, True, True]] * 2


def test_mlp_without_its_nonlinearity_is_one_linear_map() -> None:
    mlp, x = MLP(config()).double(), stream()
    linear = nn.Linear(8, 8, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(mlp.down.weight @ mlp.up.weight)
        linear.bias.copy_(mlp.down.weight @ mlp.up.bias + mlp.down.bias)
    assert torch.allclose(mlp.down(mlp.up(x)), linear(x), rtol=0, atol=1e-13)
    assert not torch.allclose(mlp(x), linear(x), atol=1e-3)


def gelu(x: float) -> float:
    """Hendrycks & Gimpel 2016, the tanh form."""
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


NONLINEARITIES: dict[str, Callable[[float], float]] = {
    "gelu": gelu,
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}


@pytest.mark.parametrize("activation", NONLINEARITIES)
def test_mlp_nonlinearity(activation: str) -> None:
    mlp, x = MLP(config(activation=activation)).double(), 3 * stream()
    inner = mlp.up(x).detach().apply_(NONLINEARITIES[activation])
    assert torch.allclose(mlp(x), mlp.down(inner), rtol=0, atol=1e-13)


def test_gradient_of_squared_relu() -> None:
    x = torch.tensor([-2.0, 0.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    activated(x, "relu2").sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1, 6]
    away = (x.detach() + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: activated(x, "relu2"), (away,))
    single = stream().float()
    assert torch.equal(activated(single, "relu2"), single.relu().square())


def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """By the population variance, with epsilon inside the root."""
    mean = x.sum(-1, keepdim=True) / 8
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / 8
    return (x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias


@pytest.mark.parametrize("scale", [1.0, 1e-3])  # epsilon counts in the second
@pytest.mark.parametrize("order", ["pre", "post"])
def test_block_by_its_formula(order: str, scale: float) -> None:
    b, x = block(norm_order=order), scale * stream()
    for norm in (b.norm_1, b.norm_2):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    if order == "pre":
        expected = x + b.attention(normed(x, b.norm_1))
        expected = expected + b.mlp(normed(expected, b.norm_2))
    else:
        expected = normed(x + b.attention(x), b.norm_1)
        expected = normed(expected + b.mlp(expected), b.norm_2)
    assert torch.allclose(b(x), expected, rtol=0, atol=1e-12)


def test_pre_norm_block_without_branches_is_the_identity() -> None:
    b, x = block(), stream()
    for layer in (b.attention.output, b.mlp.down):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert torch.equal(b(x), x)


def test_permuted_input_permutes_the_output_unless_positions_or_causality_tell() -> None:
    b, x = block(), stream()
    order = torch.tensor([3, 1, 4, 0, 2])
    everything = torch.ones(5, 5, dtype=torch.bool)
    assert torch.allclose(b(x[:, order], everything), b(x, everything)[:, order], atol=1e-12)
    positions = sinusoidal_table(5, 8)
    moved = b(x[:, order] + positions, everything)
    assert not torch.allclose(moved, b(x + positions, everything)[:, order], atol=1e-3)
    assert not torch.allclose(b(x[:, order]), b(x)[:, order], atol=1e-3)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_dropout_only_in_training(order: str) -> None:
    b, x = block(dropout=0.5, norm_order=order), stream()
    assert torch.equal(b.eval()(x), block(norm_order=order)(x))
    assert not torch.allclose(b.train()(x), b(x))


@pytest.mark.parametrize("silent", ["attention.output", "mlp.down"])
def test_dropout_on_each_residual_branch(silent: str) -> None:
    """With the other branch at zero, what is dropped leaves the stream as it was."""
    b, x = block(dropout=0.5), stream(T=16)
    b.attention.dropout = 0.0
    nn.init.zeros_(b.get_parameter(f"{silent}.weight"))
    nn.init.zeros_(b.get_parameter(f"{silent}.bias"))
    assert 0.3 < (b(x) == x).double().mean().item() < 0.7


def test_no_bias_anywhere_when_it_is_off() -> None:
    names = [name for name, _ in block(bias=False).named_parameters()]
    assert not [name for name in names if name.endswith("bias")]
    assert len(names) == 6

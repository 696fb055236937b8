"""Weight decay reaches the matrices of linear layers, each parameter once."""

import pytest
import torch

from minigpt.config import ModelConfig, OptimConfig
from minigpt.model.gpt import GPT
from minigpt.training.optimizer import build_optimizer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("position", ["learned", "sinusoidal"])
def test_groups(bias: bool, position: str) -> None:
    model = GPT(ModelConfig(n_layer=2, n_embd=16, n_head=2, bias=bias, position=position), 11)
    optimizer = build_optimizer(model, OptimConfig(lr=1e-3, weight_decay=0.3), fused=True)
    decayed, rest = optimizer.param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    in_groups = [names[id(p)] for group in (decayed, rest) for p in group["params"]]
    assert sorted(in_groups) == sorted(names.values())
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert len(decayed["params"]) == 4 * 2  # qkv, output, and the MLP's two, in two blocks
    assert all(p.ndim == 2 for p in decayed["params"])
    embeddings = [name for name in names.values() if name.startswith(("embedding", "position"))]
    assert embeddings
    assert not {names[id(p)] for p in decayed["params"]} & set(embeddings)


def test_decay_shrinks_a_matrix_without_gradient_and_leaves_a_bias() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_embd=8, n_head=2), 5)
    optimizer = build_optimizer(model, OptimConfig(lr=0.1, weight_decay=0.5), fused=True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        shrinks = parameter.ndim == 2 and not name.startswith(("embedding", "position"))
        expected = before[name] * (0.95 if shrinks else 1.0)
        torch.testing.assert_close(parameter.detach(), expected)

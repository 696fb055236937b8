"""Law 11 in the model: embedding and head are one parameter."""

import copy
import io

import pytest
import torch
from torch import nn

from minigpt.config import ModelConfig, OptimConfig
from minigpt.model.gpt import GPT
from minigpt.training.optimizer import build_optimizer
from tests.laws.choices import POSITIONS

V, C = 29, 8  # no other tensor has 29 rows


def small_gpt(position: str = "learned") -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=2, n_head=2, n_embd=C, block_size=6, position=position), V)


def tables(named: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in named.items() if V in tensor.shape]


def is_tied(model: GPT) -> bool:
    """Writing into the one tensor changes both the lookup and the head."""
    one = torch.eye(C, dtype=model.embedding.weight.dtype)[:1]
    with torch.no_grad():
        model.embedding.weight[7] = 3.0
        looked_up = model.embedding(torch.tensor([7]))
        logit = model.logits(one)[0, 7]
    return bool((looked_up == 3).all()) and logit.item() == 3


@pytest.mark.parametrize("position", POSITIONS)
def test_stored_once(position: str) -> None:
    model = small_gpt(position)
    assert tables(dict(model.named_parameters(remove_duplicate=False))) == ["embedding.weight"]
    assert tables(dict(model.state_dict())) == ["embedding.weight"]
    assert is_tied(model)


@pytest.mark.parametrize(("position", "rows"), [("learned", V + 6), ("rotary", V)])
def test_counted_once(position: str, rows: int) -> None:
    model = small_gpt(position)
    storages = {p.untyped_storage().data_ptr(): p.numel() for p in model.parameters()}
    assert model.parameter_count() == sum(storages.values())
    without = model.parameter_count() - model.parameter_count(embeddings=False)
    assert without == rows * C


def test_gradient_is_the_sum_of_both_uses() -> None:
    model = small_gpt().double()
    tokens, weight = torch.tensor([[3, 1, 4, 1, 5]]), model.embedding.weight
    pull = torch.randn(1, 5, V, dtype=torch.float64)
    hidden = model.hidden(tokens)
    (whole,) = torch.autograd.grad((model.logits(hidden) * pull).sum(), weight, retain_graph=True)
    (head,) = torch.autograd.grad((model.logits(hidden.detach()) * pull).sum(), weight)
    (lookup,) = torch.autograd.grad(hidden, weight, pull @ weight)
    assert head.abs().amax(1).count_nonzero() == V  # every token's logit was pulled
    assert lookup.abs().amax(1).nonzero().flatten().tolist() == [1, 3, 4, 5]
    assert torch.allclose(whole, head + lookup, rtol=0, atol=1e-12)


def test_optimised_once() -> None:
    model = small_gpt()
    optimizer = build_optimizer(model, OptimConfig(lr=0.1), fused=False)
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sum(parameter is model.embedding.weight for parameter in groups) == 1
    before = model.embedding.weight.detach().clone()
    model(torch.tensor([[1, 2]])).square().sum().backward()
    optimizer.step()
    assert len([state for state in optimizer.state if state.shape == (V, C)]) == 1
    assert not torch.equal(model.embedding.weight, before)
    assert is_tied(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_kept_by_a_change_of_type(dtype: torch.dtype) -> None:
    model = small_gpt().to(dtype)
    assert model.embedding.weight.dtype == dtype
    assert is_tied(model)
    assert tables(dict(model.state_dict())) == ["embedding.weight"]


def test_kept_by_a_change_of_device() -> None:
    model = small_gpt().to("meta").to_empty(device="cpu")
    assert is_tied(model)
    assert sum(isinstance(p, nn.Parameter) and p.shape[0] == V for p in model.parameters()) == 1


def test_kept_by_a_copy_and_apart_from_it() -> None:
    model = small_gpt()
    twin = copy.deepcopy(model)
    assert is_tied(twin)
    assert not torch.equal(twin.embedding.weight, model.embedding.weight)


def test_kept_by_saving_and_loading() -> None:
    model, file = small_gpt(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(9)
    loaded = GPT(model.config, V)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(loaded.embedding.weight, model.embedding.weight)
    assert is_tied(loaded)

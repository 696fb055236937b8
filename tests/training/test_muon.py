"""Muon: orthogonal updates of the matrices, AdamW's of the rest."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from minigpt.config import ModelConfig, OptimConfig
from minigpt.model.gpt import GPT
from minigpt.training.optimizer import build_optimizer, orthogonal
from tests.conftest import Train

MUON = OptimConfig(kind="muon", lr=2e-3, weight_decay=0.1, momentum=0.95)


def small_model() -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=2, n_embd=16, n_head=2, block_size=8), 11)


def give_gradients(model: GPT, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16), (1, 5)])
def test_the_update_keeps_the_singular_vectors_and_levels_the_values(
    shape: tuple[int, int],
) -> None:
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    for matrix, update in zip(matrices, orthogonal(matrices), strict=True):
        u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
        levelled = u.mT @ update @ vh.mT
        values = levelled.diagonal()
        torch.testing.assert_close(levelled, torch.diag(values), rtol=0, atol=1e-10)
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_a_matrix_alone_and_among_others_has_the_same_update() -> None:
    matrices = torch.randn(4, 6, 10, dtype=torch.float64)
    alone = torch.stack([orthogonal(each[None])[0] for each in matrices])
    torch.testing.assert_close(orthogonal(matrices), alone, rtol=0, atol=1e-12)


def test_nothing_is_an_update_of_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_steps_are_those_of_torch_s_muon_and_adamw() -> None:
    """As far as bfloat16 goes, in which torch's takes its Newton-Schulz steps."""
    mine, theirs = small_model(), small_model()
    optimizer = build_optimizer(mine, MUON, fused=True)
    names = {id(p): name for name, p in mine.named_parameters()}
    matrices, rest = (
        [dict(theirs.named_parameters())[names[id(p)]] for p in group["params"]]
        for group in optimizer.param_groups
    )
    muon = torch.optim.Muon(
        matrices, lr=2e-3, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(rest, lr=2e-3, weight_decay=0.0, betas=(0.9, 0.95), fused=True)
    for step in range(4):
        for model in (mine, theirs):
            give_gradients(model, step)
        for each in (optimizer, muon, adamw):
            each.step()
    in_muon = {id(p) for p in matrices}
    for (name, p), q, start in zip(
        mine.named_parameters(), theirs.parameters(), small_model().parameters(), strict=True
    ):
        if id(q) in in_muon:
            apart = torch.linalg.vector_norm(p - q) / torch.linalg.vector_norm(q - start)
            assert apart < 0.02, name
        else:
            assert torch.equal(p, q), name


def test_an_update_is_as_large_as_the_rate_says() -> None:
    model = small_model()
    optimizer = build_optimizer(
        model, OptimConfig(kind="muon", lr=1e-2, weight_decay=0.0), fused=True
    )
    weight = cast("Tensor", model.get_parameter("blocks.0.attention.qkv.weight"))  # (48, 16)
    before = weight.detach().clone()
    give_gradients(model, 0)
    optimizer.step()
    # orthogonal columns: every one of the 16 singular values is about 1, spread over 48 rows
    size = (weight.detach() - before).square().mean().sqrt().item()
    assert size == pytest.approx(1e-2 * 0.2 * math.sqrt(48) * math.sqrt(16 / (48 * 16)), rel=0.3)


def test_a_gradient_that_is_no_number_leaves_every_weight_alone() -> None:
    model = small_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(model, MUON, fused=True)
    give_gradients(model, 0)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.view(-1)[0] = math.nan
    optimizer.found_inf = torch.ones(())  # pyright: ignore[reportAttributeAccessIssue]
    optimizer.step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_it_learns_a_batch(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("experiment=overfit", "optim=muon") == 0
    assert "loss" in capsys.readouterr().err

"""The positional tables, and the turning of queries and keys."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt.config import ModelConfig, TrainConfig, from_plain
from minigpt.errors import InputError
from minigpt.model.positions import (
    SinusoidalPositions,
    position_table,
    rotary_angles,
    sinusoidal_table,
    turned,
)


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_sinusoidal_table_is_the_papers(width: int) -> None:
    table = sinusoidal_table(20, width)
    assert table.shape == (20, width)
    for t in range(20):
        for column in range(width):
            angle = t / 10000 ** ((column - column % 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[t, column].item() == pytest.approx(expected, abs=1e-12)


def test_position_zero_is_zeros_and_ones() -> None:
    assert sinusoidal_table(1, 5)[0].tolist() == [0, 1, 0, 1, 0]


def test_a_shift_rotates_each_pair_of_columns() -> None:
    """What makes relative positions linear: row t + 3 is one rotation of row t, for every t."""
    table = sinusoidal_table(30, 6)
    for pair in range(3):
        angle = 3 / 10000 ** (2 * pair / 6)
        sine, cosine = table[:-3, 2 * pair], table[:-3, 2 * pair + 1]
        moved = sine * math.cos(angle) + cosine * math.sin(angle)
        assert torch.allclose(moved, table[3:, 2 * pair], rtol=0, atol=1e-12)


def test_rows_differ() -> None:
    assert torch.unique(sinusoidal_table(512, 4), dim=0).size(0) == 512


def test_the_choice_of_table() -> None:
    learned = position_table(ModelConfig(block_size=7, n_embd=4, n_head=1))
    assert isinstance(learned, nn.Embedding)
    assert learned.weight.shape == (7, 4)
    fixed = position_table(ModelConfig(block_size=7, n_embd=5, n_head=1, position="sinusoidal"))
    assert isinstance(fixed, SinusoidalPositions)
    assert fixed.table.shape == (7, 5)


def test_the_sinusoidal_module_looks_rows_up_and_saves_nothing() -> None:
    fixed = SinusoidalPositions(9, 4).double()
    assert not list(fixed.parameters())
    assert not fixed.state_dict()
    positions = torch.tensor([[0, 8], [3, 3]])
    expected = 0.02 * math.sqrt(2) * sinusoidal_table(9, 4)[positions]
    assert fixed(positions).shape == (2, 2, 4)
    assert torch.allclose(fixed(positions), expected, rtol=0, atol=1e-8)


def test_positions_start_at_the_size_of_the_token_embeddings() -> None:
    for width in (64, 65):
        table = SinusoidalPositions(256, width).table
        assert table.square().mean().sqrt().item() == pytest.approx(0.02, rel=0.01)


# Rotary positions.


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def turned_by_loops(x: Tensor, positions: Tensor) -> Tensor:
    """Su et al. 2021, eq. 15: vector t of x (B, T, H, D), by the matrix of its position."""
    D, turned = x.size(-1), torch.zeros_like(x)
    for b, t in torch.cartesian_prod(*map(torch.arange, x.shape[:2])).tolist():
        matrix = torch.zeros(D, D, dtype=x.dtype)
        for pair in range(0, D, 2):
            angle = int(positions[b, t]) / 10000 ** (pair / D)
            cos, sin = math.cos(angle), math.sin(angle)
            matrix[pair : pair + 2, pair : pair + 2] = x.new_tensor([[cos, -sin], [sin, cos]])
        turned[b, t] = x[b, t] @ matrix.T
    return turned


@pytest.mark.parametrize("width", [2, 6, 16])
def test_turned_is_the_papers(width: int) -> None:
    x, positions = random(2, 5, 3, width), torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 1023, 0]])
    found = turned(x, rotary_angles(positions, width, x.dtype))
    assert torch.allclose(found, turned_by_loops(x, positions), rtol=0, atol=1e-13)
    of_all_rows = turned(x, rotary_angles(positions[0], width, x.dtype))
    same = turned_by_loops(x, positions[:1].expand(2, 5))
    assert torch.allclose(of_all_rows, same, rtol=0, atol=1e-13)


def test_turned_as_in_transformers() -> None:
    """GPT-J pairs neighbours, as the paper does."""
    gptj: Any = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x = random(1, 9, 3, 8, dtype=torch.float32)
    sin, cos = gptj.create_sinusoidal_positions(9, 8).chunk(2, dim=-1)
    theirs = gptj.apply_rotary_pos_emb(x, sin[None], cos[None])
    found = turned(x, rotary_angles(torch.arange(9), 8, x.dtype))
    assert torch.allclose(found, theirs, rtol=0, atol=1e-6)


def test_a_product_depends_on_how_far_two_are_apart() -> None:
    q, k = random(1, 1, 1, 8), random(2, 1, 1, 8)[1:]

    def product(at_q: int, at_k: int) -> float:
        at = (rotary_angles(torch.tensor([at]), 8, q.dtype) for at in (at_q, at_k))
        return float((turned(q, next(at)) * turned(k, next(at))).sum())

    assert product(5, 2) == pytest.approx(product(903, 900), abs=1e-12)
    assert product(5, 2) != pytest.approx(product(2, 5), abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_never_in_half_precision(dtype: torch.dtype) -> None:
    """In bfloat16 position 1001 would be 1000."""
    angles = rotary_angles(torch.tensor([1000, 1001]), 64, dtype)
    assert angles.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = rotary_angles(torch.tensor([1000, 1001]), 64, torch.float64)
    assert torch.allclose(angles.double(), exact, rtol=0, atol=1e-3)
    x = random(1, 2, 1, 64).to(dtype)
    found = turned(x, angles)
    assert found.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps + 1e-3 * (dtype != torch.float64)
    assert torch.allclose(found.double(), turned(x.double(), exact), rtol=0, atol=4 * tolerance)


def test_compiled_turning_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler gets real numbers in place of complex ones."""
    x, angles = random(2, 5, 3, 6), rotary_angles(torch.arange(5), 6, torch.float64)
    expected = turned(x, angles)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(turned(x, angles), expected, rtol=0, atol=1e-14)


def test_rotary_positions_have_no_table() -> None:
    table = position_table(ModelConfig(position="rotary"))
    assert not table.state_dict()
    assert not list(table.buffers())


def test_a_width_that_makes_no_pairs_is_refused() -> None:
    message = (
        "model.position=rotary: turns the numbers of a head in pairs, and model.n_embd=12 with"
        " model.n_head=4 makes heads 3 wide; it must be even"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        from_plain(TrainConfig, {"model": {"position": "rotary", "n_embd": 12, "n_head": 4}})
    from_plain(ModelConfig, {"n_embd": 12, "n_head": 4})

"""The positional tables."""

import math

import pytest
import torch
from torch import nn

from minigpt.config import ModelConfig
from minigpt.model.positions import SinusoidalPositions, position_table, sinusoidal_table


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

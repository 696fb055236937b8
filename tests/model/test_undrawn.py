"""A model that is about to be given weights draws none."""

import torch

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT, state_shapes
from minigpt.model.undrawn import Undrawn

CONFIG = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8)


def test_nothing_is_drawn_while_it_is_entered_and_again_afterwards() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with Undrawn():
        model = GPT(CONFIG, 11)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = GPT(CONFIG, 11)
    assert not torch.equal(torch.get_rng_state(), before)
    assert [(n, p.shape) for n, p in model.named_parameters()] == [
        (n, p.shape) for n, p in drawn.named_parameters()
    ]


def test_what_is_computed_and_not_drawn_is_there() -> None:
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8, position="sinusoidal")
    with Undrawn():
        model = GPT(config, 11)
    for (name, buffer), (_, expected) in zip(
        model.named_buffers(), GPT(config, 11).named_buffers(), strict=True
    ):
        assert torch.equal(buffer, expected), name


def test_shapes_are_those_of_a_model_and_draw_nothing() -> None:
    before = torch.get_rng_state()
    shapes = state_shapes(CONFIG, 11)
    assert torch.equal(torch.get_rng_state(), before)
    assert shapes == {n: tuple(t.shape) for n, t in GPT(CONFIG, 11).state_dict().items()}

"""Weights of 8 bits: the rounding is what it says, rows stay alone, and a model hardly changes."""

import pytest
import torch
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.model.gpt import GPT
from minigpt.model.int8 import Int8Linear, is_exact, round_weights
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

pytestmark = pytest.mark.skipif(not is_exact(), reason="this processor has no exact 8-bit products")


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """By rows: whole numbers in float64, and what they are multiples of."""
    x = x.double()
    step = x.abs().amax(1, keepdim=True) / 127
    return (x / step).round(), step


@pytest.mark.parametrize("rows", [1, 2, 17])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_the_rounded_numbers(rows: int, *, bias: bool) -> None:
    weight, x = some(40, 96), some(rows, 96)
    b = some(40) if bias else None
    (w, w_step), (a, a_step) = rounded(weight), rounded(x)
    expected = (a @ w.T) * a_step * w_step.T + (0 if b is None else b.double())
    y = Int8Linear(weight, b)(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-4)
    assert (y - x @ weight.T - (0 if b is None else b)).abs().max() < 0.3  # of about 30


def test_shapes_in_front_are_kept_and_a_row_is_what_it_is_alone() -> None:
    layer, x = Int8Linear(some(24, 32), some(24)), some(2, 3, 32)
    x[0, 1] *= 1000
    y = layer(x)
    assert y.shape == (2, 3, 24)
    for i in range(2):
        for j in range(3):
            assert torch.equal(layer(x[i, j][None])[0], y[i, j])


def test_zeros_give_the_bias_and_what_is_no_number_stays_seen() -> None:
    bias = some(8)
    layer = Int8Linear(torch.cat([some(7, 4), torch.zeros(1, 4)]), bias)
    assert torch.equal(layer(torch.zeros(1, 4))[0], bias)
    assert layer(some(1, 4))[0, 7] == bias[7]
    for value in (torch.nan, torch.inf):
        x = some(1, 4)
        x[0, 2] = value
        assert not layer(x).isfinite().all()


def small_gpt() -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=32, block_size=80)
    model = GPT(config, 19).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def test_a_model_hardly_changes_and_its_step_is_its_forward() -> None:
    model, tokens = small_gpt(), torch.arange(80)[None] % 19
    with torch.no_grad():
        exact = model(tokens)
        n_parameters = model.parameter_count()
        round_weights(model)
        near = model(tokens)
        assert (near - exact).std() < 0.05 * exact.std()
        assert model.parameter_count() < n_parameters / 2  # tables, biases and norms are left
        cache, step, read = KVCache.for_model(model, 1), TokenStep(model, 1), list[Tensor]()
        model(tokens[:, :5], cache=cache)
        read.extend(step(token, cache) for token in tokens[:, 5:].unbind(1))
    # a number between two steps may be rounded to either
    assert (torch.stack(read, 1) - near[:, 5:]).std() < 0.02 * exact.std()


def test_a_row_generates_alone_what_it_does_in_a_batch() -> None:
    model = small_gpt()
    round_weights(model)
    decoding = Decoding(
        end_id=-1, vocab_size=19, max_new_tokens=40, sampling=Sampling(temperature=0)
    )
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
    together = generate(model, prompts, decoding, seed=0)
    alone = [generate(model, [prompt], decoding, seed=0)[0] for prompt in prompts]
    assert [row.ids for row in together] == [row.ids for row in alone]

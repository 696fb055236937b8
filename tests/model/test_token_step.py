"""Decoding's own step gives what the model's forward gives, whatever the model is made of."""

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

V = 11


def small_gpt(**settings: Any) -> GPT:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 12}
    config = ModelConfig(**(sizes | settings))
    model = GPT(config, V).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def some_tokens(B: int, T: int) -> torch.Tensor:
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(5))


@settings(deadline=None, max_examples=60)
@given(
    norm_order=st.sampled_from(["pre", "post"]),
    activation=st.sampled_from(["gelu", "relu", "relu2"]),
    position=st.sampled_from(["learned", "sinusoidal", "rotary"]),
    qk_norm=st.booleans(),
    bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.5]),
    n_head=st.sampled_from([1, 2, 4]),
    first=st.lists(st.integers(1, 8), min_size=1, max_size=3),
)
def test_steps_after_a_prompt_are_the_full_forward(first: list[int], **config: Any) -> None:
    """Row r has `first[r]` tokens in the cache when the steps begin."""
    model, T, B, n = small_gpt(**config), 12, len(first), 12 - max(first)
    tokens = some_tokens(B, T)
    cache = KVCache.for_model(model, B)
    lengths = torch.tensor(first)
    step, read, expected = TokenStep(model), list[torch.Tensor](), list[torch.Tensor]()
    with torch.no_grad():
        full = model(tokens)
        model(tokens[:, : max(first)], cache=cache)  # what is cached beyond a row's own is not read
        for t in range(n):
            newest = tokens.gather(1, lengths[:, None])[:, 0]
            read.append(step(newest, cache, lengths if len(set(first)) > 1 else None))
            expected.append(full[torch.arange(B), lengths])
            lengths = lengths + 1
            assert cache.length == max(first) + t + 1
    torch.testing.assert_close(torch.stack(read), torch.stack(expected), rtol=0, atol=1e-12)


def test_past_the_context_it_is_refused() -> None:
    model = small_gpt()
    cache, step = KVCache.for_model(model, 1), TokenStep(model)
    with torch.no_grad():
        model(some_tokens(1, 12), cache=cache)
        with pytest.raises(ValueError, match="13 positions are beyond block_size=12"):
            step(torch.tensor([1]), cache)
    assert cache.length == 12


def test_it_reads_the_weights_as_they_are_now() -> None:
    model = small_gpt()
    step = TokenStep(model)
    with torch.no_grad():
        for _ in range(2):
            cache = KVCache.for_model(model, 1)
            model(some_tokens(1, 3), cache=cache)
            expected = model(torch.cat([some_tokens(1, 3), torch.tensor([[4]])], 1))[:, -1]
            assert torch.allclose(step(torch.tensor([4]), cache), expected, atol=1e-12)
            cast("Any", model.blocks[1]).mlp.down.weight.mul_(3)


class Operations(TorchDispatchMode):
    """What a forward does: the names of its operations, and the most numbers in a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        del types
        given = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if torch.is_tensor(x)}
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for new in tree_leaves(result):
            if torch.is_tensor(new) and new.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, new.numel())
        return result


@pytest.mark.parametrize("B", [1, 3])
def test_nothing_grows_with_the_past(B: int) -> None:
    model = small_gpt(block_size=200)
    cache, tokens, step = KVCache.for_model(model, B), some_tokens(B, 200), TokenStep(model)
    found: list[Operations] = []
    with torch.no_grad():
        for chunk in tokens.split([3, 1, 195, 1], dim=1):
            with Operations() as operations:
                if chunk.size(1) == 1:
                    step(chunk[:, 0], cache)
                else:
                    model(chunk, cache=cache, last_only=True)
            found.append(operations)
    _, early, _, late = found
    assert late.names == early.names
    assert early.largest == late.largest == B * 4 * 8  # the MLP, four times as wide
    assert not {"tril", "where", "masked_fill", "item", "_local_scalar_dense"} & set(late.names)

"""The cache by itself, and what the model does with it."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.model.attention import attention_mask
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache


def small_gpt(position: str = "learned") -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=12, position=position)
    model = GPT(config, 11).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)  # positions and attention must matter
    return model


def some_tokens(B: int, T: int) -> torch.Tensor:
    return torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(5))


def test_append_writes_in_place_and_returns_views() -> None:
    cache = KVCache(2, 3, 4, 6, 5)
    first = torch.randn(3, 4, 2, 5)
    k, v = cache.append(1, first, -first)
    assert cache.length == 0
    cache.advance(2)
    second = torch.randn(3, 4, 1, 5)
    k, v = cache.append(1, second, -second)
    assert torch.equal(k, torch.cat([first, second], 2))
    assert torch.equal(v, -k)
    assert k.data_ptr() == cache.keys[1].data_ptr()
    assert v.data_ptr() == cache.values[1].data_ptr()
    assert not cache.keys[0].any()  # the other layer's part is its own


def test_overflow_is_refused_and_changes_nothing() -> None:
    cache = KVCache(1, 1, 1, 3, 2)
    cache.advance(2)
    new = torch.ones(1, 1, 2, 2)
    message = "a cache of 3 positions that holds 2 has no room for 2 more"
    with pytest.raises(ValueError, match=message):
        cache.append(0, new, new)
    assert cache.length == 2
    assert not cache.keys.any()
    cache.append(0, new[:, :, :1], new[:, :, :1])  # the last place is one


def test_what_is_held_stays_while_the_room_grows() -> None:
    cache, held = KVCache(2, 3, 2, 150, 4), torch.randn(2, 2, 3, 2, 150, 4)
    rooms: list[int] = []
    for start, stop in ((0, 5), (5, 64), (64, 65), (65, 130), (130, 150)):
        for layer, (k, v) in enumerate(held[..., start:stop, :].unbind(1)):
            keys, values = cache.append(layer, k, v)
            assert torch.equal(keys, held[0, layer, ..., :stop, :])
            assert torch.equal(values, held[1, layer, ..., :stop, :])
        cache.advance(stop - start)
        rooms.append(cache.keys.size(3))
        assert cache.keys[0].is_contiguous()  # no holes between the heads
    assert rooms == [64, 64, 128, 150, 150]
    cache.length = 0  # from the beginning again
    assert cache.make_room(70) == 128


def test_a_models_cache_has_its_shape_and_type() -> None:
    model = small_gpt().to(torch.bfloat16)
    cache = KVCache.for_model(model, 3, 7)
    assert cache.keys.shape == cache.values.shape == (2, 3, 2, 7, 4)
    assert cache.keys.dtype == torch.bfloat16
    assert cache.keys.device == model.embedding.weight.device
    assert KVCache.for_model(model, 1).capacity == 12


@given(
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=12).filter(lambda p: sum(p) <= 12),
    position=st.sampled_from(["learned", "sinusoidal", "rotary"]),
)
@settings(deadline=None, max_examples=30)
def test_any_chunks_give_the_full_forward(parts: list[int], position: str) -> None:
    model, tokens = small_gpt(position), some_tokens(2, sum(parts))
    cache = KVCache.for_model(model, 2)
    with torch.no_grad():
        chunks: list[torch.Tensor] = []
        for chunk in tokens.split(parts, dim=1):
            before = cache.length
            chunks.append(model(chunk, cache=cache))
            assert cache.length == before + chunk.size(1)  # once a forward, not once a layer
        assert torch.allclose(torch.cat(chunks, 1), model(tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_rows_padded_on_the_left_read_as_alone(position: str) -> None:
    model, tokens = small_gpt(position), some_tokens(2, 9)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, :4] = False
    positions = (real.cumsum(1) - 1).clamp(min=0)
    cache = KVCache.for_model(model, 2)
    found: list[torch.Tensor] = []
    with torch.no_grad():
        for start, stop in ((0, 5), (5, 7), (7, 8), (8, 9)):
            logits = model(
                tokens[:, start:stop],
                positions=positions[:, start:stop],
                real=real[:, :stop],
                cache=cache,
            )
            found.append(logits)
        logits = torch.cat(found, 1)
        assert torch.allclose(logits[0], model(tokens[:1])[0], rtol=0, atol=1e-12)
        assert torch.allclose(logits[1, 4:], model(tokens[1:, 4:])[0], rtol=0, atol=1e-12)


def test_documents_are_those_of_all_keys() -> None:
    model, tokens = small_gpt(), some_tokens(1, 8)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    cache = KVCache.for_model(model, 1)
    with torch.no_grad():
        chunks = [
            model(tokens[:, a:b], documents=documents[:, :b], cache=cache)
            for a, b in ((0, 2), (2, 6), (6, 7), (7, 8))
        ]
        full = model(tokens, documents=documents)
    assert torch.allclose(torch.cat(chunks, 1), full, rtol=0, atol=1e-12)


def test_a_forward_that_fails_does_not_advance() -> None:
    model = small_gpt()
    cache = KVCache.for_model(model, 1)
    with torch.no_grad():
        model(some_tokens(1, 3), cache=cache)
        with pytest.raises(ValueError, match="13 positions are beyond block_size=12"):
            model(some_tokens(1, 10), cache=cache)
        small = KVCache.for_model(model, 1, 2)
        with pytest.raises(ValueError, match="no room for 3 more"):
            model(some_tokens(1, 3), cache=small)
    assert cache.length == 3
    assert small.length == 0


def test_nothing_masked_is_read_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[torch.Tensor | None] = []

    def watched(T: int, S: int, **named: Any) -> torch.Tensor | None:
        built.append(attention_mask(T, S, **named))
        return built[-1]

    monkeypatch.setattr("minigpt.model.gpt.attention_mask", watched)
    model = small_gpt()
    cache = KVCache.for_model(model, 1)
    with torch.no_grad():
        model(some_tokens(1, 3), cache=cache)
        model(some_tokens(1, 1), cache=cache)
    assert built == [None, None]

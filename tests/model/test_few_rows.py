"""The kernels for few rows compute what `F.linear` does, from the weights as they are."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from torch import nn

from minigpt.config import ModelConfig
from minigpt.model import few_rows
from minigpt.model.few_rows import linear
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


def some(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.model.linear.LARGE", 0)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_a_large_layer_is_the_plain_one(rows: int, *, bias: bool) -> None:
    weight, x = some(48, 20), some(rows, 20)
    b = some(48) if bias else None
    exact = F.linear(x.double(), weight.double(), None if b is None else b.double())
    with torch.no_grad():
        y = linear(weight, b, rows)(x)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-5)


@needs_onednn
@pytest.mark.usefixtures("all_are_large")
def test_one_row_reads_the_weights_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[torch.Tensor] = []
    monkeypatch.setattr(few_rows, "packed", lambda weight: copied.append(weight) or weight)
    weight = some(8, 4)
    linear(weight, None, 1)
    assert not copied
    linear(weight, None, 2)
    assert len(copied) == 1
    monkeypatch.setattr(few_rows, "MOST_PACKED", 0)
    linear(weight, None, 2)
    assert len(copied) == 1  # too large to be there twice


@needs_onednn
@pytest.mark.usefixtures("all_are_large")
def test_a_new_map_packs_the_weights_as_they_are() -> None:
    """PyTorch's fused optimizers change weights without a trace that a kept copy could go by."""
    weight, x = nn.Parameter(some(8, 4)), some(3, 4)
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    with torch.no_grad():
        linear(weight, None, 3)(x)
    weight.grad = some(8, 4)
    optimizer.step()
    with torch.no_grad():
        y = linear(weight, None, 3)(x)
    torch.testing.assert_close(y, F.linear(x, weight.detach()))


@needs_onednn
def test_weights_that_were_made_in_inference_mode() -> None:
    with torch.inference_mode():
        weight = torch.zeros(512, 512)
        assert not linear(weight, None, 3)(some(3, 512)).any()


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_take_the_plain_kernel(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "onednn_product", lambda *_: pytest.fail("not for this type"))
    weight, x = some(8, 4).to(dtype), some(2, 4).to(dtype)
    assert torch.equal(linear(weight, None, 2)(x), F.linear(x, weight))


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("lengths", [[3], [4, 4, 4], [2, 7, 5]])
@pytest.mark.parametrize(
    "settings",
    [{}, {"bias": False, "norm_order": "post"}, {"position": "rotary", "qk_norm": True}],
)
def test_a_step_of_large_layers_is_the_full_forward(
    lengths: list[int], settings: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=90, **settings)
    model, B = GPT(config, 11).eval(), len(lengths)
    tokens = torch.randint(0, 11, (B, 90), generator=torch.Generator().manual_seed(1))
    cache, step, held = KVCache.for_model(model, B), TokenStep(model, B), torch.tensor(lengths)
    with torch.no_grad():
        full = model(tokens)
        model(tokens[:, : max(lengths)], cache=cache)
        for _ in range(90 - max(lengths)):
            newest = tokens.gather(1, held[:, None])[:, 0]
            logits = step(newest, cache, held if len(set(lengths)) > 1 else None)
            torch.testing.assert_close(logits, full[torch.arange(B), held], rtol=0, atol=1e-5)
            held = held + 1

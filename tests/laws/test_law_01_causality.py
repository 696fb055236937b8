"""Law 1: what comes after a position changes nothing at it.

The fast path of documents is the mask's in short rows and `document_attention` in long ones; here
either is drawn for rows of ten tokens at most.
"""

from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.model import attention as of_attention
from minigpt.model.attention import attention_mask
from minigpt.model.gpt import GPT
from tests.laws.choices import choices

V = 13


@st.composite
def models(draw: st.DrawFn, n_layer: int | None = None) -> GPT:
    """A float64 model with weights large enough that every dependence shows."""
    config = ModelConfig(
        n_layer=draw(st.integers(1, 3)) if n_layer is None else n_layer,
        n_head=draw(st.sampled_from([1, 2])),
        n_embd=draw(st.sampled_from([4, 8])),
        block_size=10,
        **draw(choices),
    )
    model = GPT(config, V).double()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return model


@st.composite
def masks(draw: st.DrawFn, B: int, T: int) -> dict[str, Tensor]:
    """Padding, documents, both or neither, anywhere."""
    found: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        found["real"] = torch.rand(B, T, generator=generator) < 0.6
    if draw(st.booleans()):
        found["documents"] = (torch.rand(B, T, generator=generator) < 0.3).cumsum(1)
    return found


PATHS = ["readable", "fast", "one by one"]


@contextmanager
def path(name: str) -> Generator[list[Tensor] | None]:
    """What to give as `attention` for one of the `PATHS`, in a model that takes it for long."""
    with patch.object(of_attention, "LONG", 1 if name == "one by one" else 512):
        yield [] if name == "readable" else None


@given(model=models(), T=st.integers(2, 10), by=st.sampled_from(PATHS), data=st.data())
@settings(deadline=None, max_examples=100)
def test_later_tokens_change_no_logit(model: GPT, T: int, by: str, data: st.DataObject) -> None:
    t = data.draw(st.integers(0, T - 2), label="t")
    mask = data.draw(masks(2, T))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    tokens = torch.randint(0, V, (2, T), generator=generator)
    changed = tokens.clone()
    changed[:, t + 1 :] = torch.randint(0, V, (2, T - t - 1), generator=generator)
    with torch.no_grad(), path(by) as attention:
        before = model(tokens, **mask, attention=attention)
        after = model(changed, **mask, attention=attention)
    assert torch.equal(before[:, : t + 1], after[:, : t + 1])


def gradients(model: GPT, tokens: Tensor, mask: dict[str, Tensor], t: int, by: str) -> Tensor:
    """Of one logit at t, with respect to the embedded input: (B, T), the largest of each."""
    embedded: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        embedded.append(output)

    handle = model.embedding.register_forward_hook(keep)
    with path(by) as attention:
        logits = model(tokens, **mask, attention=attention)
    handle.remove()
    (found,) = torch.autograd.grad(logits[:, t, 3].sum(), embedded)
    return found.abs().amax(-1)


@given(model=models(), T=st.integers(2, 10), by=st.sampled_from(PATHS), data=st.data())
@settings(deadline=None, max_examples=60)
def test_later_inputs_have_a_gradient_of_zero(
    model: GPT, T: int, by: str, data: st.DataObject
) -> None:
    t = data.draw(st.integers(0, T - 2), label="t")
    tokens = torch.randint(0, V, (2, T), generator=torch.Generator().manual_seed(T))
    found = gradients(model, tokens, data.draw(masks(2, T)), t, by)
    assert (found[:, t + 1 :] == 0).all()
    assert (found[:, t] > 0).all()


@given(model=models(n_layer=1), T=st.integers(1, 10), by=st.sampled_from(PATHS), data=st.data())
@settings(deadline=None, max_examples=60)
def test_one_layer_depends_on_what_its_mask_lets_it_read_and_on_all_of_it(
    model: GPT, T: int, by: str, data: st.DataObject
) -> None:
    t = data.draw(st.integers(0, T - 1), label="t")
    mask = data.draw(masks(2, T))
    tokens = torch.randint(0, V, (2, T), generator=torch.Generator().manual_seed(T))
    found = gradients(model, tokens, mask, t, by)
    readable_keys = attention_mask(T, T, real=mask.get("real"), documents=mask.get("documents"))
    if readable_keys is None:
        readable_keys = torch.ones(T, T, dtype=torch.bool).tril()
    expected = readable_keys.expand(2, 1, T, T)[:, 0, t]
    assert torch.equal(found > 0, expected)

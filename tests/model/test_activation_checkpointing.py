"""Activation checkpointing: less is kept for the backward pass, and no number changes."""

import pytest
import torch
from torch import Tensor

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.training.loss import summed_loss

V, B, T = 23, 3, 12

REAL = torch.arange(T) < torch.tensor([[12], [7], [1]])
DOCUMENTS = torch.arange(T) // torch.tensor([[4], [5], [12]])


def gpt(**changes: object) -> GPT:
    torch.manual_seed(0)
    shape = {"n_layer": 3, "n_head": 2, "n_embd": 8, "block_size": T}
    return GPT(ModelConfig(**shape | changes), V).train()  # pyright: ignore[reportArgumentType]


def some_tokens() -> Tensor:
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(5))


def loss_and_gradients(
    model: GPT, *, checkpointing: bool, **masks: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """Of one draw of dropout; fails if the blocks are not recomputed as `checkpointing` says."""
    model.activation_checkpointing = checkpointing
    model.zero_grad()
    runs = 0

    def count(*_: object) -> None:
        nonlocal runs
        runs += 1

    handle = model.blocks[0].register_forward_pre_hook(count)
    torch.manual_seed(1)
    loss = summed_loss(model(some_tokens(), **masks), some_tokens())
    loss.backward()
    handle.remove()
    assert runs == (2 if checkpointing else 1)
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    "made_of",
    [
        {"norm_order": "pre"},
        {"norm_order": "post"},
        {"position": "rotary", "qk_norm": True, "activation": "relu2"},
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "masks", [{}, {"real": REAL}, {"documents": DOCUMENTS}, {"real": REAL, "documents": DOCUMENTS}]
)
def test_the_loss_and_the_gradients_have_the_same_bits(
    masks: dict[str, Tensor], dropout: float, made_of: dict[str, object]
) -> None:
    model = gpt(dropout=dropout, **made_of)
    loss, gradients = loss_and_gradients(model, checkpointing=False, **masks)
    again, recomputed = loss_and_gradients(model, checkpointing=True, **masks)
    assert torch.equal(loss, again)
    assert len(gradients) == len(recomputed) == len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(gradients, recomputed, strict=True))


def kept_bytes(model: GPT) -> int:
    """What a forward pass keeps for the backward pass, the parameters left out."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(some_tokens()).sum()
    return sum(kept.values())


def test_a_block_keeps_its_input_alone() -> None:
    shallow, deep = gpt(n_layer=3), gpt(n_layer=7)
    without = kept_bytes(deep) - kept_bytes(shallow)
    shallow.activation_checkpointing = deep.activation_checkpointing = True
    assert kept_bytes(deep) - kept_bytes(shallow) == 4 * B * T * 8 * 4  # blocks, values, bytes
    assert without > 10 * 4 * B * T * 8 * 4


def test_decoding_and_looking_at_attention_go_as_before() -> None:
    model, tokens = gpt(), some_tokens()
    model.activation_checkpointing = True
    attention: list[Tensor] = []
    logits = model(tokens, attention=attention)
    assert len(attention) == 3
    with torch.no_grad():
        cache = KVCache.for_model(model, B)
        read = torch.cat([model(tokens[:, :5], cache=cache), model(tokens[:, 5:], cache=cache)], 1)
    torch.testing.assert_close(read, logits.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "made_of", [{}, {"position": "rotary", "qk_norm": True, "activation": "relu2"}]
)
def test_a_compiled_model_recomputes_too(made_of: dict[str, object]) -> None:
    model = gpt(dropout=0.3, **made_of)
    model.compile()
    model.activation_checkpointing = True
    torch.manual_seed(1)
    loss = summed_loss(model(some_tokens()), some_tokens())
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    model.activation_checkpointing = False
    model.zero_grad()
    torch.manual_seed(1)
    again = summed_loss(model(some_tokens()), some_tokens())
    again.backward()
    torch.testing.assert_close(loss, again)
    assert len(gradients) == len(list(model.parameters()))
    for mine, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)

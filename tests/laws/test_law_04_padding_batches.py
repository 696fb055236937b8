"""Law 4, the data's part: padding is known by a row's length, never by an id.

What a row reads and predicts is the same alone and beside longer rows, and a row with nothing to
predict is refused before it can reach the model.
"""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.data.batches import IGNORED, make_batch, spans
from minigpt.data.token_store import TokenStore
from minigpt.model import attention
from minigpt.model.gpt import GPT
from minigpt.training.loss import batch_loss
from tests.laws.choices import choices

LAYOUTS = ("packed", "padded")


@st.composite
def stores(draw: st.DrawFn) -> TokenStore:
    """Random documents; the end token is any id, 0 (what padding is filled with) among them."""
    end = draw(st.integers(0, 3))
    words = st.integers(0, 3).filter(lambda token: token != end)
    stream, starts = [end], [0]
    for document in draw(
        st.lists(st.lists(words, min_size=1, max_size=12), min_size=1, max_size=6)
    ):
        stream += [*document, end]
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=np.uint16), np.array(starts, dtype=np.int64), 0)


@given(stores(), st.integers(1, 16), st.sampled_from(LAYOUTS), st.booleans())
@settings(deadline=None, max_examples=80)
def test_a_row_is_the_same_alone_and_beside_longer_ones(
    store: TokenStore, block_size: int, layout: str, document_mask: bool
) -> None:
    rows = spans(store, block_size, layout)
    together = make_batch(store, rows, document_mask=document_mask)
    for i, n in enumerate(rows[:, 1].tolist()):
        alone = make_batch(store, rows[i : i + 1], document_mask=document_mask)
        assert alone.real is None
        for name in ("inputs", "targets", "documents", "positions"):
            one, among = getattr(alone, name), getattr(together, name)
            assert (one is None) == (among is None)
            if one is not None:
                assert torch.equal(one[0], among[i, :n])
        assert (together.targets[i, n:] == IGNORED).all()
        assert together.real is None or together.real[i].tolist() == [
            place < n for place in range(together.inputs.shape[1])
        ]


@given(
    store=stores(),
    layout=st.sampled_from(LAYOUTS),
    document_mask=st.booleans(),
    long=st.sampled_from([1, 512]),
    made_of=choices,
)
@settings(deadline=None, max_examples=40)
def test_training_on_padded_rows_is_training_on_each_alone(
    store: TokenStore, layout: str, document_mask: bool, long: int, made_of: dict[str, Any]
) -> None:
    """Through the loss of training, which leaves it to causality to hide what stands behind."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=9, **made_of), 4).double()
    rows = spans(store, 9, layout)

    def loss_and_gradients(chosen: np.ndarray[Any, Any]) -> list[torch.Tensor]:
        loss = batch_loss(model, make_batch(store, chosen, document_mask=document_mask))
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    with patch.object(attention, "LONG", long):
        together = loss_and_gradients(rows)
        alone = [loss_and_gradients(rows[i : i + 1]) for i in range(len(rows))]
    for found, *parts in zip(together, *alone, strict=True):
        expected = torch.stack(parts).sum(0)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@given(stores(), st.integers(1, 16), st.sampled_from(LAYOUTS))
@settings(deadline=None, max_examples=50)
def test_every_end_token_stays_a_target(store: TokenStore, block_size: int, layout: str) -> None:
    batch = make_batch(store, spans(store, block_size, layout))
    assert int((batch.targets == store.end_id).sum()) == store.n_documents


@pytest.mark.parametrize("rows", [[[0, 0]], [[0, 3], [3, 0]], []])
def test_rows_with_nothing_real_are_refused(rows: list[list[int]]) -> None:
    store = TokenStore(np.array([0, 1, 2, 0], dtype=np.uint16), np.array([0, 3]), 0)
    with pytest.raises(ValueError, match="each of them a target"):
        make_batch(store, np.array(rows, dtype=np.int64).reshape(-1, 2))


@given(stores(), st.integers(1, 16), st.sampled_from(LAYOUTS))
@settings(deadline=None, max_examples=50)
def test_no_row_has_nothing_real(store: TokenStore, block_size: int, layout: str) -> None:
    assert (spans(store, block_size, layout)[:, 1] >= 1).all()

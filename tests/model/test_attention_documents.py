"""Attention of long rows, document by document; law 12 holds it against the mask."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from minigpt.config import ModelConfig
from minigpt.model import attention
from minigpt.model.attention import document_attention, document_lengths
from minigpt.model.gpt import GPT


def test_lengths_of_documents_row_after_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LONG", 5)
    documents = torch.tensor([[0, 0, 1, 1, 1], [3, 4, 5, 5, 5], [7, 7, 7, 7, 7]])
    assert document_lengths(documents) == [2, 3, 1, 1, 3, 5]
    assert document_lengths(documents[:, :4]) is None  # short rows are faster behind the mask
    assert document_lengths(torch.tensor([[0, 0, 1, 0, 0]])) is None  # the same one again
    assert document_lengths(documents.to("meta")) is None
    with FakeTensorMode() as mode:
        assert document_lengths(mode.from_tensor(documents)) is None


def test_a_long_row_of_documents_goes_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one whose weights are asked for, or that has padding, does not."""
    monkeypatch.setattr(attention, "LONG", 5)
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8), 11).double()
    tokens = torch.arange(10).reshape(2, 5)
    documents = torch.tensor([[0, 0, 1, 1, 1], [3, 4, 5, 5, 5]])
    calls: list[list[int]] = []

    def counted(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], *, dropout: float) -> Tensor:
        calls.append(lengths)
        return document_attention(q, k, v, lengths, dropout=dropout)

    monkeypatch.setattr(attention, "document_attention", counted)
    found = model(tokens, documents=documents)
    assert calls == [[2, 3, 1, 1, 3]] * 2
    readable = model(tokens, documents=documents, attention=[])
    masked = model(tokens, documents=documents, real=torch.ones(2, 5, dtype=torch.bool))
    assert len(calls) == 2
    assert torch.allclose(found, readable, rtol=0, atol=1e-12)
    assert torch.allclose(found, masked, rtol=0, atol=1e-12)
    model.activation_checkpointing = True
    model(tokens, documents=documents).sum().backward()
    assert len(calls) == 6  # forward, and once more for the gradient

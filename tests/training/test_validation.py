"""The validation loss is a mean over tokens; attention's figures have known values."""

import math

import pytest
import torch

from minigpt.config import ModelConfig
from minigpt.data.batches import IGNORED, Batch
from minigpt.model.gpt import GPT
from minigpt.training import validation
from minigpt.training.validation import attention_statistics, validation_loss

VOCAB = 7


def batch_of(lengths: list[int], seed: int) -> Batch:
    width = max(lengths)
    tokens = torch.randint(
        VOCAB, (len(lengths), width + 1), generator=torch.Generator().manual_seed(seed)
    )
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Batch(
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:].masked_fill(~real, IGNORED),
        real=None if real.all() else real,
        documents=None,
        positions=None,
        n_targets=sum(lengths),
        step_targets=sum(lengths),
    )


def tiny_model() -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=16, dropout=0.5)
    return GPT(config, VOCAB).double()


def test_every_token_counts_once_however_the_rows_are_batched() -> None:
    model = tiny_model().train()
    rows = [batch_of([length], seed) for seed, length in enumerate((1, 16, 3, 9))]
    alone = [validation_loss(model, [row]) for row in rows]
    together = validation_loss(model, rows)
    assert together.n_targets == 29
    assert together.per_token == pytest.approx(sum(each.nats for each in alone) / 29)
    assert model.training


def test_an_idle_process_adds_nothing() -> None:
    loss = validation_loss(tiny_model(), [], add_up=lambda sums: sums + torch.tensor([6.0, 3.0]))
    assert loss.per_token == 2.0


def test_entropy_of_attention_that_sees_all_alike() -> None:
    model = tiny_model()
    for name, weight in model.named_parameters():
        if "qkv" in name:
            torch.nn.init.zeros_(weight)  # all scores are equal
    lengths = [4, 2]
    statistics = attention_statistics(model, batch_of(lengths, seed=1))
    rows = [math.log(position + 1) for length in lengths for position in range(length)]
    expected = sum(rows) / len(rows)
    assert statistics["attention_entropy_0"] == pytest.approx(expected, rel=1e-6)
    assert statistics["attention_entropy_1"] == pytest.approx(expected, rel=1e-6)


def test_size_of_the_logits() -> None:
    model, batch = tiny_model().eval(), batch_of([5, 2], seed=2)
    with torch.no_grad():
        logits = model(batch.inputs, real=batch.real)[batch.real_positions]
    expected = logits.square().mean().sqrt().item()
    assert attention_statistics(model, batch)["logit_rms"] == pytest.approx(expected, rel=1e-5)


def test_looking_at_a_batch_by_rows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny_model(), batch_of([16, 3, 9], seed=3)
    together = attention_statistics(model, batch)
    monkeypatch.setattr(validation, "_WEIGHTS", 1)
    assert attention_statistics(model, batch) == pytest.approx(together, rel=1e-6)

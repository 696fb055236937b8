"""Law 5: k micro-batches of ragged documents give the loss and the gradient of the one big batch,
each target token counting once; and so do the parts that a micro-batch is read in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.data.batches import TrainingBatches
from minigpt.data.token_store import TokenStore
from minigpt.model.gpt import GPT
from minigpt.training.loss import summed_loss
from minigpt.training.metrics_file import column, read_metrics
from tests.conftest import Train
from tests.laws.choices import choices

VOCAB, END = 11, 10


def ragged_store(lengths: list[int], seed: int) -> TokenStore:
    draw = np.random.default_rng(seed)
    stream, starts = [END], [0]
    for length in lengths:
        stream += [*draw.integers(0, END, length).tolist(), END]
        starts.append(len(stream) - 1)
    return TokenStore(np.array(stream, dtype=np.uint16), np.array(starts), n_bytes=sum(lengths))


def loss_and_gradient(
    model: GPT, batches: TrainingBatches, step: int, accumulate: int, *, readable: bool
) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    total = 0.0
    for micro in range(step * accumulate, (step + 1) * accumulate):
        for part in batches[micro].in_parts():
            logits = model(
                part.inputs,
                positions=part.positions,
                real=part.real,
                documents=part.documents,
                attention=[] if readable else None,
            )
            share = summed_loss(logits, part.targets) / part.step_targets
            share.backward()
            total += share.item()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return total, [gradient.clone() for gradient in gradients]


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("layout", ["packed", "padded"])
@settings(deadline=None, max_examples=12)
@given(
    lengths=st.lists(st.integers(1, 19), min_size=2, max_size=9),
    accumulate=st.sampled_from([1, 2, 3, 4, 6]),
    document_mask=st.booleans(),
    part_padding=st.sampled_from([None, 0, 3]),
    made_of=choices,
    seed=st.integers(0, 1000),
)
def test_accumulation_changes_nothing(
    layout: str,
    readable: bool,
    lengths: list[int],
    accumulate: int,
    document_mask: bool,
    part_padding: int | None,
    made_of: dict[str, Any],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=8, **made_of)
    model = GPT(config, VOCAB).double()
    store = ragged_store(lengths, seed)

    def batches(parts: int, part_padding: int | None = None) -> TrainingBatches:
        return TrainingBatches(
            store,
            block_size=8,
            layout=layout,
            batch_size=12,
            seed=seed,
            accumulate=parts,
            document_mask=document_mask and layout == "packed",
            part_padding=part_padding,
        )

    step = seed % 5
    whole = loss_and_gradient(model, batches(1), step, 1, readable=readable)
    divided = batches(accumulate, part_padding)
    parts = loss_and_gradient(model, divided, step, accumulate, readable=readable)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    for mine, reference in zip(parts[1], whole[1], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-12)


def test_each_target_counts_once_whatever_its_row() -> None:
    """A long and a short document: the mean is over tokens, not over rows."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=1, n_head=1, n_embd=4, block_size=32), VOCAB).double()
    store = ragged_store([30, 1], seed=3)
    batches = TrainingBatches(
        store, block_size=32, layout="padded", batch_size=2, seed=0, accumulate=2
    )
    loss, _ = loss_and_gradient(model, batches, 0, 2, readable=False)
    sums = []
    for first, last in zip(store.starts[:-1], store.starts[1:], strict=True):
        tokens = torch.from_numpy(store.tokens[first : last + 1].astype(np.int64))[None]
        sums.append(summed_loss(model(tokens[:, :-1]), tokens[:, 1:]).item())
    assert loss == pytest.approx(sum(sums) / 33, rel=1e-12)


def test_the_program_itself_accumulates_so(train: Train, tmp_path: Path) -> None:
    """Through train.py: losses, rates and steps do not depend on the number of micro-batches."""
    runs = {parts: tmp_path / f"run{parts}" for parts in (1, 3)}
    for parts, folder in runs.items():
        settings = ("data.layout=padded", "trainer.max_steps=6", "trainer.val_check_interval=3")
        divided = f"trainer.accumulate_grad_batches={parts}"
        assert train(*settings, divided, f"run_dir={folder}") == 0
    one, three = (read_metrics(folder / "metrics.csv") for folder in runs.values())
    assert [step for step, _ in column(one, "train_loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in column(one, "val_loss")] == [3, 6]
    for name in ("lr", "tokens"):
        assert column(one, name) == column(three, name)
    for name in ("train_loss", "val_loss", "grad_norm"):
        assert [step for step, _ in column(one, name)] == [step for step, _ in column(three, name)]
        mine, reference = ([value for _, value in column(rows, name)] for rows in (three, one))
        assert mine == pytest.approx(reference, rel=1e-4)

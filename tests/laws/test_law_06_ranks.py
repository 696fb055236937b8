"""Law 6: N processes give the losses and gradients of one; every row is seen once an epoch, and an
idle process adds nothing to a validation."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import generate
from minigpt.checkpoint import load_model
from minigpt.command_line import run
from minigpt.config import ModelConfig
from minigpt.data.batches import IGNORED, Batch, TrainingBatches, spans, validation_batches
from minigpt.generation.config import GenerateConfig
from minigpt.model.gpt import GPT
from minigpt.run_folder import BEST, LAST
from minigpt.training.loss import batch_loss
from minigpt.training.metrics_file import column, read_metrics
from minigpt.training.validation import validation_loss
from tests.conftest import Train
from tests.laws.choices import choices
from tests.laws.test_law_05_accumulation import VOCAB, ragged_store

PROJECT = Path(__file__).resolve().parents[2]
CONTEXT = 8

LENGTHS = st.lists(st.integers(1, 19), min_size=2, max_size=9)
#: Of 12 rows a step: processes, and micro-batches in each.
PARTS = st.sampled_from([(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 3), (6, 2), (12, 1)])


def tiny_model(seed: int, **made_of: Any) -> GPT:
    torch.manual_seed(seed)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=CONTEXT, **made_of)
    return GPT(config, VOCAB).double()


def rows_of(batches: Iterable[Batch]) -> list[tuple[int, ...]]:
    """Each row as its first token and its targets."""
    return [
        (int(first), *(int(token) for token in row if token != IGNORED))
        for batch in batches
        for first, row in zip(batch.inputs[:, 0], batch.targets, strict=True)
    ]


# ---- the arithmetic, exactly ----


@pytest.mark.parametrize("layout", ["packed", "padded"])
@settings(max_examples=15)
@given(
    lengths=LENGTHS,
    parts=PARTS,
    document_mask=st.booleans(),
    part_padding=st.sampled_from([None, 0, 3]),
    made_of=choices,
    seed=st.integers(0, 1000),
)
def test_the_shares_of_all_processes_add_up(
    layout: str,
    lengths: list[int],
    parts: tuple[int, int],
    document_mask: bool,
    part_padding: int | None,
    made_of: dict[str, Any],
    seed: int,
) -> None:
    model, store, step = tiny_model(seed, **made_of), ragged_store(lengths, seed), seed % 5

    def loss_and_gradients(
        processes: int, accumulate: int, part_padding: int | None = None
    ) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        loss = 0.0
        for rank in range(processes):
            batches = TrainingBatches(
                store,
                block_size=CONTEXT,
                layout=layout,
                batch_size=12,
                seed=seed,
                accumulate=accumulate,
                rank=rank,
                world_size=processes,
                document_mask=document_mask and layout == "packed",
                part_padding=part_padding,
            )
            for micro_step in range(accumulate):
                batch = batches[step * accumulate + micro_step]
                share = batch_loss(model, batch, 1 / batch.step_targets)
                share.backward()
                loss += share.item()
        return loss, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    alone, together = loss_and_gradients(1, 1), loss_and_gradients(*parts, part_padding)
    assert together[0] == pytest.approx(alone[0], rel=1e-12)
    assert len(alone[1]) == len(list(model.parameters()))
    for mine, reference in zip(together[1], alone[1], strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-14)


@settings(max_examples=25)
@given(lengths=LENGTHS, parts=PARTS, seed=st.integers(0, 1000))
def test_each_row_is_seen_once_an_epoch_by_one_process(
    lengths: list[int], parts: tuple[int, int], seed: int
) -> None:
    store = ragged_store(lengths, seed)
    processes, accumulate = parts
    each = [
        TrainingBatches(
            store,
            block_size=CONTEXT,
            layout="padded",
            batch_size=12,
            seed=seed,
            accumulate=accumulate,
            rank=rank,
            world_size=processes,
        )
        for rank in range(processes)
    ]
    rows = spans(store, CONTEXT, "padded")
    expected = Counter(
        tuple(store.tokens[start : start + length + 1].tolist()) for start, length in rows
    )
    seen: Counter[tuple[int, ...]] = Counter()
    for step in range(len(rows)):  # twelve epochs; steps straddle them
        micro = range(step * accumulate, (step + 1) * accumulate)
        seen.update(rows_of(each[rank][m] for m in micro for rank in range(processes)))
        epochs = 12 * (step + 1) // len(rows)
        for row, times in expected.items():
            assert epochs * times <= seen[row] <= (epochs + 1) * times
    assert seen == Counter({row: 12 * times for row, times in expected.items()})


@pytest.mark.parametrize("layout", ["packed", "padded"])
@settings(max_examples=15)
@given(lengths=LENGTHS, processes=st.integers(1, 7), seed=st.integers(0, 1000))
def test_validation_reads_each_row_once_and_an_idle_process_adds_nothing(
    layout: str, lengths: list[int], processes: int, seed: int
) -> None:
    model, store = tiny_model(seed), ragged_store(lengths, seed)

    def batches(rank: int, world_size: int) -> list[Batch]:
        return list(
            validation_batches(
                store,
                block_size=CONTEXT,
                layout=layout,
                batch_size=2,
                rank=rank,
                world_size=world_size,
            )
        )

    sums: list[Tensor] = []

    def note(part: Tensor) -> Tensor:
        sums.append(part.clone())
        return torch.ones(2)

    for rank in range(processes):
        validation_loss(model, batches(rank, processes), add_up=note)
        if not batches(rank, processes):
            assert sums[-1].tolist() == [0.0, 0.0]
    shared = rows_of(batch for rank in range(processes) for batch in batches(rank, processes))
    assert Counter(shared) == Counter(rows_of(batches(0, 1)))
    alone = validation_loss(model, batches(0, 1))
    total = torch.stack(sums).sum(0)
    assert total[1] == alone.n_targets == store.n_targets
    assert total[0].item() == pytest.approx(alone.nats, rel=1e-12)


# ---- the program itself, with two real processes over gloo ----


def train_with_two(train: Train, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "train.py"), *train.settings, "trainer.devices=2",
         "trainer.strategy=ddp", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def assert_same_run(mine: Path, reference: Path, *, first: int) -> None:
    """Losses of training and validation from step `first` to 60, and the weights."""
    for name, count in (("train_loss", 61 - first), ("val_loss", 2 - first // 30)):
        losses, expected = (
            {step: loss for step, loss in column(rows, name) if step >= first}
            for rows in map(read_metrics, (mine / "metrics.csv", reference / "metrics.csv"))
        )
        assert len(expected) == count
        assert losses == pytest.approx(expected, rel=1e-5), name
    weights, expected_weights = (
        load_model(folder / LAST).model.state_dict() for folder in (mine, reference)
    )
    assert weights.keys() == expected_weights.keys()
    for key, weight in weights.items():
        if key.endswith("qkv.bias"):  # a key's true gradient is zero: Adam amplifies rounding there
            weight[16:32] = expected_weights[key][16:32]
        torch.testing.assert_close(weight, expected_weights[key], rtol=1e-3, atol=1e-4)


def test_two_processes_train_as_one_and_go_on_as_one(
    train: Train, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Padded rows, two micro-batches in each process; the checkpoint of step 30 goes on alone."""
    one, two, gone_on = tmp_path / "one", tmp_path / "two", tmp_path / "gone_on"
    common = ("data.layout=padded", "data.batch_size=12", "trainer.max_steps=60",
              "trainer.val_check_interval=30", "saving.keep=2")  # fmt: skip
    assert train(*common, f"run_dir={one}") == 0
    train_with_two(train, *common, "trainer.accumulate_grad_batches=2", f"run_dir={two}")
    assert_same_run(two, one, first=1)
    middle = two / LAST.parent / "step_00000030.ckpt"
    assert train(f"resume={middle}", f"run_dir={gone_on}", *common,
                 "trainer.devices=1") == 0  # fmt: skip
    assert_same_run(gone_on, one, first=31)
    capfd.readouterr()
    settings = [f"checkpoint={two / BEST}", "prompt=the ", "temperature=0", "max_new_tokens=5"]
    assert run(generate.main, GenerateConfig, "generate", settings) == 0
    assert capfd.readouterr().out.startswith("the ")


def test_one_process_goes_on_as_two(train: Train, tmp_path: Path) -> None:
    """Packed rows with the document mask, three micro-batches in each process."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert train("data.batch_size=12", "data.document_mask=true", "trainer.max_steps=60",
                 "trainer.val_check_interval=30", "saving.every_n_steps=10", "saving.keep=9",
                 f"run_dir={one}") == 0  # fmt: skip
    start = one / LAST.parent / "step_00000010.ckpt"
    train_with_two(train, f"resume={start}", f"run_dir={two}", "data.batch_size=12",
                   "trainer.accumulate_grad_batches=3")  # fmt: skip
    assert_same_run(two, one, first=11)

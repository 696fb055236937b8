"""What a run is said to need, what it took, and what is said where there is not enough."""

import dataclasses
import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minigpt.command_line import compose
from minigpt.config import ModelConfig, OptimConfig, TrainConfig, TrainerConfig
from minigpt.data.batches import Batch
from minigpt.errors import RunError
from minigpt.model.gpt import GPT
from minigpt.training.loss import batch_loss
from minigpt.training.memory import (
    _HOLES,
    _LIBRARIES,
    LiveBytes,
    Memory,
    explained_out_of_memory,
    gigabytes,
    resident_bytes,
    room_bytes,
    suggestions,
)
from tests.conftest import Train

V = 300


def memory_of(
    B: int, *, room: int = 10**12, checkpointing: bool = False, vocab_size: int = V
) -> Memory:
    """Of a process that holds nothing else."""
    model = ModelConfig(n_layer=3, n_head=2, n_embd=32, block_size=64)
    tokens = torch.zeros(B, model.block_size, dtype=torch.int64)
    batch = Batch(tokens, tokens, None, None, None, tokens.numel(), tokens.numel())
    config = TrainConfig(
        model=model,
        activation_checkpointing=checkpointing,
        optim=OptimConfig(lr=1e-3),
        trainer=TrainerConfig(precision="32-true"),
    )
    config.data.batch_size = B
    memory = Memory(config, vocab_size, batch, batch, "cpu", 0, room)
    predicted, kept = memory.looked_at(config)
    return dataclasses.replace(memory, predicted=predicted, kept=kept)


def test_live_bytes_are_those_of_the_storages_that_live() -> None:
    with LiveBytes() as live:
        a = torch.zeros(1000)
        view = a[10:20]
        assert live.now == 4000  # a view is no memory
        b = a * 2
        assert (live.now, live.peak) == (8000, 8000)
        del a
        assert live.now == 8000  # the view keeps it
        del view
        assert (live.now, live.peak) == (4000, 8000)
        assert b.sum() == 0


def test_what_autograd_keeps_is_counted_until_it_is_used() -> None:
    x = torch.ones(1000, requires_grad=True)
    with LiveBytes() as live:
        loss = (x.exp() * 2).sum()
        kept = live.now
        loss.backward()
        del loss
        assert kept == 4004  # exp's output and the sum
        assert live.now == 4000  # the gradient


@pytest.mark.parametrize("vocab_size", [V, 9000], ids=["plain head", "head in parts"])
def test_the_simulated_peak_is_that_of_real_tensors(vocab_size: int) -> None:
    """The same step on real tensors: their storages are counted as they come and go."""
    torch.manual_seed(0)
    memory = memory_of(16, vocab_size=vocab_size)
    model = GPT(memory.config.model, vocab_size).train()
    tokens = torch.zeros(16, 64, dtype=torch.int64)
    batch = dataclasses.replace(memory.training, inputs=tokens, targets=tokens)
    with LiveBytes() as live:
        batch_loss(model, batch).backward()
    weights = sum(p.nbytes for p in model.parameters())
    # beside weights and moments, which the step above does not have
    predicted = (memory.needed(memory.config) - _LIBRARIES - 3 * weights) / _HOLES
    assert predicted == pytest.approx(live.peak, rel=0.02)


def test_a_large_vocabulary_does_not_hold_its_logits() -> None:
    few, many = memory_of(64, vocab_size=20_000), memory_of(256, vocab_size=20_000)
    logits = 4 * 192 * 64 * 20_000  # of the rows that the one has more
    assert many.predicted - few.predicted < 0.4 * logits


def test_what_a_large_step_frees_is_not_kept() -> None:
    assert memory_of(64).kept
    assert not memory_of(64, checkpointing=True).kept
    assert not memory_of(5000).kept


def test_more_rows_need_more_and_checkpointing_less() -> None:
    few, many = memory_of(64).predicted, memory_of(256).predicted
    assert many > few + 100e6
    assert memory_of(256, checkpointing=True).predicted < 0.7 * many


@pytest.mark.parametrize(
    ("size", "shown"), [(4.7e8, "0.47 GB"), (1.92e9, "1.9 GB"), (1.4e11, "140 GB")]
)
def test_sizes_for_a_person(size: float, shown: str) -> None:
    assert gigabytes(size) == shown


def suggested(memory: Memory) -> dict[str, float]:
    """The settings by the bytes that are said of each; all are settings of the command line."""
    found = re.findall(r"([\w.]+=\w+) \(([\d.,]+) GB\)", suggestions(memory))
    for each, _ in found:
        assert compose(TrainConfig, "train", [each])[1] == {each.partition("=")[0]}
    return {each: float(size) * 1e9 for each, size in found}


def test_what_would_suffice_alone_is_suggested() -> None:
    room = memory_of(40).predicted
    found = suggested(memory_of(96, room=room))
    assert list(found) == ["trainer.accumulate_grad_batches=4", "activation_checkpointing=true"]
    assert found["trainer.accumulate_grad_batches=4"] == pytest.approx(
        memory_of(24).predicted, rel=0.05
    )


def test_where_nothing_suffices_all_is_suggested() -> None:
    found = suggested(memory_of(6, room=1))
    assert list(found) == [
        "trainer.accumulate_grad_batches=6",
        "activation_checkpointing=true",
        "model.block_size=32",
    ]
    assert max(found.values()) < memory_of(6).predicted


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        MemoryError(),
    ],
)
def test_a_refused_allocation_is_one_line(error: Exception) -> None:
    line = r"^out of memory.* GB .*accumulate_grad_batches=2 \("
    with pytest.raises(RunError, match=line) as raised, explained_out_of_memory(memory_of(4)):
        raise error
    assert "\n" not in str(raised.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), explained_out_of_memory(memory_of(4)):
        raise RuntimeError("shapes")


@pytest.fixture
def little_room() -> Iterator[None]:
    """A limit to this process's addresses: 400 MB more than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (size * resource.getpagesize() + 400_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_room")
def test_a_batch_that_does_not_fit_ends_the_run_with_what_to_lower(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(f"run_dir={tmp_path / 'run'}", "data.batch_size=20000") == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert re.match(r"error: out of memory, [\d.]+ GB were asked for at once: this run needs", line)
    assert "trainer.accumulate_grad_batches=2 (" in line
    assert "activation_checkpointing=true (" in line


def test_the_summary_has_prediction_and_peak(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=2", "activation_checkpointing=true") == 0
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    # this process has run other tests: what it holds now is no less than the prediction's base
    assert resident_bytes() <= summary["memory_peak_bytes"] + 100e6
    assert summary["memory_predicted_bytes"] < room_bytes("cpu")
    shown = gigabytes(summary["memory_predicted_bytes"])
    assert f"about {shown} at the peak; there is room for " in capsys.readouterr().err
    record = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["minigpt"]
    assert "activation_checkpointing" not in record["model_config"]
    assert record["config"]["activation_checkpointing"] is True

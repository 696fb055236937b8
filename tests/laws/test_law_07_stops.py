"""Law 7 at every moment a signal can come: the run goes on to the bits of one not stopped."""

import signal
from pathlib import Path
from typing import Any

import pytest

from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.run_folder import LAST
from minigpt.training import callbacks, lightning_module, saving, signals, validation
from tests.conftest import Train
from tests.laws.test_law_07_resume import assert_same_bits, everything_that_counts

COMMON = (
    "data.layout=padded",
    "trainer.accumulate_grad_batches=2",
    "model.dropout=0.2",
    "trainer.max_steps=12",
    "trainer.val_check_interval=4",
    "saving.every_n_steps=3",
    "saving.keep=2",
)


def signal_at_call(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int, number: int
) -> None:
    """Let a function of the program get a signal when it is called for the `call`-th time."""
    sound = getattr(place, name)
    calls = 0

    def signalled(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(number)
        return sound(*args, **kwargs)

    monkeypatch.setattr(place, name, signalled)


@pytest.fixture(scope="module")
def straight(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = tmp_path_factory.mktemp("straight") / "run"
    assert train(*COMMON, f"run_dir={run}") == 0
    return everything_that_counts(run)


@pytest.mark.parametrize(
    ("place", "name", "call", "step"),
    [
        (lightning_module, "build_optimizer", 1, 1),  # before the first step
        (lightning_module, "batch_loss", 11, 6),  # inside an accumulation window
        (lightning_module, "batch_loss", 8, 4),  # in the step before a validation
        (lightning_module.LanguageModel, "optimizer_step", 5, 5),
        (validation, "batch_loss", 2, 4),
        (callbacks, "sample_texts", 1, 5),
        (saving.CheckpointWriter, "save", 2, 5),
        (lightning_module, "batch_loss", 23, 12),  # in the last step
    ],
    ids=[
        "start", "window", "before validation", "update", "validation", "sample", "save", "end",
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal(
    train: Train,
    tmp_path: Path,
    straight: dict[str, Any],
    place: Any,
    name: str,
    call: int,
    step: int,
    number: signal.Signals,
) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        signal_at_call(monkeypatch, place, name, call, number)
        assert train(*COMMON, f"run_dir={run}") == 128 + number
    assert read_checkpoint(run / LAST)[RECORD]["step"] == step
    assert train(*COMMON, "resume=auto", f"run_dir={run}") == 0
    assert_same_bits(everything_that_counts(run), straight)
    assert (run / "summary.json").is_file()
    assert not list(run.rglob("*.part"))


def test_a_second_signal_acts_at_once(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(signals, "ONE_REQUEST", 0.0)
        # what is put around the other comes first
        signal_at_call(monkeypatch, lightning_module, "batch_loss", 11, signal.SIGTERM)
        signal_at_call(monkeypatch, lightning_module, "batch_loss", 11, signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            train(*COMMON, f"run_dir={run}")
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGINT) == before
    assert read_checkpoint(run / LAST)["global_step"] == 3  # what was saved before

"""Law 7: a run stopped and resumed has the bits of the run that was not stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt import run_folder
from minigpt.checkpoint import read_checkpoint
from minigpt.run_folder import BEST, LAST
from minigpt.training import saving
from minigpt.training.metrics_file import TIMING_FIELDS, read_metrics
from tests.conftest import Train


def everything_that_counts(folder: Path) -> dict[str, Any]:
    contents = read_checkpoint(folder / LAST)
    metrics = [
        {name: value for name, value in row.items() if name not in TIMING_FIELDS}
        for row in read_metrics(folder / "metrics.csv")
    ]
    record = contents["minigpt"]
    return {
        "weights": contents["state_dict"],
        "optimizer": contents["optimizer_states"],
        "step": contents["global_step"],
        "tokens": record["tokens"],
        "losses": [record[name] for name in ("train_loss", "val_loss", "best_val_loss")],
        "metrics": metrics,
        "samples": (folder / "samples.txt").read_text(encoding="utf-8"),
    }


def assert_same_bits(mine: Any, reference: Any, place: str = "") -> None:
    if isinstance(reference, torch.Tensor):
        assert torch.equal(mine, reference), place
    elif isinstance(reference, dict):
        assert mine.keys() == reference.keys(), place
        for key, value in reference.items():
            assert_same_bits(mine[key], value, f"{place}.{key}")
    elif isinstance(reference, list):
        assert len(mine) == len(reference), place
        for number, value in enumerate(reference):
            assert_same_bits(mine[number], value, f"{place}[{number}]")
    else:
        assert mine == reference, place


@pytest.mark.parametrize(
    "settings",
    [
        ("data.layout=packed",),
        ("data.layout=padded", "trainer.accumulate_grad_batches=2", "model.dropout=0.2",
         "data.num_workers=2"),
        ("optim=muon",),
        ("model.position=rotary", "model.qk_norm=true", "model.activation=relu2",
         "model.residual_init=zero", "data.document_mask=true", "activation_checkpointing=true"),
    ],
    ids=["plain", "everything", "muon", "rotary"],
)  # fmt: skip
def test_thirty_and_thirty_steps_are_sixty(
    train: Train, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    common = (*settings, "optim.decay_steps=60", "trainer.val_check_interval=10")
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    assert train(*common, f"run_dir={straight}", "trainer.max_steps=60") == 0
    assert train(*common, f"run_dir={halves}", "trainer.max_steps=30") == 0
    assert train(*common, f"resume={halves}", "trainer.max_steps=60") == 0
    assert_same_bits(everything_that_counts(halves), everything_that_counts(straight))


def test_a_finished_run_is_left_as_it_is(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=4") == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert train("resume=auto", f"run_dir={run}", "trainer.max_steps=3") == 0
    said = capsys.readouterr().err
    assert "nothing to do" in said
    assert "is at step 4 and trainer.max_steps=3" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_makes_it_another_run_is_refused(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=4") == 0
    assert train(f"resume={run}", "model.n_layer=3", "trainer.max_steps=8") == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "model.n_layer=3" in message
    assert "model.n_layer=2" in message
    assert train(f"resume={run}", "trainer.max_steps=8", "optim.lr=1e-4") == 0
    assert "optim.lr: 0.01 -> 0.0001" in capsys.readouterr().err
    assert read_checkpoint(run / LAST)["global_step"] == 8


def test_resume_auto_starts_afresh_where_nothing_is(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "new"
    assert train("resume=auto", f"run_dir={run}", "trainer.max_steps=2") == 0
    assert read_checkpoint(run / LAST)["global_step"] == 2
    assert train(f"resume={tmp_path / 'nowhere'}") == 2


def test_the_text_may_move_but_not_change(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, run = tmp_path / "a.txt", tmp_path / "run"
    text.write_text("the sea and the stars\n" * 30, encoding="utf-8")
    assert train(f"data.path={text}", f"run_dir={run}", "trainer.max_steps=2") == 0
    text = text.rename(tmp_path / "b.txt")
    again = (f"data.path={text}", f"resume={run}")
    assert train(*again, "trainer.max_steps=4") == 0
    text.write_text("the sea and the tars\n" * 30, encoding="utf-8")
    assert train(*again, "trainer.max_steps=6") == 2
    assert "it has changed since" in capsys.readouterr().err.splitlines()[-1]
    assert read_checkpoint(run / LAST)["global_step"] == 4


def test_what_is_named_on_a_resume_is_judged_with_what_was_saved(
    train: Train, tmp_path: Path
) -> None:
    text, run = tmp_path / "a.txt", tmp_path / "run"
    text.write_text("the sea and the stars\n" * 30, encoding="utf-8")
    bare = train.only(lambda each: not each.startswith("data.path"))
    assert bare(f"data.path={text}", f"run_dir={run}", "trainer.max_steps=2") == 0
    moved = text.rename(tmp_path / "b.txt")
    bare = train.only(lambda each: each.startswith("data.cache_dir"))
    assert bare(f"data.path={moved}", f"resume={run}", "trainer.max_steps=4") == 0
    assert read_checkpoint(run / LAST)["global_step"] == 4


def test_a_run_that_goes_on_without_its_best_finds_a_new_one(train: Train, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    assert train(f"run_dir={run}", "trainer.max_steps=4") == 0
    worse = (f"resume={run / LAST}", f"run_dir={elsewhere}", "trainer.max_steps=6", "optim.lr=10")
    assert train(*worse) == 0
    record = read_checkpoint(elsewhere / BEST)["minigpt"]
    assert record["best_step"] == record["step"] > 4


def test_micro_batches_may_change_at_any_step(train: Train, tmp_path: Path) -> None:
    straight, run = tmp_path / "straight", tmp_path / "run"
    common = ("data.layout=padded", "optim.decay_steps=9", "trainer.val_check_interval=4")
    assert train(*common, f"run_dir={straight}", "trainer.max_steps=9") == 0
    assert train(*common, f"run_dir={run}", "trainer.max_steps=5") == 0
    for steps, parts in ((7, 3), (9, 2)):
        divided = f"trainer.accumulate_grad_batches={parts}"
        assert train(*common, f"resume={run}", f"trainer.max_steps={steps}", divided) == 0
    assert read_checkpoint(run / LAST)["global_step"] == 9
    assert train.losses(run) == pytest.approx(train.losses(straight), rel=1e-5)


def test_the_optimizer_settings_of_a_resume_hold(train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=2") == 0
    changed = ("optim.weight_decay=0.3", "optim.beta1=0.5", "optim.beta2=0.6")
    assert train(f"resume={run}", "trainer.max_steps=4", *changed) == 0
    decayed, rest = read_checkpoint(run / LAST)["optimizer_states"][0]["param_groups"]
    assert decayed["weight_decay"] == 0.3
    assert rest["weight_decay"] == 0
    assert decayed["betas"] == rest["betas"] == (0.5, 0.6)


def test_a_run_goes_back_to_an_older_checkpoint_as_if_the_rest_had_not_been(
    train: Train, tmp_path: Path
) -> None:
    settings = ("trainer.max_steps=8", "trainer.val_check_interval=2", "saving.keep=9")
    straight, run = tmp_path / "straight", tmp_path / "run"
    assert train(*settings, f"run_dir={straight}") == 0
    assert train(*settings, f"run_dir={run}") == 0
    older = run / "checkpoints" / "step_00000004.ckpt"

    def killed(*_: object) -> None:
        raise SystemExit(9)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(saving.CheckpointWriter, "save", killed)
        with pytest.raises(SystemExit):
            train(*settings, f"resume={older}")
    assert read_checkpoint(run / LAST)["global_step"] == 4
    assert train(*settings, f"resume={run}") == 0
    assert_same_bits(everything_that_counts(run), everything_that_counts(straight))


def test_two_processes_cannot_train_in_one_folder(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    assert train("trainer.max_steps=2", f"run_dir={run}") == 0
    monkeypatch.setattr(run_folder, "_PATIENCE", 0.0)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with run_folder.held(run):
        assert train("trainer.max_steps=4", f"resume={run}") == 2
    assert "another process trains in this folder" in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert train("trainer.max_steps=4", f"resume={run}") == 0

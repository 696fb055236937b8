"""A wrong input to train.py: status 2, one line, before slow work, nothing left behind."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import generate
from minigpt.checkpoint import RECORD, read_checkpoint
from minigpt.command_line import run
from minigpt.generation.config import GenerateConfig
from minigpt.run_folder import LAST
from tests.conftest import Train


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with some files to name."""
    folder = tmp_path / "here"
    (folder / "files" / "folder").mkdir(parents=True)
    for place in ("empty_run", "in_the_way/metrics.csv", "in_the_way_2/checkpoints/last.ckpt"):
        (folder / "files" / place).mkdir(parents=True)
    (folder / "files" / "file_for_folder").mkdir()
    files = {
        "empty.txt": b"",
        "blank.txt": b" \n\t\n ",
        "short.txt": b"a",
        "latin.txt": b"caf\xe9 au lait, and more of it",
        "image.png": b"\x89PNG\0\0\0",
        "folder/image.png": b"\x89PNG\0\0\0",
        "not.ckpt": b"hello",
        "file_for_folder/checkpoints": b"",
        "empty_run/config.yaml": b"seed: 1",
        "foreign.json": b'{"weights": [1, 2]}',
        "lines.jsonl": b'{"text": "a"}\n{"text": \n',
    }
    for name, content in files.items():
        (folder / "files" / name).write_bytes(content)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["data.path=files/none.txt"], ["files/none.txt"]),
        (["data.path=files/empty.txt"], ["files/empty.txt", "0 blank"]),
        (["data.path=files/blank.txt"], ["files/blank.txt"]),
        (["data.path=files/short.txt", "data.document=file"], ["short", "1 "]),
        (["data.path=files/latin.txt"], ["files/latin.txt", "byte 3", "data.encoding"]),
        (["data.path=files/folder"], ["files/folder"]),
        (
            ["data=jsonl", "data.document=file", "data.path=files/lines.jsonl"],
            ["lines.jsonl", "line 2"],
        ),
        (["model.n_embd=18", "model.n_head=4"], ["n_embd=18", "n_head=4"]),
        (["model.n_layer=0"], ["model.n_layer=0", "at least 1"]),
        (["model.n_layers=2"], ["model.n_layers", "model.n_layer"]),
        (["optim.lr=-1"], ["optim.lr=-1", "above 0"]),
        (["resume=files/not.ckpt"], ["files/not.ckpt"]),
        (["resume=files/none.ckpt"], ["files/none.ckpt"]),
        (["init_from=files/not.ckpt"], ["files/not.ckpt"]),
        (["data.batch_size=7", "trainer.accumulate_grad_batches=2"], ["7", "2"]),
        (["trainer.precision=16-mixed"], ["16-mixed", "32-true"]),
        (["resume=files/foreign.json"], ["files/foreign.json", "not a checkpoint"]),
        (["resume=files/empty_run"], ["files/empty_run", "no checkpoint in this folder"]),
        (["resume=files/image.png"], ["files/image.png", "not a checkpoint"]),
        (["resume=/dev/null"], ["/dev/null"]),
        (["init_from=files/empty_run"], ["files/empty_run", "no checkpoint in this folder"]),
        (["run_dir=files/empty.txt"], ["files/empty.txt", "not a folder"]),
        (["run_dir=files/empty.txt/below"], ["files/empty.txt", "not a folder"]),
        (["run_dir=files/file_for_folder"], ["file_for_folder/checkpoints is not a folder"]),
        (["run_dir=files/in_the_way"], ["in_the_way/metrics.csv stands where a file"]),
        (["run_dir=files/in_the_way_2"], ["in_the_way_2/checkpoints/last.ckpt stands where"]),
        (["run_dir=/proc/run"], ["run_dir=/proc/run", "/proc cannot be written to"]),
        (["run_dir=/proc/sys/kernel"], ["run_dir=/proc/sys/kernel"]),
        (["run_dir=~no-such-user/x"], ["run_dir=~no-such-user/x"]),
        (["resume=~no-such-user/x"], ["resume=~no-such-user/x"]),
        (["resume=auto", "run_dir=files/empty.txt"], ["files/empty.txt", "not a folder"]),
    ],
    ids=lambda value: value[0] if len(value[0]) > 3 else None,
)
def test_one_line_and_nothing_left(
    here: Path,
    train: Train,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    says: list[str],
) -> None:
    names_a_path = any(each.startswith("data.path=") for each in settings)
    brings_its_own = any(each.startswith("init_from=") for each in settings)
    own = train.only(
        lambda each: (
            not (names_a_path and each.startswith("data.path="))
            and not (brings_its_own and each.startswith(("model.", "tokenizer")))
        )
    )
    before = sorted(here.rglob("*"))
    assert own(*settings) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    for text in says:
        assert text in lines[-1]
    assert not [line for line in lines if "Traceback" in line]
    if any(each.startswith(("run_dir=", "resume=", "init_from=")) for each in settings):
        assert len(lines) == 1  # before the corpus is looked at
    assert sorted(here.rglob("*")) == before


class RunsCode:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def sound(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is in a checkpoint of a real run."""
    run = tmp_path_factory.mktemp("sound") / "run"
    assert train(f"run_dir={run}", "trainer.max_steps=1") == 0
    return read_checkpoint(run / LAST)


@pytest.mark.parametrize("use", ["resume", "init_from", "checkpoint"])
def test_a_bad_checkpoint_is_one_line_whatever_it_is_for(
    here: Path,
    train: Train,
    sound: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    use: str,
) -> None:
    weights, record = sound["state_dict"], sound[RECORD]
    broken = weights | {"model.norm.bias": torch.full((16,), torch.nan)}
    trap = here / "ran"
    for says, bad in (
        ("damaged, or not a checkpoint", sound | {"x": RunsCode(trap)}),
        ("damaged, or not a checkpoint", sound | {"optimizer_states": [RunsCode(trap)]}),
        ("damaged, or not a checkpoint", sound | {RECORD: record | {"config": RunsCode(trap)}}),
        ("not a checkpoint of this program", {"state_dict": weights}),
        ("must be dict", sound | {"state_dict": list(weights.values())}),
        ("norm.bias in its weights is not finite", sound | {"state_dict": broken}),
        ("tokenizer in its record is missing", sound | {RECORD: without(record, "tokenizer")}),
        ("unknown setting moe", sound | {RECORD: record | {"model_config": {"moe": 8}}}),
    ):
        torch.save(bad, here / "bad.ckpt")
        before = sorted(here.rglob("*"))
        if use == "checkpoint":
            status = run(generate.main, GenerateConfig, "generate", ["checkpoint=bad.ckpt"])
        else:
            own = train.only(lambda each: not each.startswith(("model.", "tokenizer")))
            status = own(f"{use}=bad.ckpt", "run_dir=new", "trainer.max_steps=2")
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert err.startswith("error: bad.ckpt: ")
        assert says in err
        assert err.count("\n") == 1
        assert sorted(here.rglob("*")) == before
    assert not trap.exists()


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def test_a_home_is_read_where_no_shell_does(
    here: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here / "home"))
    assert train("run_dir=~/x/run", "trainer.max_steps=1") == 0
    assert (here / "home" / "x" / "run" / "summary.json").is_file()
    assert train("resume=~/x/run", "trainer.max_steps=2") == 0
    assert train("run_dir=~/x/run") == 2
    assert not (here / "~").exists()


def test_a_run_whose_folder_is_spoilt_is_not_resumed_into_it(
    here: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("run_dir=run", "trainer.max_steps=1") == 0
    (here / "run" / "samples.txt").unlink()
    (here / "run" / "samples.txt").mkdir()
    capsys.readouterr()
    assert train("resume=run", "trainer.max_steps=2") == 2
    lines = capsys.readouterr().err.splitlines()
    in_the_way = here / "run" / "samples.txt"
    assert lines == [f"error: resume=run: {in_the_way} stands where a file is to be written"]


def test_no_time_for_a_step_is_said(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(f"run_dir={tmp_path / 'run'}", "trainer.max_time=00:00:00:00") == 1
    assert "trainer.max_time=00:00:00:00 was over" in capsys.readouterr().err.splitlines()[-1]

"""A wrong input to train.py: status 2, one line, before slow work, nothing left behind."""

from pathlib import Path

import pytest

from tests.conftest import Train


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with some files to name."""
    folder = tmp_path / "here"
    (folder / "files" / "folder").mkdir(parents=True)
    files = {
        "empty.txt": b"",
        "blank.txt": b" \n\t\n ",
        "short.txt": b"a",
        "latin.txt": b"caf\xe9 au lait, and more of it",
        "image.png": b"\x89PNG\0\0\0",
        "folder/image.png": b"\x89PNG\0\0\0",
        "not.ckpt": b"hello",
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
        (["data.path=files/empty.txt"], ["files/empty.txt", "1 blank"]),
        (["data.path=files/blank.txt"], ["files/blank.txt"]),
        (["data.path=files/short.txt", "data.document=file"], ["short", "1 "]),
        (["data.path=files/latin.txt"], ["files/latin.txt", "byte 3", "data.encoding"]),
        (["data.path=files/folder"], ["files/folder"]),
        (["data=jsonl", "data.path=files/lines.jsonl"], ["lines.jsonl", "line 2"]),
        (["model.n_embd=18", "model.n_head=4"], ["n_embd=18", "n_head=4"]),
        (["model.n_layer=0"], ["model.n_layer=0", "at least 1"]),
        (["model.n_layers=2"], ["model.n_layers", "model.n_layer"]),
        (["optim.lr=-1"], ["optim.lr=-1", "above 0"]),
        (["resume=files/not.ckpt"], ["files/not.ckpt"]),
        (["resume=files/none.ckpt"], ["files/none.ckpt"]),
        (["init_from=files/not.ckpt"], ["files/not.ckpt"]),
        (["data.batch_size=7", "trainer.accumulate_grad_batches=2"], ["7", "2"]),
        (["trainer.precision=16-mixed"], ["16-mixed", "32-true"]),
        (["run_dir=files/empty.txt"], ["files/empty.txt"]),
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
    own = train.only(lambda each: not (names_a_path and each.startswith("data.path=")))
    before = sorted(here.rglob("*"))
    assert own(*settings) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    for text in says:
        assert text in lines[-1]
    assert not [line for line in lines if "Traceback" in line]
    assert sorted(here.rglob("*")) == before


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_what_was_good(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    settings = ("optim.lr=1e30", "optim.grad_clip=0", "optim.warmup_steps=0")
    assert train(f"run_dir={run}", "trainer.max_steps=50", *settings) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "the loss is nan" in message
    assert "nothing was saved yet" in message
    assert "optim.lr" in message


def test_no_time_for_a_step_is_said(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(f"run_dir={tmp_path / 'run'}", "trainer.max_time=00:00:00:00") == 1
    assert "trainer.max_time=00:00:00:00 was over" in capsys.readouterr().err.splitlines()[-1]

"""The command: which model it looks at, what it shows, where the report goes, its exit status."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt.command_line import run
from minigpt.doctor.__main__ import main
from minigpt.doctor.config import DoctorConfig
from minigpt.doctor.examination import CHECKS
from minigpt.model import gpt
from tests.conftest import Train


def doctor(*settings: str) -> int:
    return run(main, DoctorConfig, "doctor", list(settings))


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(f"run_dir={folder}", "trainer.max_steps=3") == 0
    return folder


def test_a_trained_model_with_its_data(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(f"checkpoint={trained}") == 0
    shown = capsys.readouterr()
    assert "the model is trained" in shown.out  # no judgement on its first loss
    assert ", 1 skipped" in shown.out
    report = (trained / "doctor.html").read_text(encoding="utf-8")
    assert all(check.claim.replace("'", "&#x27;") in report for check in CHECKS)
    assert report.count("data:image/png;base64,") == 3


def test_json_is_one_line_with_every_check(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    checkpoint = trained / "checkpoints" / "last.ckpt"
    assert doctor(f"checkpoint={checkpoint}", f"report={report}", "format=json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [each["check"] for each in found["checks"]] == [check.name for check in CHECKS]
    assert len(found["checks"][-1]["details"]["lengths"]) == 6
    assert report.is_file()


def test_a_new_model_on_named_data(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = train.only(lambda item: item.startswith(("data", "model", "tokenizer")))
    assert doctor(*kept.settings) == 0
    assert (tmp_path / "doctor.html").is_file()


def test_without_the_data_random_tokens_stand_in(
    trained: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    text = next(item for item in train.settings if item.startswith("data.path="))
    lines = Path(text.partition("=")[2])
    hidden = lines.rename(lines.with_suffix(".gone"))
    try:
        assert doctor(f"checkpoint={trained}", f"report={tmp_path / 'a.html'}") == 0
        assert "tokens drawn at random stand in" in capsys.readouterr().out
        named = (f"checkpoint={trained}", f"report={tmp_path / 'a.html'}", text)
        assert doctor(*named) == 2  # what is asked for has to be there
    finally:
        hidden.rename(lines)


def test_a_fault_ends_with_one_and_is_named(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = gpt.GPT.logits
    monkeypatch.setattr(gpt.GPT, "logits", lambda self, hidden: right(self, 2 * hidden))
    assert doctor(f"checkpoint={trained}") == 1
    assert "look at check 12 (parameters) first" in capsys.readouterr().out


def test_json_holds_no_number_that_json_has_not(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = gpt.GPT.logits
    monkeypatch.setattr(gpt.GPT, "logits", lambda self, hidden: right(self, hidden) / 0)
    assert doctor(f"checkpoint={trained}", "format=json") == 1

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_a_report_takes_the_place_of_nothing_else(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = trained / "checkpoints" / "best.ckpt"
    before = checkpoint.read_bytes()
    assert doctor(f"checkpoint={checkpoint}", f"report={checkpoint}") == 2
    assert "is there already and is no report" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before


def test_other_data_than_the_model_was_trained_on_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "other.txt"
    text.write_text("the sea of stars\n" * 40, encoding="utf-8")
    named = (f"checkpoint={trained}", f"data.path={text}", f"report={tmp_path / 'a.html'}")
    assert doctor(*named) == 0
    assert "not the run's own data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("checkpoint=nowhere",), "nowhere: no such run folder"),
        (("checkpoint=runs/a", "model.n_layer=2"), "checkpoint=runs/a: brings its own model"),
        (("model.n_layer=0",), "model.n_layer=0: must be"),
        (("model=tiny", "report=no/where.html"), "report=no/where.html: the folder no does not"),
        (("-m", "seed=1,2"), "sweeps are for train.py"),
    ],
)
def test_a_wrong_setting_gets_a_line(
    settings: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor(*settings) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_run_is_examined_before_it_trains_and_is_the_same_run(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_it, without = tmp_path / "with", tmp_path / "without"
    assert train(f"run_dir={with_it}", "trainer.max_steps=2", "doctor=true") == 0
    assert "13 ok" in capsys.readouterr().err
    assert train(f"run_dir={without}", "trainer.max_steps=2") == 0
    assert train.losses(with_it) == train.losses(without)


def test_a_broken_model_is_not_trained(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = gpt.GPT.logits
    monkeypatch.setattr(gpt.GPT, "logits", lambda self, hidden: right(self, 2 * hidden))
    assert train(f"run_dir={tmp_path / 'run'}", "trainer.max_steps=2", "doctor=true") == 1
    assert "nothing was trained" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_hugging_face_folder_is_examined_with_random_tokens_or_what_is_named(
    gpt2_folder: Callable[..., tuple[Path, Any]],
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = gpt2_folder(1, 2, 16, 16, 3)
    held = {path.name for path in folder.iterdir()}
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert doctor(f"checkpoint={folder}") == 0
    assert "tokens drawn at random: the model brings no data" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == held
    assert [path.name for path in here.iterdir()] == ["doctor.html"]
    data = train.only(lambda item: item.startswith("data"))
    assert doctor(f"checkpoint={folder}", *data.settings) == 0
    assert "corpus text: 80 documents\n" in capsys.readouterr().out

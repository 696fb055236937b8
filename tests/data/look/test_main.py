"""`python -m minigpt.data` as a user calls it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt.command_line import run
from minigpt.data.__main__ import main
from minigpt.data.look.config import LookConfig
from minigpt.data.look.told import WIDTH
from tests.conftest import Train
from tests.data.look.conftest import LINES
from tests.test_layers import NOT_AT_ONCE, among, loaded

Shown = pytest.CaptureFixture[str]


def look(*settings: str) -> int:
    return run(main, LookConfig, "look", list(settings))


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Forty documents in lines of JSON, of which every tenth is held out, and a blank one."""
    texts = [*LINES]
    texts[5] = texts[3]  # twice in training
    texts[19] = texts[2]  # in training and held out
    lines = [json.dumps({"text": text}) for text in ["  \n", *texts]]
    (tmp_path / "my.jsonl").write_text("\n".join(lines), "utf-8")
    return [
        "data=jsonl",
        f"data.path={tmp_path / 'my.jsonl'}",
        f"data.cache_dir={tmp_path / 'cache'}",
        "model.block_size=16",
        "tokenizer=bytes",
        "data.batch_size=4",
    ]


def in_json(capsys: Shown, *settings: str) -> dict[str, Any]:
    assert look(*settings, "format=json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_what_is_said(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert look(*data) == 0
    shown = capsys.readouterr().out
    words = " ".join(shown.split())
    n_bytes = sum(len(text.encode()) for i, text in enumerate(LINES) if i % 10 != 9)
    n_bytes += len(LINES[3].encode()) - len(LINES[5].encode())
    assert "corpus: jsonl, 40 documents left out: 1 blank one (white space or nothing)" in words
    assert f"documents 36 4 bytes of text {n_bytes:,} " in words
    assert "bytes per token 1.000 1.000" in words
    assert "above 16, the context 36 4" in words
    assert "training: 1 document (2.8%) with the text of an earlier one; 2 times" in words
    assert "validation: none" in words
    assert "warning: the training part has 1 of 4 validation documents (25.0%) too" in words
    assert f"document 2, “{LINES[2][:10]}" in words
    assert "is document 3 of training" in words
    assert "The batch of step 0: ∎ end of a document" in shown
    assert shown.count("\n  reads ") == shown.count("\n  predicts ") >= 3
    lines = [line for line in shown.splitlines() if not line.startswith("prepared:")]  # a path
    assert max(map(len, lines)) <= WIDTH
    assert "\x1b" not in shown
    assert not list(here.iterdir())
    assert look(*data) == 0
    again = capsys.readouterr().out
    assert again == shown.replace("made now", "used again")


def test_json_is_one_line_with_all_of_it(data: list[str], capsys: Shown) -> None:
    found = in_json(capsys, *data, "rows=2", "data.layout=padded", "step=3")
    assert (found["train"]["documents"], found["validation"]["documents"]) == (36, 4)
    assert found["left_out"]["blank one"] == 1
    assert (found["train"]["repeats"], found["validation"]["in_training_too"]) == (1, 1)
    assert found["rows"]["of_a_step"] == 4
    assert 0 < found["rows"]["real_share"]["value"] <= 1
    assert found["batch"]["step"] == 3
    first, _ = found["batch"]["rows"]
    assert len(first["inputs"]) == len(first["targets"]) <= 16
    kept = [i for i in first["targets"] if i is not None]
    assert first["targets"] == kept + [None] * (len(first["targets"]) - len(kept))
    assert first["inputs"][1 : len(kept)] == kept[:-1]


def test_a_step_is_the_same_however_it_is_divided(data: list[str], capsys: Shown) -> None:
    whole = in_json(capsys, *data, "rows=4")["batch"]["rows"]
    parts = in_json(capsys, *data, "rows=4", "trainer.accumulate_grad_batches=2")["batch"]["rows"]
    assert sorted(row["inputs"] for row in whole) == sorted(row["inputs"] for row in parts)
    other = in_json(capsys, *data, "rows=4", "seed=1")["batch"]["rows"]
    assert other != whole


@pytest.mark.parametrize("kind", ["bpe", "char", "bytes"])
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_tokenizer_and_layout(
    data: list[str], kind: str, layout: str, tmp_path: Path, capsys: Shown
) -> None:
    report = tmp_path / "report.html"
    settings = (f"tokenizer={kind}", f"data.layout={layout}", "data.document_mask=true")
    assert look(*data, *settings, f"report={report}") == 0
    assert f"report:     {report}\n" in capsys.readouterr().out
    assert report.read_text("utf-8").count("<h3>row ") == 4


def test_the_presets_of_experiments(data: list[str], tmp_path: Path, capsys: Shown) -> None:
    text = tmp_path / "my.txt"
    text.write_text("the sea of stars\n" * 400)
    cache = next(each for each in data if each.startswith("data.cache_dir"))
    found = in_json(capsys, "experiment=shakespeare_char", f"data.path={text}", cache)
    assert (found["block_size"], found["rows"]["of_a_step"]) == (64, 12)
    assert found["tokenizer"]["kind"] == "char"
    found = in_json(capsys, "experiment=overfit", cache, "data.max_documents=100", "step=7")
    assert found["rows"]["of_a_step"] <= 8


def test_the_data_of_a_run(train: Train, tmp_path: Path, capsys: Shown) -> None:
    run_dir = tmp_path / "run"
    assert train(f"run_dir={run_dir}", "trainer.max_steps=2") == 0
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    capsys.readouterr()
    found = in_json(capsys, f"checkpoint={run_dir}")
    assert found["reused"]
    assert (found["block_size"], found["rows"]["of_a_step"]) == (16, 6)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before
    other = tmp_path / "other.txt"
    other.write_text("the sea\nmy heart\n" * 20, "utf-8")
    found = in_json(capsys, f"checkpoint={run_dir}", f"data.path={other}", "data.batch_size=2")
    assert (found["rows"]["of_a_step"], found["train"]["documents"]) == (2, 36)
    assert look(f"checkpoint={run_dir}", "model.n_layer=2") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("brings its own model; leave yours out")


def test_other_data_in_the_tokens_of_a_hugging_face_folder(
    gpt2_folder: Callable[..., tuple[Path, Any]], data: list[str], capsys: Shown
) -> None:
    folder, _ = gpt2_folder(1, 2, 16, 32)
    named = [each for each in data if each.startswith("data") and "batch_size" not in each]
    found = in_json(capsys, f"checkpoint={folder}", *named)
    assert (found["block_size"], found["tokenizer"]["kind"]) == (32, "bytes")
    assert found["rows"]["of_a_step"] > 0
    assert look(f"checkpoint={folder}") == 2
    assert "brings no data of its own" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_costs_nothing_else(data: list[str], capsys: Shown) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    assert look(*data, "report=/dev/full") == 1
    shown = capsys.readouterr()
    assert "cannot write /dev/full" in shown.err
    assert "The batch of step 0" in shown.out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data=text", "data.path=missing.txt"), "missing.txt"),
        (("data=text",), "data.path"),
        (("report=no/where.html",), "report=no/where.html: the folder no does not"),
        (("step=-1",), "step=-1: must be"),
        (("optim.lrr=1",), "unknown setting optim.lrr; the nearest is optim.lr"),
        (("data.batch_size=3", "trainer.accumulate_grad_batches=2"), "cannot be divided"),
        (("checkpoint=nowhere",), "nowhere: no such run folder"),
        (("-m", "seed=1,2"), "sweeps are for train.py"),
    ],
)
def test_a_wrong_setting_gets_a_line(
    settings: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Shown,
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert look(f"data.cache_dir={tmp_path / 'cache'}", *settings) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(here.iterdir())


def test_a_report_takes_the_place_of_nothing_else(data: list[str], capsys: Shown) -> None:
    text = next(each for each in data if each.startswith("data.path="))
    before = Path(text.partition("=")[2]).read_bytes()
    assert look(*data, text.replace("data.path", "report")) == 2
    assert "is there already and is no report" in capsys.readouterr().err
    assert Path(text.partition("=")[2]).read_bytes() == before


def test_help_names_the_command_and_needs_no_heavy_libraries() -> None:
    modules = loaded(
        "from minigpt.command_line import run\n"
        "from minigpt.data.__main__ import main\n"
        "from minigpt.data.look.config import LookConfig\n"
        "assert run(main, LookConfig, 'look', ['--help']) == 0\n"
        "assert run(main, LookConfig, 'look', ['stepp=1']) == 2"
    )
    assert not among(modules, {"torch", "tokenizers", "numpy", *NOT_AT_ONCE})


def test_help_says_how_the_command_is_called(capsys: Shown) -> None:
    assert look("--help") == 0
    assert capsys.readouterr().out.startswith("python -m minigpt.data [key=value ...]\n")

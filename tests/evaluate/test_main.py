"""The command: what it measures and on which documents, what it shows and writes, its refusals."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt.checkpoint import load_model
from minigpt.command_line import run
from minigpt.config import DataConfig
from minigpt.data.corpora import load_corpus, stories
from minigpt.data.corpora.corpus import whole
from minigpt.evaluate.__main__ import main
from minigpt.evaluate.config import EvaluateConfig
from minigpt.generation.logprobs import token_logprobs
from minigpt.model.int8 import is_exact
from tests.conftest import Train


def evaluate(*settings: str) -> int:
    return run(main, EvaluateConfig, "evaluate", ["bootstrap=50", *settings])


Evaluated = Callable[..., dict[str, Any]]


def refuse(word: str) -> None:
    pytest.fail(f"{word} is no JSON")


@pytest.fixture
def evaluated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Evaluated:
    """Runs the command, gives what it says as JSON; the report goes aside."""

    def call(*settings: str) -> dict[str, Any]:
        assert evaluate("format=json", f"report={tmp_path / 'r.html'}", *settings) == 0
        (line,) = capsys.readouterr().out.splitlines()
        return json.loads(line, parse_constant=refuse)

    return call


@pytest.fixture(scope="module")
def trained(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(f"run_dir={folder}", "trainer.max_steps=8", "data.layout=padded",
                 "model.block_size=64") == 0  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def told(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of stories."""
    folder = tmp_path_factory.mktemp("runs") / "stories"
    small = train.only(lambda item: item.startswith(("model", "data.cache_dir", "trainer")))
    assert small(f"run_dir={folder}", "data.max_documents=60", "data.batch_size=4",
                 "model.block_size=128", "trainer.max_steps=6") == 0  # fmt: skip
    return folder


def path_of(train: Train) -> Path:
    setting = next(item for item in train.settings if item.startswith("data.path="))
    return Path(setting.partition("=")[2])


def test_a_padded_run_has_the_loss_of_its_summary(trained: Path, evaluated: Evaluated) -> None:
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    found = evaluated(f"checkpoint={trained}")
    assert "measured on what is held out" in found["data"]
    figures = found["figures"]
    assert figures["nats_per_token"]["value"] == pytest.approx(summary["val_loss"], abs=1e-6)
    assert figures["bits_per_byte"]["value"] == pytest.approx(
        summary["val_bits_per_byte"], abs=1e-6
    )
    assert figures["perplexity"]["low"] < summary["val_perplexity"] < figures["perplexity"]["high"]
    assert "valid_share" not in figures


def test_figures_and_documents_are_those_of_each_text_by_itself(
    trained: Path, train: Train, tmp_path: Path, evaluated: Evaluated
) -> None:
    lines = tmp_path / "documents.jsonl"
    found = evaluated(f"checkpoint={trained}", "split=all", "stride=7", f"documents={lines}")
    loaded = load_model(trained / "checkpoints" / "best.ckpt")
    texts = path_of(train).read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert len(measured) == len(texts) == found["documents"]
    nats = 0.0
    end = loaded.tokenizer.end_id
    for number, (text, line) in enumerate(zip(texts, measured, strict=True), 1):
        ids = [end, *loaded.tokenizer.encode(text), end]
        expected = -sum(token_logprobs(loaded.model, ids, 7))
        nats += expected
        assert line["nats"] == pytest.approx(expected, abs=1e-4)
        assert line["document"] == number
        assert line["tokens"] == len(ids) - 1
        assert (line["bytes"], line["starts"]) == (len(text.encode()), text[:60])
    assert found["bytes"] == sum(len(text.encode()) for text in texts)
    assert found["figures"]["bits_per_byte"]["value"] == pytest.approx(
        nats / math.log(2) / found["bytes"], abs=1e-5
    )


def test_another_text_is_measured_whole(
    trained: Path, tmp_path: Path, evaluated: Evaluated, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "other.txt"
    text.write_text("the sea", encoding="utf-8")  # too short to be split
    found = evaluated(f"checkpoint={trained}", f"data.path={text}", "data.document=file")
    assert (found["documents"], found["bytes"], found["resamples"]) == (1, 7, 0)
    assert "all of it; not the run's own data" in found["data"]
    assert found["figures"]["nats_per_token"]["low"] is None
    assert evaluate(f"checkpoint={trained}", f"data.path={text}", "data.document=file",
                    f"report={tmp_path / 'r.html'}") == 0  # fmt: skip
    assert "one document does not show how much documents differ" in capsys.readouterr().out


def test_a_model_of_ones_own_text_is_measured_on_what_comes_with_the_program(
    train: Train, tmp_path: Path, evaluated: Evaluated
) -> None:
    bytes_too = train.only(lambda item: item != "tokenizer=char")
    run_dir = f"run_dir={tmp_path / 'run'}"
    assert bytes_too(run_dir, "tokenizer=bytes", "trainer.max_steps=1") == 0
    few = ("data.max_documents=3", "samples=2", "bootstrap=0")
    found = evaluated(f"checkpoint={tmp_path / 'run'}", "data=stories", *few)
    assert found["documents"] == 1
    assert "stories" in found["data"]
    assert "may have been trained on some of it" in found["data"]


def test_the_report_is_there_when_nobody_reads_the_figures(
    trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from minigpt.evaluate import __main__ as command

    shown: list[str] = []

    def to_a_reader_who_goes(output: str, text: str) -> None:
        if not output:
            shown.append(text)
            raise BrokenPipeError if report.exists() else AssertionError("shown before written")
        write_output(output, text)

    report = tmp_path / "r.html"
    write_output = command.write_output
    monkeypatch.setattr(command, "write_output", to_a_reader_who_goes)
    assert evaluate(f"checkpoint={trained}", "format=json", f"report={report}") == 1
    assert report.is_file()
    assert len(shown) == 1


def test_the_text_of_the_run_by_another_way_is_its_own(
    trained: Path, train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(path_of(train).read_bytes())
    found = evaluated(f"checkpoint={trained}", f"data.path={copy}")
    assert found["documents"] == 8
    assert "trained" not in found["data"]
    training = evaluated(f"checkpoint={trained}", f"data.path={copy}", "split=train")
    assert training["documents"] == 72


def test_a_run_with_val_path_measures_another_text_without_it(
    train: Train, tmp_path: Path, evaluated: Evaluated
) -> None:
    held, other = tmp_path / "held.txt", tmp_path / "other.txt"
    held.write_text("the night\nthe stars\n", encoding="utf-8")
    other.write_text("my heart\n" * 5, encoding="utf-8")
    run_dir = tmp_path / "run"
    assert train(f"run_dir={run_dir}", "trainer.max_steps=1", f"data.val_path={held}",
                 "data.max_documents=70") == 0  # fmt: skip
    assert evaluated(f"checkpoint={run_dir}")["documents"] == 2
    assert evaluated(f"checkpoint={run_dir}", "split=all")["documents"] == 72
    assert evaluated(f"checkpoint={run_dir}", f"data.path={other}")["documents"] == 5


def test_stories_have_a_floor_and_valid_samples(told: Path, evaluated: Evaluated) -> None:
    found = evaluated(f"checkpoint={told}", "samples=20")
    corpus = load_corpus(DataConfig(corpus="stories", max_documents=60))
    texts = list(whole(corpus.validation()))
    assert found["documents"] == len(texts) == 6
    loaded = load_model(told / "checkpoints" / "best.ckpt")
    targets = sum(len(loaded.tokenizer.encode(text)) + 1 for text in texts)
    floor = -sum(map(stories.log_probability, texts)) / targets
    figures = found["figures"]
    assert found["tokens"] == targets
    assert figures["floor"]["value"] == pytest.approx(floor)
    assert figures["gap"]["value"] == pytest.approx(figures["nats_per_token"]["value"] - floor)
    assert figures["gap"]["low"] < figures["gap"]["value"] < figures["gap"]["high"]
    assert figures["valid_share"]["value"] == 0
    assert 0 < figures["valid_share"]["high"] < 0.2
    assert "valid_share" not in evaluated(f"checkpoint={told}", "samples=0")["figures"]
    without_end = evaluated(f"checkpoint={told}", "samples=0", "score_end=false")
    assert without_end["tokens"] == targets - 6


def test_neither_the_batch_size_nor_the_time_of_day_matters(
    trained: Path, evaluated: Evaluated
) -> None:
    settings = (f"checkpoint={trained}", "dtype=float64")
    first, again, small = (
        evaluated(*settings, *more)["figures"] for more in ((), (), ("batch_size=1",))
    )
    assert first == again
    for name, figure in first.items():
        assert small[name]["value"] == pytest.approx(figure["value"], rel=1e-12)
        assert small[name]["high"] == pytest.approx(figure["high"], rel=1e-12)
    other = evaluated(*settings, "seed=1")["figures"]["bits_per_byte"]
    assert other["value"] == first["bits_per_byte"]["value"]
    assert other["low"] != first["bits_per_byte"]["low"]


def test_a_model_differs_from_itself_by_nothing(trained: Path, evaluated: Evaluated) -> None:
    found = evaluated(f"checkpoint={trained}", f"compare={trained}")
    for unit in ("bits_per_byte", "nats_per_token"):
        difference = found["figures"][f"difference_in_{unit}"]
        assert difference == {"value": 0, "low": 0, "high": 0}
    assert found["share_of_documents_better"] == found["share_of_documents_worse"] == 0
    assert found["verdict"] == "the two are equal on these documents"


@pytest.mark.skipif(not is_exact(), reason="this processor has no exact 8-bit products")
def test_what_weights_of_8_bits_cost_is_a_comparison_of_a_model_with_itself(
    trained: Path, evaluated: Evaluated
) -> None:
    alone = evaluated(f"checkpoint={trained}")["figures"]
    found = evaluated(f"checkpoint={trained}", f"compare={trained}", "quantize=int8")
    figures = found["figures"]
    assert found["quantize"] == "int8"
    assert figures["other_bits_per_byte"] == alone["bits_per_byte"]  # which stays as it is
    difference = figures["difference_in_bits_per_byte"]["value"]
    assert 0 < abs(difference) < 0.01 * alone["bits_per_byte"]["value"]


def test_models_of_other_tokens_are_compared_by_the_byte(
    trained: Path, train: Train, tmp_path: Path, evaluated: Evaluated
) -> None:
    other = tmp_path / "bpe"
    small = train.only(lambda item: item != "tokenizer=char")
    assert small(f"run_dir={other}", "tokenizer=bpe", "tokenizer.vocab_size=270",
                 "trainer.max_steps=3") == 0  # fmt: skip
    lines = tmp_path / "documents.jsonl"
    found = evaluated(f"checkpoint={trained}", f"compare={other}", f"documents={lines}")
    alone = evaluated(f"checkpoint={other}")
    figures = found["figures"]
    assert "difference_in_nats_per_token" not in figures
    assert figures["other_bits_per_byte"] == alone["figures"]["bits_per_byte"]
    assert figures["difference_in_bits_per_byte"]["value"] == pytest.approx(
        figures["other_bits_per_byte"]["value"] - figures["bits_per_byte"]["value"]
    )
    assert found["compare"]["block_size"] == 16
    measured = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    better = [line["other_nats"] < line["nats"] for line in measured]
    assert found["share_of_documents_better"] == sum(better) / len(better)
    assert sum(line["other_nats"] for line in measured) == pytest.approx(
        alone["figures"]["nats_per_token"]["value"] * alone["tokens"]
    )


def test_the_screen_and_the_report(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parent)
    assert evaluate("checkpoint=run") == 0
    shown = capsys.readouterr().out
    for name in ("model:", "data:", "loss:", "perplexity:", "per byte:", "per char:", "speed:"):
        assert f"\n{name}" in f"\n{shown}"
    assert "95% of 50 resamples of the 8 documents" in shown
    assert str(Path("run", "evaluation.html")) in shown
    report = (trained / "evaluation.html").read_text(encoding="utf-8")
    assert report.startswith("<!doctype html>")
    assert "bits per byte" in report
    assert evaluate("checkpoint=run") == 0  # an old report gives way


def test_a_hugging_face_folder_is_measured_on_what_is_named(
    gpt2_folder: Callable[..., tuple[Path, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, _ = gpt2_folder(1, 2, 8, 16, 3)
    held = {path.name for path in folder.iterdir()}
    text = tmp_path / "my.txt"
    text.write_text("the sea\nthe wind\n", encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    named = (f"checkpoint={folder}", "data=text", f"data.path={text}", "data.document=line")
    assert evaluate(*named, f"data.cache_dir={tmp_path / 'cache'}") == 0
    assert Path("evaluation.html").is_file()
    assert {path.name for path in folder.iterdir()} == held
    shown = capsys.readouterr().out
    assert "trained" not in shown
    assert "2 documents, 17 tokens" in shown
    assert evaluate(f"checkpoint={folder}") == 2
    assert "brings no data of its own; name what to measure it on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("checkpoint=nowhere",), "nowhere: no such run folder"),
        (("checkpoint=run", "compare=nowhere"), "nowhere: no such run folder"),
        (("checkpoint=run", "stride=65"), "stride=65: must be at most the model's context, 64"),
        (("checkpoint=run", "stride=0"), "stride=0: must be int or null, at least 1"),
        (("checkpoint=run", "split=test"), "split=test: must be one of validation, train, all"),
        (("checkpoint=run", "report=."), "report=.: is a folder"),
        (("checkpoint=run", "report=run/config.yaml"), "is there already and is no report"),
        (("checkpoint=run", "report=no/r.html"), "report=no/r.html: the folder no does not exist"),
        (("checkpoint=run", "documents=run/summary.json"), "is no list of documents"),
        (("checkpoint=run", "documents=a", "report=a"), "documents=a: is the report too"),
        (("checkpoint=run", "data.path=gone.txt"), "data.path=gone.txt: no such file"),
        (("checkpoint=run", "data.path=umlaut.txt"), "document 2: the character 'ö' (U+00F6)"),
        (
            ("checkpoint=run", "data=stories", "data.path=a.txt"),
            "data.path=a.txt: data=stories reads no file",
        ),
        (("checkpoint=run", "bootstrap=39"), "bootstrap=39: intervals of confidence=0.95 need 40"),
        (("checkpoint=run", "confidence=0.9999"), "need 20,000 resamples or more; 0 for no"),
        (("checkpoint=run", "report=page.html"), "report=page.html: is there already and is no"),
        (("checkpoint=run", "data=jsonl"), "data.path"),
        (("checkpoint=run", "confidence=1"), "confidence=1.0: must be float"),
        (("-m", "seed=1,2"), "sweeps are for train.py"),
    ],
)
def test_a_wrong_setting_gets_a_line(
    settings: tuple[str, ...],
    message: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained.parent)
    Path("umlaut.txt").write_text("the sea\nschön\n", encoding="utf-8")
    Path("page.html").write_text("<!doctype html>\n<p>my own", encoding="utf-8")
    before = {path for path in Path().rglob("*") if path.is_file()}
    assert evaluate(*settings) == 2
    shown = capsys.readouterr()
    assert message in shown.err.splitlines()[-1]
    assert shown.out == ""
    assert {path for path in Path().rglob("*") if path.is_file()} == before


def test_data_that_is_gone_is_named_with_what_to_do(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "lines.txt"
    text.write_bytes(path_of(train).read_bytes())
    assert train(f"run_dir={tmp_path / 'run'}", f"data.path={text}", "trainer.max_steps=1") == 0
    text.unlink()
    capsys.readouterr()
    assert evaluate(f"checkpoint={tmp_path / 'run'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "lines.txt: no such file" in line
    assert "or name other data: data=text" in line

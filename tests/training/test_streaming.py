"""Training on a stream: the run of one process, stopped or not."""

from pathlib import Path

import pytest
import torch

from minigpt.errors import InputError
from minigpt.run_folder import LAST
from minigpt.training.datamodule import CorpusBatches
from tests.conftest import Train

LINES = 400


@pytest.fixture(scope="module")
def streamed(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`train.py` in small, on a file that it tokenizes as it goes."""
    folder = tmp_path_factory.mktemp("stream")
    lines = "\n".join(f"line {i} of the sea, {'the wind ' * (i % 7)}" for i in range(LINES))
    (folder / "my.txt").write_text(lines, "utf-8")
    small = train.only(lambda item: not item.startswith(("data.path=", "tokenizer=")))
    small.settings += (
        f"data.path={folder / 'my.txt'}",
        "data.streaming=true",
        "data.shuffle_buffer=50",
        "tokenizer=bytes",
        "optim.decay_steps=8",
        "optim.warmup_steps=1",
        "trainer.val_check_interval=4",
    )
    return small


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / LAST, weights_only=True)["state_dict"]


def test_a_resumed_run_is_the_run_that_was_not_stopped(streamed: Train, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert streamed(f"run_dir={whole}", "trainer.max_steps=8") == 0
    assert streamed(f"run_dir={stopped}", "trainer.max_steps=4") == 0
    assert streamed(f"resume={stopped}", "trainer.max_steps=8", "data.num_workers=1") == 0
    assert Train.losses(stopped) == Train.losses(whole)
    ours, theirs = weights(stopped), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    state = torch.load(whole / LAST, weights_only=True)["CorpusBatches"]
    assert state["segment"] == 0
    assert state["place"]["epoch"] == 0
    cache = Path(
        next(s for s in streamed.settings if s.startswith("data.cache_dir=")).split("=")[1]
    )
    assert list((cache / "streams").iterdir()) == []


def test_micro_batches_change_nothing(streamed: Train, tmp_path: Path) -> None:
    one, three = tmp_path / "one", tmp_path / "three"
    assert streamed(f"run_dir={one}", "trainer.max_steps=3") == 0
    more = "trainer.accumulate_grad_batches=3"
    assert streamed(f"run_dir={three}", "trainer.max_steps=3", more) == 0
    assert Train.losses(three) == pytest.approx(Train.losses(one), rel=1e-5)


def test_another_beginning_is_not_gone_on_with(
    streamed: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert streamed(f"run_dir={run}", "trainer.max_steps=2") == 0
    other = "\n".join(f"another text {i}" for i in range(LINES))
    (tmp_path / "other.txt").write_text(other, "utf-8")
    capsys.readouterr()
    more = (f"data.path={tmp_path / 'other.txt'}", "trainer.max_steps=4")
    assert streamed.only(lambda _: False)(f"resume={run}", *more) == 2
    assert "not the text that the resumed run was trained on" in capsys.readouterr().err


def test_a_line_that_will_not_do_ends_the_run(
    streamed: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f'{{"text": "the sea and the wind {i}"}}' for i in range(40)]
    (tmp_path / "my.jsonl").write_text("\n".join([*lines, "no JSON"]), "utf-8")
    other = streamed.only(lambda item: not item.startswith(("data=", "data.path=", "data.doc")))
    settings = ("data=jsonl", f"data.path={tmp_path / 'my.jsonl'}", f"run_dir={tmp_path / 'run'}")
    assert other(*settings, "trainer.max_steps=2") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "my.jsonl, line 41: not JSON" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.layout=padded",), "data.layout=padded: a stream has packed rows"),
        (("tokenizer=char",), "tokenizer=char: needs the characters of the whole corpus"),
    ],
)
def test_what_a_stream_cannot_have(
    streamed: Train, settings: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert streamed(*settings) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_place_is_refused() -> None:
    batches = CorpusBatches.__new__(CorpusBatches)
    with pytest.raises(InputError, match="does not say where the stream was"):
        batches.load_state_dict({"segment": "x", "place": {"epok": 1}})

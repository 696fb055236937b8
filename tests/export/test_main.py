"""The command: what it says and writes, what it refuses, what it leaves alone."""

import importlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt.command_line import run
from minigpt.export.__main__ import main
from minigpt.export.check import ReadBack
from minigpt.export.config import ExportConfig
from minigpt.export.place import FOLDER_FILES
from tests.conftest import PROJECT, Train
from tests.export.conftest import Make

Export = Callable[..., Path]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's folder, which the command is started in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(*settings: str) -> int:
    return run(main, ExportConfig, "export", ["checkpoint=model.ckpt", *settings])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(capsys: Captured, *settings: str) -> str:
    """The one line that a command is refused with."""
    capsys.readouterr()
    assert exported(*settings) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_what_is_said(make: Make, here: Path, capsys: Captured) -> None:
    make("bpe", position="sinusoidal", bias=False, n_embd=24)
    assert exported("format=huggingface", "to=out", "dtype=float16") == 0
    said = capsys.readouterr()
    assert "written:    out (huggingface, float16, 6 files, 0.1 MB)" in said.out
    assert "changed:    the sinusoidal positions, as a learned table\n" in said.out
    assert "            no biases, as biases of zero\n" in said.out
    assert "28 tensors: rounded as meant, by at most" in said.out
    assert "20 texts: encoded and decoded as by the model's tokenizer" in said.out
    assert f"{shlex.quote(str(PROJECT / 'generate.py'))} checkpoint=out" in said.out
    assert said.err.splitlines() == ["writing out", "comparing what was written with the model"]
    assert names(here / "out") == sorted(FOLDER_FILES)
    assert exported("format=gguf", "to=~", "dtype=q8_0") == 2  # the home is a folder


def test_a_run_of_train_py_goes_out_in_every_way(
    train: Train, here: Path, capsys: Captured
) -> None:
    assert train(f"run_dir={here / 'run'}", "trainer.max_steps=3") == 0
    for place, form, dtypes in (
        ("folder", "huggingface", ("float32", "float16", "bfloat16")),
        ("model.gguf", "gguf", ("float32", "float16", "q8_0")),
    ):
        for dtype in dtypes:
            settings = ["checkpoint=run", f"format={form}", f"to={place}", f"dtype={dtype}"]
            assert run(main, ExportConfig, "export", [*settings, "overwrite=true"]) == 0
    assert names(here) == ["folder", "model.gguf", "run", "runs"]
    card = (here / "folder" / "README.md").read_text(encoding="utf-8")
    assert "- 3 steps of 6 rows" in card
    capsys.readouterr()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("to=out",), "format= is missing: add format=huggingface (a folder) or format=gguf"),
        (("format=onnx", "to=out"), "format=onnx: must be one of huggingface, gguf or null"),
        (("format=huggingface",), "to= is missing: add to=PATH, the folder to write"),
        (("format=gguf",), "to= is missing: add to=PATH, the file to write"),
        (("format=gguf", "to=out", "dtype=bfloat16"), "dtype=bfloat16: not with format=gguf"),
        (("format=huggingface", "to=out", "dtype=q8_0"), "dtype=q8_0: not with format=huggingface"),
        (("format=gguf", "to=no/where"), "to=no/where: the folder no does not exist"),
        (("format=huggingface", "to=no/where"), "no does not exist"),
        (("format=gguf", "to=model.ckpt"), "to=model.ckpt: exists already"),
        (("format=huggingface", "to=."), "to=.: exists already"),
        (("format=gguf", "to=model.ckpt", "overwrite=true"), "is no GGUF file that this program"),
        (("format=gguf", "to=.", "overwrite=true"), "to=.: is a folder; name a file"),
        (("format=huggingface", "to=model.ckpt", "overwrite=true"), "to=model.ckpt: is a file"),
        (("format=huggingface", "to=.", "overwrite=true"), "holds model.ckpt, which is of no"),
        (("format=gguf", "to=out", "checkpoint=elsewhere"), "elsewhere: no such run folder"),
        (("format=gguf", "to=" + "x" * 300), "cannot be looked at: File name too long"),
        (("format=gguf", "to=/dev/null", "overwrite=true"), "to=/dev/null: is a device or a pipe"),
        (("format=gguf", "to=\udcff"), "is not UTF-8"),
        (("format=gguf", "to=/proc/out"), "/proc cannot be written to"),
        (("format=huggingface", "to=/proc/out"), "/proc cannot be written to"),
    ],
)
def test_a_wrong_setting_gets_a_line_and_leaves_nothing(
    make: Make, here: Path, capsys: Captured, settings: tuple[str, ...], message: str
) -> None:
    make("bytes")
    assert message in refusal(capsys, *settings)
    assert names(here) == ["model.ckpt"]


@pytest.mark.parametrize(
    ("shape", "form", "message"),
    [
        ({"norm_order": "post"}, "gguf", "model.norm_order=post"),
        ({"norm_order": "post"}, "huggingface", "model.norm_order=post"),
        ({"activation": "relu"}, "gguf", "model.activation=relu"),
        ({"activation": "relu2"}, "gguf", "model.activation=relu2"),
        ({"position": "rotary"}, "gguf", "model.position=rotary"),
        ({"position": "rotary"}, "huggingface", "model.position=rotary"),
        ({"qk_norm": True}, "gguf", "model.qk_norm=true"),
        ({"qk_norm": True}, "huggingface", "model.qk_norm=true"),
    ],
)
def test_what_a_format_cannot_say_is_refused_by_name(
    make: Make, here: Path, capsys: Captured, shape: dict[str, Any], form: str, message: str
) -> None:
    make("bytes", **shape)
    assert message in refusal(capsys, f"format={form}", "to=out")
    assert names(here) == ["model.ckpt"]


@pytest.mark.parametrize("form", ["gguf", "huggingface"])
def test_a_number_beyond_the_types_range_is_refused(
    make: Make, here: Path, capsys: Captured, form: str
) -> None:
    import torch

    loaded = make("bytes")
    weights = {f"model.{name}": tensor for name, tensor in loaded.model.state_dict().items()}
    weights["model.blocks.1.mlp.up.weight"][2, 3] = 70000.0
    from minigpt.checkpoint import RECORD

    torch.save({"state_dict": weights, RECORD: loaded.record}, here / "model.ckpt")
    capsys.readouterr()
    assert exported(f"format={form}", "to=out", "dtype=float16") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "dtype=float16: blocks.1.mlp.up.weight holds 70000" in line
    assert names(here) == ["model.ckpt"]
    assert exported(f"format={form}", "to=out") == 0


@pytest.mark.usefixtures("here")
def test_heads_that_are_one_wide_are_refused_by_name(make: Make, capsys: Captured) -> None:
    make("bytes", n_head=8, n_embd=8)
    line = refusal(capsys, "format=gguf", "to=out.gguf")
    assert "model.n_head=8 and model.n_embd=8: llama.cpp has no heads that are one wide" in line
    assert exported("format=huggingface", "to=out") == 0


def test_the_folder_one_is_in_is_not_taken_away(
    make: Make, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("bytes")
    assert exported("format=huggingface", "to=out") == 0
    monkeypatch.chdir(here / "out")
    again = ("checkpoint=../model.ckpt", "format=huggingface", "to=.", "overwrite=true")
    assert "holds the folder that you are in" in refusal(capsys, *again)
    assert names(here / "out") == sorted(FOLDER_FILES)


def test_a_link_that_leads_to_itself(make: Make, here: Path, capsys: Captured) -> None:
    make("bytes")
    (here / "out").symlink_to("out")
    for form in ("huggingface", "gguf"):
        line = refusal(capsys, f"format={form}", "to=out", "overwrite=true")
        assert "to=out: " in line
    assert (here / "out").is_symlink()


@pytest.mark.parametrize("form", ["huggingface", "gguf"])
def test_what_comes_to_lie_there_meanwhile_stays(
    make: Make, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    written = importlib.import_module(f"minigpt.export.{form}")

    def while_somebody_else_writes(made: Path) -> ReadBack:
        (here / "out").write_text("a thesis")
        return read_back(made)

    make("bytes")
    read_back: Callable[[Path], ReadBack] = written.read_back
    monkeypatch.setattr(written, "read_back", while_somebody_else_writes)
    capsys.readouterr()
    assert exported(f"format={form}", "to=out") == 2
    assert "to=out: exists already" in capsys.readouterr().err
    assert (here / "out").read_text() == "a thesis"
    assert names(here) == ["model.ckpt", "out"]


def test_gguf_without_its_package(
    make: Make, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minigpt.export import config

    make("bytes")
    monkeypatch.setattr(config, "find_spec", lambda name: name if name != "gguf" else None)
    assert "pip install 'gguf>=" in refusal(capsys, "format=gguf", "to=out")
    assert names(here) == ["model.ckpt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("form", ["gguf", "huggingface"])
def test_a_place_that_cannot_be_written(
    make: Make, here: Path, capsys: Captured, form: str
) -> None:
    make("bytes")
    (here / "shut").mkdir(mode=0o500)
    assert "shut cannot be written to" in refusal(capsys, f"format={form}", "to=shut/out")


def test_a_full_disk_leaves_nothing(
    make: Make, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minigpt.export import gguf

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    make("bytes")
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    assert exported("format=gguf", "to=out") == 1
    assert "cannot write" in capsys.readouterr().err
    assert names(here) == ["model.ckpt"]


class TestOverwriting:
    def test_an_earlier_export_is_replaced_when_asked_to(
        self, make: Make, here: Path, capsys: Captured
    ) -> None:
        make("bytes")
        for form in ("huggingface", "gguf"):
            assert exported(f"format={form}", f"to={form}") == 0
            assert "overwrite=true" in refusal(capsys, f"format={form}", f"to={form}")
        before = {path: path.stat().st_size for path in (here / "gguf", here / "huggingface")}
        make("char")
        for form in ("huggingface", "gguf"):
            assert exported(f"format={form}", f"to={form}", "overwrite=true") == 0
        assert {path: path.stat().st_size for path in before} != before
        assert names(here) == ["gguf", "huggingface", "model.ckpt"]
        assert names(here / "huggingface") == sorted(FOLDER_FILES)

    def test_an_empty_folder_and_an_empty_file_too(self, make: Make, here: Path) -> None:
        make("bytes")
        (here / "folder").mkdir()
        (here / "file").touch()
        assert exported("format=huggingface", "to=folder", "overwrite=true") == 0
        assert exported("format=gguf", "to=file", "overwrite=true") == 0

    @pytest.mark.parametrize("name", ["notes.txt", "config.yaml", ".hidden", "sub/a", "model.ckpt"])
    def test_a_folder_that_holds_more_is_left_alone(
        self, make: Make, here: Path, capsys: Captured, name: str
    ) -> None:
        make("bytes")
        assert exported("format=huggingface", "to=out") == 0
        more = here / "out" / name
        more.parent.mkdir(exist_ok=True)
        more.write_text("mine")
        line = refusal(capsys, "format=huggingface", "to=out", "overwrite=true")
        assert f"holds {name.partition('/')[0]}, which is of no export" in line
        assert more.read_text() == "mine"
        assert names(here) == ["model.ckpt", "out"]

    def test_a_model_of_others_is_left_alone(
        self, make: Make, here: Path, capsys: Captured
    ) -> None:
        make("bytes")
        assert exported("format=huggingface", "to=out") == 0
        (here / "out" / "README.md").write_text("# GPT-2\n")
        line = refusal(capsys, "format=huggingface", "to=out", "overwrite=true")
        assert "no README.md that an export by this program writes" in line
        (here / "a.gguf").write_bytes(b"GGUF of somebody else")
        line = refusal(capsys, "format=gguf", "to=a.gguf", "overwrite=true")
        assert "is no GGUF file that this program wrote" in line
        assert (here / "a.gguf").read_bytes() == b"GGUF of somebody else"

    def test_a_run_is_never_replaced(self, train: Train, here: Path, capsys: Captured) -> None:
        assert train(f"run_dir={here / 'run'}", "trainer.max_steps=2") == 0
        before = sorted(path for path in here.rglob("*"))
        for settings in (("format=huggingface", "to=run"), ("format=gguf", "to=run")):
            capsys.readouterr()
            given = ["checkpoint=run", *settings, "overwrite=true"]
            assert run(main, ExportConfig, "export", given) == 2
        assert sorted(path for path in here.rglob("*")) == before

    def test_what_was_there_stays_where_the_new_one_fails(
        self, make: Make, here: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make("bytes")
        for form in ("huggingface", "gguf"):
            assert exported(f"format={form}", f"to={form}") == 0
        before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
        make("bytes")
        monkeypatch.setattr("minigpt.export.check.prompt_ids", lambda *_, **__: [0])
        for form in ("huggingface", "gguf"):
            assert exported(f"format={form}", f"to={form}", "overwrite=true") == 1
        assert "encodes otherwise" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before

    def test_a_link_stays_and_what_it_points_at_is_written(self, make: Make, here: Path) -> None:
        make("bytes")
        (here / "link").symlink_to(here / "real")
        assert exported("format=huggingface", "to=link") == 0
        assert (here / "link").is_symlink()
        assert names(here / "real") == sorted(FOLDER_FILES)


def test_any_folder_can_be_read_by_others(make: Make, export: Export) -> None:
    """The weights are no more private than the other files."""
    make("bytes")
    folder = export("huggingface")
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1

"""The commands beside train.py and generate.py, as processes of their own in a fresh folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_doctor_looks_at_a_new_model_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the sea, the wind and the stars\n" * 30, encoding="utf-8")
    small = (
        "model.n_layer=1", "model.n_head=2", "model.n_embd=16", "model.block_size=32",
        "data=text", f"data.path={text}", f"data.cache_dir={tmp_path / 'cache'}",
        "tokenizer=char", "device=cpu",
    )  # fmt: skip
    done = run("-m", "minigpt.doctor", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " ok" in done.stdout.splitlines()[-2]
    assert "failed" not in done.stdout
    assert (tmp_path / "doctor.html").is_file()
    refused = run("-m", "minigpt.doctor", "model.n_layers=1", cwd=tmp_path)
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "unknown setting model.n_layers; the nearest is model.n_layer" in line


def test_a_page_of_the_ladder_finds_the_program_by_itself(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "examples", tmp_path / "project" / "examples")
    (tmp_path / "project" / "minigpt").symlink_to(PROJECT / "minigpt")
    page = tmp_path / "project" / "examples" / "01_attention.py"
    done = subprocess.run(
        [sys.executable, str(page)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "the same vectors: yes" in done.stdout

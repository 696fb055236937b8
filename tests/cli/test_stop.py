"""Ctrl-C and SIGTERM: the run stops at a step, saves, and says how to go on."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minigpt.checkpoint import read_checkpoint
from minigpt.run_folder import LAST

PROJECT = Path(__file__).resolve().parents[2]
SMALL = (
    "data=text", "data.path=text.txt", "data.cache_dir=cache", "tokenizer=char",
    "model.n_layer=1", "model.n_embd=16", "model.n_head=2", "model.block_size=16",
    "data.batch_size=4", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu",
)  # fmt: skip


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_stopped_run_is_saved_and_goes_on(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is it. " * 40, encoding="utf-8")
    command = [sys.executable, str(PROJECT / "train.py"), *SMALL, "run_dir=run"]
    process = subprocess.Popen(
        [*command, "trainer.max_steps=1000000", "trainer.val_check_interval=500000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "run" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(metrics.read_bytes().splitlines()) > 5):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == status
    step = read_checkpoint(tmp_path / "run" / LAST)["global_step"]
    assert step >= 5
    assert f"step {step}" in message
    assert "Traceback" not in message
    shown = shlex.split(message.strip().splitlines()[-1])
    assert shown == ["python", str(PROJECT / "train.py"), "resume=run"]
    resumed = subprocess.run(
        [sys.executable, *shown[1:], f"trainer.max_steps={step + 3}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert read_checkpoint(tmp_path / "run" / LAST)["global_step"] == step + 3

"""In from Hugging Face, through training, and out again, by the commands a user types."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.training.metrics_file import column, read_metrics
from tests.cli.test_scripts import run
from tests.conftest import PROJECT

MakeFolder = Callable[..., tuple[Path, Any]]


def said_by(folder: Path, *command: str) -> str:
    """Run a command of the project in a folder; what it said on standard output."""
    done = run(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_gpt2_is_tuned_on_shakespeare_resumed_sampled_exported_and_measured(
    gpt2_folder: MakeFolder, shared_data: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    folder, _ = gpt2_folder(2, 4, 64, 64)
    train, generate = str(PROJECT / "train.py"), str(PROJECT / "generate.py")
    text = f"data.path={shared_data / 'tinyshakespeare.txt'}"
    steps = ["optim.lr=3e-3", "optim.decay_steps=80", "trainer.val_check_interval=20"]
    begun = [f"init_from={folder.name}", "data=text", text, "run_dir=run", "data.batch_size=8"]
    said_by(tmp_path, train, *begun, *steps, "trainer.max_steps=40", f"data.cache_dir={tmp_path}")
    said_by(tmp_path, train, "resume=run", "trainer.max_steps=80")
    losses = [loss for _, loss in column(read_metrics(tmp_path / "run/metrics.csv"), "val_loss")]
    assert len(losses) == 4
    assert losses[-1] < losses[0] < 6.0
    said = ["prompt=ROMEO:", "temperature=0", "max_new_tokens=20", "echo=false"]
    sampled = said_by(tmp_path, generate, "checkpoint=run", *said)

    said_by(tmp_path, "-m", "minigpt.export", "checkpoint=run", "format=huggingface", "to=out")
    assert said_by(tmp_path, generate, "checkpoint=out", *said) == sampled
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("ROMEO:", return_tensors="pt")
    written = model.generate(**ids, max_new_tokens=20, do_sample=False)
    assert tokenizer.decode(written[0, ids["input_ids"].size(1) :]) + "\n" == sampled

    (tmp_path / "line.txt").write_text("To be, or not to be: that is the question.")
    measured = json.loads(
        said_by(
            tmp_path, "-m", "minigpt.evaluate", "checkpoint=out", "data=text",
            "data.path=line.txt", "format=json", "report=line.html",
        )
    )  # fmt: skip
    end = tokenizer.eos_token_id
    line = [end, *tokenizer((tmp_path / "line.txt").read_text())["input_ids"], end]
    tokens = torch.tensor([line])
    assert tokens.size(1) <= 64
    with torch.no_grad():
        loss = model(tokens, labels=tokens).loss.item()
    assert measured["figures"]["nats_per_token"]["value"] == pytest.approx(loss, abs=1e-5)

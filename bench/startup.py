"""How long commands take to begin: seconds of whole processes, over the import none can avoid.

python bench/startup.py [rounds=5]

`generate.py` until its first token is on standard output, of the default model and of one of
GPT-2's size with random weights; `train.py` on a prepared corpus until the line of its first step
is in metrics.csv; `--help` and a wrong setting until the process ends. In turns with
`import torch` and `import lightning.pytorch`. The text pipeline of `transformers`, on a folder of
the same two models, stands beside them; it shows its token last and is held to nothing.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from record import FIRST_SEED, PROJECT, keep, machine, options, run

sys.path.insert(0, str(PROJECT))

from minigpt.checkpoint import MODEL_PREFIX, RECORD, write_checkpoint
from minigpt.config import ModelConfig, plain
from minigpt.data.tokenizer_files import read_tokenizer
from minigpt.model.gpt import GPT

#: Seconds that a start may take over the import it cannot avoid, and at most in all.
GENERATE_OVER_TORCH, TRAIN_OVER_LIGHTNING, ANSWER = 0.6, 1.5, 1.0
#: Seconds between looks at the metrics file.
LOOK_EVERY = 0.005
#: Where GPT-2's vocabulary lies.
TOKENIZER = PROJECT.parent / "shared" / "data" / "gpt2_tokenizer"

PIPELINE = """
import sys
from transformers import pipeline
write = pipeline("text-generation", model=sys.argv[1], device="cpu")
print(write("Once upon", max_new_tokens=1, do_sample=False)[0]["generated_text"])
"""


class Start(NamedTuple):
    """Seconds until what was waited for was there, by the clock, and until the end of the process.

    `cpu` is what the processor took in all, until a process that would go on was stopped.
    """

    begun: float
    cpu: float
    ended: float | None = None


class Case(NamedTuple):
    """A command, the status it ends with, and the file whose second line it is stopped at."""

    command: tuple[str, ...]
    status: int = 0
    stopped_at: Path | None = None


def measured(case: Case) -> Start:
    """One start: until the first byte on standard output, or a second line in a file."""
    if case.stopped_at is not None:
        shutil.rmtree(case.stopped_at.parent, ignore_errors=True)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *case.command],
        cwd=PROJECT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdout is not None
    if case.stopped_at is None:
        process.stdout.read(1)
    else:
        _wait_for_a_step(case.stopped_at, process)
        process.kill()
    begun = time.perf_counter() - started
    while process.stdout.read(1 << 16):
        pass
    _, status, used = os.wait4(process.pid, 0)
    ended = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)  # so that nobody waits for it again
    cpu = used.ru_utime + used.ru_stime
    if case.stopped_at is not None:
        return Start(begun, cpu)
    if process.returncode != case.status:
        sys.exit(f"python {' '.join(case.command)}: status {process.returncode}")
    return Start(begun, cpu, ended)


def _wait_for_a_step(metrics: Path, process: "subprocess.Popen[bytes]") -> None:
    while not metrics.is_file() or metrics.read_bytes().count(b"\n") < 2:
        if process.poll() is not None:
            sys.exit(f"train.py ended before its first step: status {process.returncode}")
        time.sleep(LOOK_EVERY)


def gpt2_checkpoint(path: Path) -> Path:
    """Write a checkpoint of GPT-2's size and vocabulary, its weights random."""
    tokenizer = read_tokenizer(TOKENIZER)
    config = ModelConfig(n_layer=12, n_head=12, n_embd=768, block_size=1024)
    torch.manual_seed(FIRST_SEED)
    model = GPT(config, tokenizer.vocab_size)
    record: dict[str, Any] = {
        "model_config": plain(config),
        "vocab_size": model.vocab_size,
        "tokenizer": tokenizer.to_json(),
        "documents": 1,
    }
    weights = {MODEL_PREFIX + name: tensor for name, tensor in model.state_dict().items()}
    write_checkpoint(path, {"state_dict": weights, RECORD: record})
    return path


def cases(folder: Path) -> dict[str, Case]:
    """What is measured; makes the corpus, the checkpoints and the folders that it needs."""
    cache, trained = f"data.cache_dir={folder / 'cache'}", folder / "trained"
    run(
        "train.py", f"run_dir={trained}", cache, "trainer.accelerator=cpu",
        "trainer.max_steps=1", "trainer.limit_val_batches=1",
    )  # fmt: skip
    models = {"tiny": trained, "gpt2": gpt2_checkpoint(folder / "gpt2.ckpt")}
    measured_cases = {
        "import_torch": Case(("-c", "import torch; print(1)")),
        "import_lightning": Case(("-c", "import lightning.pytorch; print(1)")),
        "train": Case(
            (
                "train.py", f"run_dir={folder / 'run'}", cache, "trainer.accelerator=cpu",
                "trainer.max_steps=1000",
            ),
            stopped_at=folder / "run" / "metrics.csv",
        ),
        "train_help": Case(("train.py", "--help")),
        "train_wrong_setting": Case(("train.py", "optim.lrr=1"), status=2),
        "generate_help": Case(("generate.py", "--help")),
        "generate_wrong_setting": Case(("generate.py", "temprature=1"), status=2),
    }  # fmt: skip
    for name, model in models.items():
        exported = folder / f"{name}_huggingface"
        run("-m", "minigpt.export", "format=huggingface", f"checkpoint={model}", f"to={exported}")
        settings = ("prompt=Once upon", "echo=false", "device=cpu", "max_new_tokens=1", "seed=1")
        measured_cases[f"generate_{name}"] = Case(("generate.py", f"checkpoint={model}", *settings))
        measured_cases[f"transformers_{name}"] = Case(("-c", PIPELINE, str(exported)))
    return measured_cases


def shown(starts: list[Start]) -> dict[str, float]:
    """Medians, with the least and the greatest of what counts."""
    begun = [start.begun for start in starts]
    medians = {"begun": median(begun), "least": min(begun), "greatest": max(begun)}
    medians["cpu"] = median(start.cpu for start in starts)
    ended = [start.ended for start in starts if start.ended is not None]
    return medians | ({"ended": median(ended)} if ended else {})


def over(
    starts: Mapping[str, list[Start]], name: str, library: str, of: Callable[[Start], Any]
) -> float:
    """Seconds until a command has begun over those of an import, round by round; the median."""
    pairs = zip(starts[name], starts[library], strict=True)
    return median(start.begun - of(bare) for start, bare in pairs)


def main(rounds: int) -> None:
    """Measure, show and keep."""
    facts = machine()
    with tempfile.TemporaryDirectory() as folder:
        all_cases = cases(Path(folder))
        for case in all_cases.values():  # what is read from the disk once
            measured(case)
        starts: dict[str, list[Start]] = {name: [] for name in all_cases}
        for _ in range(rounds):
            for name, case in all_cases.items():
                starts[name].append(measured(case))
    bare = {"generate_tiny": "torch", "generate_gpt2": "torch", "train": "lightning"}
    allowed = {"torch": GENERATE_OVER_TORCH, "lightning": TRAIN_OVER_LIGHTNING}
    process = {
        name: over(starts, name, f"import_{library}", lambda start: start.ended)
        for name, library in bare.items()
    }
    answers = {
        name: max(start.ended or start.begun for start in starts[name])
        for name in starts
        if name.endswith(("_help", "_setting"))
    }
    keep(
        "startup",
        facts,
        {
            "rounds": rounds,
            "seconds": {name: shown(each) for name, each in starts.items()},
            "over_the_process_that_imports": process,
            "over_the_import_alone": {
                name: over(starts, name, f"import_{library}", lambda start: start.begun)
                for name, library in bare.items()
            },
            "reached": {name: process[name] <= allowed[library] for name, library in bare.items()}
            | {name: slowest <= ANSWER for name, slowest in answers.items()},
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=5))

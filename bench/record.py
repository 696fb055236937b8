"""What the benchmarks share: running the program as a user does, and keeping what it gave."""

import datetime
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "bench" / "results"
FIRST_SEED = 1337
LIBRARIES = ("torch", "lightning", "hydra-core", "tokenizers", "numpy")


def options(arguments: list[str], **defaults: int) -> dict[str, int]:
    """The whole numbers that `key=value` arguments give, over their defaults."""
    given = dict(defaults)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in defaults or not value.isdecimal():
            sys.exit(f"{argument}: the options are whole numbers for {', '.join(defaults)}")
        given[key] = int(value)
    return given


def shared_data(name: str) -> Path:
    """A real text, which lies in shared/data/ beside the checkout."""
    path = PROJECT.parent / "shared" / "data" / name
    if not path.is_file():
        sys.exit(f"{path}: this benchmark's text is not there")
    return path


def run(*command: str) -> str:
    """Run a Python script of the project; its standard output. Ends the benchmark if it fails."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"python {' '.join(command)}: status {done.returncode}")
    return done.stdout


def train(folder: Path, *settings: str) -> dict[str, Any]:
    """Run `train.py` into `folder`; its summary, with the seconds of the whole command."""
    started = time.perf_counter()
    run("train.py", *settings, f"run_dir={folder}")
    seconds = time.perf_counter() - started
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary | {"command_seconds": seconds}


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Of Python and of the libraries that the time is spent in."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def commit() -> str | None:
    """The commit measured, with a + behind it if files differ from it; None without git."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return answer.stdout.strip() or None


def keep(name: str, facts: dict[str, Any], measured: dict[str, Any]) -> None:
    """Show what was measured and write it to `results/`, one file a day and benchmark.

    `facts` is the `machine()` from before the measurement.
    """
    today = datetime.datetime.now().astimezone().date().isoformat()
    arguments = [Path(sys.argv[0]).name, *sys.argv[1:]]
    result = {
        "date": today,
        "command": f"python bench/{' '.join(arguments)}",
        "commit": commit(),
        "machine": facts,
        "versions": versions(),
        "measured": measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{today}-{name}.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(measured, indent=2, ensure_ascii=False))
    print(path.relative_to(PROJECT))

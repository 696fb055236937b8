"""Ten thousand steps of a very small model: does a long run grow?

python bench/soak.py [steps=10000]

The run is `train.py`, looked at from outside (Linux: /proc) from its thousandth step on. Its first
and its last tenth after that are compared by their medians: what a save or a validation takes for
a moment is no growth.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from record import PROJECT, keep, machine, options

#: Steps before memory counts: caches fill, and each kind of milestone has come up.
WARM_UP = 1000
#: Of resident memory, as a share of what it was after the warm-up.
GROWTH = 0.01
#: Seconds between two looks.
INTERVAL = 0.1

SETTINGS = (
    "model.n_layer=1",
    "model.n_head=2",
    "model.n_embd=16",
    "model.block_size=32",
    "tokenizer=bytes",
    "data.layout=packed",
    "data.batch_size=4",
    "trainer.accelerator=cpu",
    "trainer.limit_val_batches=4",
    "trainer.val_check_interval=250",
    "saving.every_n_steps=100",
    "saving.keep=2",
)


def looks(process: subprocess.Popen[bytes], metrics: Path) -> Iterator[dict[str, int]]:
    """What the process holds at a step, again and again until it ends: bytes, and counts."""
    place = Path("/proc", str(process.pid))
    while process.poll() is None:
        time.sleep(INTERVAL)
        lines = metrics.read_bytes().splitlines() if metrics.is_file() else []
        if len(lines) < 2:
            continue
        try:
            status = dict(
                line.split(":\t", 1)
                for line in (place / "status").read_text(encoding="utf-8").splitlines()
            )
            yield {
                "step": int(lines[-1].partition(b",")[0]),
                "resident_bytes": 1024 * int(status["VmRSS"].split()[0]),
                "anonymous_bytes": 1024 * int(status["RssAnon"].split()[0]),
                "threads": int(status["Threads"]),
                "open_files": len(os.listdir(place / "fd")),  # noqa: PTH208  (only their number)
            }
        except (KeyError, FileNotFoundError):  # it has just ended
            return


def main(steps: int) -> None:
    """Measure, show and keep."""
    if steps < 5 * WARM_UP:
        sys.exit(f"steps={steps}: at least {5 * WARM_UP}, for the first {WARM_UP} do not count")
    facts = machine()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        process = subprocess.Popen(
            [sys.executable, "train.py", *SETTINGS, f"run_dir={run_dir}",
             f"trainer.max_steps={steps}"],
            cwd=PROJECT,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seen = [look for look in looks(process, run_dir / "metrics.csv") if look["step"] > WARM_UP]
        if process.wait() != 0:
            sys.exit(f"train.py: status {process.returncode}")
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    # what is looked at later is the report at the end of the run
    during = [look for look in seen if look["step"] < steps]
    tenth = (steps - WARM_UP) // 10
    parts = {
        "first": [look for look in during if look["step"] <= WARM_UP + tenth],
        "last": [look for look in during if look["step"] > steps - tenth],
    }
    medians = {
        part: {name: median(look[name] for look in looks) for name in looks[0]}
        for part, looks in parts.items()
    }
    first, last = medians["first"], medians["last"]
    growth = last["resident_bytes"] / first["resident_bytes"] - 1
    keep(
        "soak",
        facts,
        {
            "steps": steps,
            "settings": " ".join(SETTINGS),
            "looks": {part: len(looks) for part, looks in parts.items()},
            "medians": medians,
            "most_open_files": {
                part: max(look["open_files"] for look in looks) for part, looks in parts.items()
            },
            "resident_growth": growth,
            "anonymous_bytes_per_step": (last["anonymous_bytes"] - first["anonymous_bytes"])
            / (last["step"] - first["step"]),
            "train_seconds": summary["train_seconds"],
            "reached": {
                "memory": growth < GROWTH,
                "open files": last["open_files"] <= first["open_files"],
                "threads": last["threads"] <= first["threads"],
            },
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], steps=10_000))

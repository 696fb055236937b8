"""How the cost of training grows: with the corpus, with the batch, and with the length of a row.

python bench/growth.py [rounds=6]

1. The real train.py on corpora of 1, 10 and 100 times the size: the time of a step must not grow.
2. The real train.py with 8 to 64 rows a step: the time of a token must not grow.
3. The share of attention in a step of `small`'s width as a row doubles from 256 to 4,096 tokens and
   the tokens of a step stay the same, against what counting operations says. A plot shows it.

The contestants of each part have their turns one after the other (`turns.py`).
"""

import datetime
import itertools
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from record import FIRST_SEED, PROJECT, RESULTS, keep, machine, options
from torch.profiler import ProfilerActivity, profile
from turns import contest, seconds_a_step, spread

sys.path.insert(0, str(PROJECT))

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT
from minigpt.training.heap import keep_freed_memory

DOCUMENTS = (1_000, 10_000, 100_000)
ROWS = (8, 16, 32, 64)
#: A step's time may differ so much between the corpora, and a token's between the batches: the
#: machine's own noise. Small batches may cost more a token, never less than a large one.
TOLERANCE = 0.1
LENGTHS = (256, 512, 1024, 2048, 4096)
TOKENS = 4096


def train_command(folder: Path, name: str, *settings: str) -> list[str]:
    """A contestant that is train.py."""
    return [
        "bench/trainers.py", "minigpt", "char", "trainer.accelerator=cpu",
        "trainer.max_steps=1000000", "trainer.val_check_interval=1000000",
        "optim.warmup_steps=100", f"data.cache_dir={folder / 'cache'}",
        f"run_dir={folder / name}", *settings,
    ]  # fmt: skip


def with_corpus(folder: Path, rounds: int) -> dict[str, Any]:
    """Milliseconds a step by the number of stories."""
    commands = {
        str(n): train_command(folder, f"corpus{n}", f"data.max_documents={n}", "data.layout=packed")
        for n in DOCUMENTS
    }
    with contest(commands) as contestants:
        times = seconds_a_step(contestants, 10, rounds)
    smallest, largest = (median(times[str(n)]) for n in (DOCUMENTS[0], DOCUMENTS[-1]))
    return {
        "milliseconds_a_step": {n: spread([1000 * t for t in each]) for n, each in times.items()},
        "growth": largest / smallest - 1,
        "reached": abs(largest / smallest - 1) <= TOLERANCE,
    }


def with_batch(folder: Path, rounds: int) -> dict[str, Any]:
    """Microseconds a token by the rows of a step."""
    commands = {
        str(n): train_command(
            folder, f"rows{n}", "data.max_documents=2000", "data.layout=packed",
            f"data.batch_size={n}",
        )
        for n in ROWS
    }  # fmt: skip
    with contest(commands) as contestants:
        times = seconds_a_step(contestants, 4, rounds)
    a_token = {n: [1e6 * t / (int(n) * 128) for t in each] for n, each in times.items()}
    costs = [median(a_token[str(n)]) for n in ROWS]
    return {
        "microseconds_a_token": {n: spread(each) for n, each in a_token.items()},
        "reached": all(b <= a * (1 + TOLERANCE) for a, b in itertools.pairwise(costs)),
    }


def attention_share(T: int, steps: int) -> dict[str, float]:
    """Attention's part of the seconds and of the operations of steps on rows of T tokens."""
    config = ModelConfig(n_layer=6, n_head=6, n_embd=384, block_size=T)
    torch.manual_seed(FIRST_SEED)
    model = GPT(config, 256)
    tokens = torch.randint(256, (TOKENS // T, T))

    def step() -> None:
        model.zero_grad()
        model.hidden(tokens).sum().backward()

    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            step()
    events = cast("Any", profiled.key_averages())  # which has no types
    spent: dict[str, float] = {each.key: each.self_cpu_time_total for each in events}
    attention = sum(time for key, time in spent.items() if "scaled_dot_product" in key)
    # forward q kᵀ and the weights times v, for half of the T² pairs; the backward pass computes
    # q kᵀ again and four products more
    attention_flops = config.n_layer * config.n_embd * T * (2 + 5)
    matrix_flops = 12 * config.n_layer * config.n_embd**2 * 6
    return {
        "measured": attention / sum(spent.values()),
        "by operations": attention_flops / (attention_flops + matrix_flops),
        "milliseconds": sum(spent.values()) / 1000 / steps,
    }


def draw(shares: dict[int, dict[str, float]], path: Path) -> None:
    """The two shares over the length of a row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, style in (("measured", "o-"), ("by operations", "k--")):
        axes.plot(list(shares), [100 * each[name] for each in shares.values()], style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(shares), [f"{T:,}" for T in shares])
    axes.set_ylim(0, 100)
    axes.set(xlabel="tokens a row", ylabel="attention, % of a step")
    axes.set_title(f"384 wide, {TOKENS:,} tokens a step")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(rounds: int) -> None:
    """Measure, show and keep."""
    torch.set_num_threads(2)
    keep_freed_memory(keep=True)
    facts = machine()
    with tempfile.TemporaryDirectory() as folder:
        corpus = with_corpus(Path(folder), rounds)
        batch = with_batch(Path(folder), rounds)
    shares = {T: attention_share(T, steps=3) for T in LENGTHS}
    today = datetime.datetime.now().astimezone().date().isoformat()
    draw(shares, RESULTS / f"{today}-growth.png")
    keep("growth", facts, {"corpus": corpus, "batch": batch, "attention": shares})


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=6))

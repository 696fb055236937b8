"""What reading padded rows in parts of like length saves, by how much padding a part may have.

python bench/padding.py [rounds=20]

Steps of the default model, each on the same rows read whole and in parts, in turns in one process:
32 rows as long as stories, 8 as long as the poems of `tang300.jsonl`, and 32 whose lengths spread
far (lognormal, median 60). The figures are real tokens a second and the share of real tokens in
what is read. By the wall clock, or on one thread (OMP_NUM_THREADS=1) by the process's CPU seconds,
which a busy machine changes less.
"""

import json
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from record import FIRST_SEED, PROJECT, keep, machine, options, shared_data
from turns import ratios

sys.path.insert(0, str(PROJECT))

from minigpt.config import ModelConfig, OptimConfig
from minigpt.data.batches import Batch, TrainingBatches
from minigpt.data.token_store import TokenStore
from minigpt.model.gpt import GPT
from minigpt.training.heap import keep_freed_memory
from minigpt.training.loss import batch_loss
from minigpt.training.optimizer import build_optimizer

BLOCK_SIZE, VOCAB_SIZE = 128, 512
#: Positions of padding in a part; None reads a batch whole.
ALLOWED = (None, 256, 128, 64, 32, 16)

clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def lengths_of_documents() -> dict[str, tuple[list[int], int]]:
    """Tokens of each document, the end token included, and rows of a step."""
    draw = np.random.default_rng(FIRST_SEED)
    poems = shared_data("tang300.jsonl").open(encoding="utf-8")
    return {
        # much as the default vocabulary has them: 92 to 115, most near 100
        "stories": (np.minimum(92 + draw.gamma(4, 2.35, 4000), 115).astype(int).tolist(), 32),
        "poems": ([len(json.loads(line)["text"]) + 1 for line in poems], 8),
        "spread": (np.maximum(draw.lognormal(np.log(60), 1.0, 4000), 2).astype(int).tolist(), 32),
    }


def store_of(lengths: list[int]) -> TokenStore:
    """Documents of these lengths, of random tokens."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    draw = np.random.default_rng(FIRST_SEED)
    tokens = np.asarray(draw.integers(1, VOCAB_SIZE, starts[-1] + 1), dtype=np.uint16)
    tokens[starts] = 0
    return TokenStore(tokens, starts, n_bytes=0)


def measure(lengths: list[int], rows: int, rounds: int) -> dict[str, Any]:
    """Of each allowed padding: seconds a token beside those of whole batches, and what is real."""
    torch.manual_seed(FIRST_SEED)
    model = GPT(ModelConfig(block_size=BLOCK_SIZE), VOCAB_SIZE)
    optimizer = build_optimizer(model, OptimConfig(kind="adamw", lr=1e-4), fused=True)
    store = store_of(lengths)
    ways = {
        "whole" if allowed is None else str(allowed): TrainingBatches(
            store,
            block_size=BLOCK_SIZE,
            layout="padded",
            batch_size=rows,
            seed=FIRST_SEED,
            part_padding=allowed,
        )
        for allowed in ALLOWED
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    read: dict[str, list[Batch]] = {name: [] for name in ways}
    for step in range(1 + rounds):
        for name, batches in ways.items():
            batch = batches[step]
            began = clock()
            optimizer.zero_grad()
            batch_loss(model, batch, 1 / batch.step_targets).backward()
            optimizer.step()
            if step:
                seconds[name].append((clock() - began) / batch.step_targets)
                read[name].append(batch)
    return {
        name: {
            "tokens_per_second": 1 / median(seconds[name]),
            "times_as_fast": ratios(seconds["whole"], seconds[name]),
            "real_share": sum(each.step_targets for each in read[name])
            / sum(each.step_targets + each.step_padding for each in read[name]),
            "parts": sum(len(each.in_parts()) for each in read[name]) / rounds,
        }
        for name in ways
    }


def main(rounds: int) -> None:
    """Measure, show and keep."""
    keep_freed_memory(keep=True)
    facts = machine()
    found = {
        name: measure(lengths, rows, rounds)
        for name, (lengths, rows) in lengths_of_documents().items()
    }
    keep("padding", facts, {"clock": "CPU" if clock is time.process_time else "wall"} | found)


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=20))

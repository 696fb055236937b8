"""What it costs to keep documents apart in packed rows: attention alone, and whole steps.

python bench/document_mask.py [rounds=12]

Rows of documents of 100 to 300 tokens are read with no mask (`is_causal`, the plain path), with
a mask, and document by document, which are the two ways of `minigpt/model/attention.py`. Then a
training step with `data.document_mask` and without, at four sizes: what a run pays. All in turns
in one process; by the wall clock, or on one thread (OMP_NUM_THREADS=1) by the process's CPU
seconds, which a busy machine changes less.
"""

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own name for it)
from record import FIRST_SEED, PROJECT, keep, machine, options
from torch import Tensor
from turns import ratios

sys.path.insert(0, str(PROJECT))

from minigpt.config import ModelConfig, OptimConfig
from minigpt.data.batches import Batch, TrainingBatches
from minigpt.data.token_store import TokenStore
from minigpt.model import attention as of_attention
from minigpt.model.attention import attention_mask, document_attention, document_lengths
from minigpt.model.gpt import GPT
from minigpt.training.heap import keep_freed_memory
from minigpt.training.loss import batch_loss
from minigpt.training.optimizer import build_optimizer

#: The whole step may take so much longer with documents kept apart.
TOLERANCE = 0.05
SHORTEST, LONGEST = 100, 300
#: Rows, heads, tokens, head width.
ATTENTION = (
    (32, 4, 128, 32),
    (16, 4, 256, 32),
    (8, 6, 256, 64),
    (4, 6, 512, 64),
    (2, 12, 1024, 64),
)
#: Layers, heads, width, vocabulary, rows, tokens.
STEPS = {
    "tiny, 128": (4, 4, 128, 512, 32, 128),
    "tiny, 256": (4, 4, 128, 512, 16, 256),
    "small, 256": (6, 6, 384, 4096, 8, 256),
    "a quarter of gpt2, 1024": (3, 12, 768, 4096, 1, 1024),
}

clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in every round; a first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + rounds):
        for name, work in ways.items():
            began = clock()
            work()
            if number:
                times[name].append(clock() - began)
    return times


def told(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Milliseconds of the plain path, and how many times as long the others take."""
    plain, *others = times
    return {f"{plain}, ms": 1000 * median(times[plain])} | {
        name: ratios(times[name], times[plain]) for name in others
    }


def documents_of(rows: int, T: int) -> Tensor:
    """Numbers of documents (rows, T), the first of each row cut somewhere."""
    draw = np.random.default_rng(FIRST_SEED)
    begins = torch.zeros(rows, T, dtype=torch.long)
    for row in begins:
        place = int(draw.integers(LONGEST))
        while place < T:
            row[place] = 1
            place += int(draw.integers(SHORTEST, LONGEST + 1))
    return begins.cumsum(1)


def attention(shape: tuple[int, int, int, int], rounds: int) -> dict[str, Any]:
    """Forward and backward of the heads of one layer."""
    B, H, T, D = shape
    documents = documents_of(B, T)
    mask = attention_mask(T, T, documents=documents)
    with patch.object(of_attention, "LONG", 1):
        lengths = document_lengths(documents)
    assert lengths is not None
    wide = torch.randn(B, T, 3 * H * D, requires_grad=True)
    pull = torch.randn(B, H, T, D)

    def through(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], object]:
        def work() -> object:
            q, k, v = (
                part.view(B, T, H, D).transpose(1, 2) for part in torch.split(wide, H * D, -1)
            )
            return torch.autograd.grad(attend(q, k, v), wide, pull)

        return work

    kernel = F.scaled_dot_product_attention
    return told(
        in_turns(
            {
                "plain": through(lambda q, k, v: kernel(q, k, v, is_causal=True)),
                "mask": through(lambda q, k, v: kernel(q, k, v, mask)),
                "one by one": through(lambda q, k, v: document_attention(q, k, v, lengths)),
            },
            rounds,
        )
    )


def step(name: str, rounds: int) -> dict[str, Any]:
    """A whole training step on random tokens, its batch included."""
    n_layer, n_head, n_embd, vocab_size, B, T = STEPS[name]
    draw = np.random.default_rng(FIRST_SEED)
    starts = np.concatenate([[0], draw.integers(SHORTEST, LONGEST + 1, 400).cumsum()])
    tokens = np.asarray(draw.integers(1, vocab_size, starts[-1] + 1), dtype=np.uint16)
    tokens[starts] = 0
    store = TokenStore(tokens, starts, n_bytes=0)
    torch.manual_seed(FIRST_SEED)
    config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=T)
    model = GPT(config, vocab_size)
    optimizer = build_optimizer(model, OptimConfig(kind="adamw", lr=1e-4), fused=True)

    def work(batch: Batch) -> None:
        optimizer.zero_grad()
        batch_loss(model, batch, 1 / batch.step_targets).backward()
        optimizer.step()

    def trained(*, document_mask: bool) -> Callable[[], object]:
        batches = TrainingBatches(
            store,
            block_size=T,
            layout="packed",
            batch_size=B,
            seed=FIRST_SEED,
            document_mask=document_mask,
        )
        numbers = iter(range(10**9))
        return lambda: work(batches[next(numbers)])

    return told(
        in_turns(
            {
                "plain": trained(document_mask=False),
                "document_mask": trained(document_mask=True),
            },
            rounds,
        )
    )


def main(rounds: int) -> None:
    """Measure, show and keep."""
    keep_freed_memory(keep=True)
    facts = machine()
    layers = {
        f"{B} rows of {T}, {H} heads of {D}": attention((B, H, T, D), rounds)
        for B, H, T, D in ATTENTION
    }
    steps = {name: step(name, rounds) for name in STEPS}
    worst = max(each["document_mask"]["median"] for each in steps.values())
    keep(
        "document_mask",
        facts,
        {
            "clock": "CPU" if clock is time.process_time else "wall",
            "documents": f"{SHORTEST} to {LONGEST} tokens",
            "attention": layers,
            "steps": steps,
            "reached": {"steps": worst <= 1 + TOLERANCE},
        },
    )


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=12))

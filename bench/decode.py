"""Decoding against `transformers`, token by token, and a cached step against an uncached one.

python bench/decode.py [rounds=7] [first=0] [last=2]

Three shapes in float32 on two threads, with random weights, which both libraries share. Each
continues the same prompts of 16 tokens greedily, one row and eight, in turns; a time is that of the
whole call over its new tokens. The ids have to be the same, as far as rounding cannot change one.
`first` and `last` choose among the shapes; only a run of all of them is kept.

Then the largest shape reads one token after S - 1 others, through the cache and by a full forward.
The first is bound by reading the weights and what is cached (bytes a second), which hardly grows
with S; the second by arithmetic (operations a second), which grows with S and a little with S².
"""

import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any, cast

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from record import FIRST_SEED, PROJECT, keep, machine, options
from torch import Tensor, nn
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(PROJECT))

from minigpt.config import ModelConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.huggingface import gpt2_name
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

#: Rows of token ids.
Ids = list[list[int]]

THREADS = 2
PROMPT = 16
BATCHES = (1, 8)
#: Layers, heads, width, context, vocabulary, new tokens; how much faster one row is to be.
SHAPES = {
    "tiny": (4, 4, 128, 256, 65, 200, 2.5),
    "small": (6, 6, 384, 256, 4096, 200, 1.9),
    "gpt2": (12, 12, 768, 1024, 50257, 128, 1.15),
}
LENGTHS = (32, 64, 128, 256, 512, 1024)
#: Two best logits that are nearer than this may change places by rounding.
TIE = 1e-4


def our_model(shape: str) -> GPT:
    """Weights so large that what is chosen depends on everything that was read."""
    n_layer, n_head, n_embd, block_size, vocab_size, _, _ = SHAPES[shape]
    torch.manual_seed(FIRST_SEED)
    config = ModelConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, block_size=block_size)
    model = GPT(config, vocab_size).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.1)
    return model


def their_model(ours: GPT) -> Any:
    """GPT-2 of `transformers` with our sizes and weights. Its types do not fit: hence Any."""
    config = ours.config
    theirs: Any = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=ours.vocab_size,
            n_positions=config.block_size,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            activation_function="gelu_new",
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    weights: dict[str, Tensor] = {}
    for name, weight in ours.state_dict().items():
        their_name, turned = gpt2_name(name)
        weights[their_name] = weight.T if turned else weight
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"], missing  # tied
    assert not unexpected, unexpected
    return theirs


def callers(ours: GPT, prompts: Ids, n: int) -> dict[str, Callable[[], Ids]]:
    """A call a library: it continues the prompts (B, 16) by `n` tokens and returns those ids."""
    theirs = their_model(ours)
    tokens = torch.tensor(prompts)
    decoding = Decoding(
        end_id=-1,
        vocab_size=ours.vocab_size,
        max_new_tokens=n,
        sampling=Sampling(temperature=0),
    )
    settings = GenerationConfig(
        do_sample=False, use_cache=True, min_new_tokens=n, max_new_tokens=n, pad_token_id=0
    )
    attended = torch.ones_like(tokens)

    def their_ids() -> Ids:
        ids: Tensor = theirs.generate(tokens, attention_mask=attended, generation_config=settings)
        return cast("Ids", ids[:, PROMPT:].tolist())

    return {
        "minigpt": lambda: [row.ids for row in generate(ours, prompts, decoding, seed=0)],
        "transformers": their_ids,
    }


def sure_tokens(ours: GPT, prompt: list[int], ids: list[int]) -> int:
    """How many of these greedy ids come before the first that rounding might have changed."""
    with torch.inference_mode():
        logits = ours(torch.tensor([prompt + ids[:-1]]))[0, PROMPT - 1 :]
    best = logits.topk(2).values
    near = cast("list[bool]", (best[:, 0] - best[:, 1] <= TIE).tolist())
    return near.index(True) if True in near else len(ids)


def against_transformers(shape: str, rounds: int) -> dict[str, Any]:
    """Milliseconds a token of both, for every batch size; `ratio` is theirs over ours."""
    ours = our_model(shape)
    *_, n, target = SHAPES[shape]
    measured: dict[str, Any] = {}
    for B in BATCHES:
        prompts = cast("Ids", torch.randint(0, ours.vocab_size, (B, PROMPT)).tolist())
        calls = callers(ours, prompts, n)
        ids = {library: call() for library, call in calls.items()}  # warms both up
        sure = [sure_tokens(ours, *row) for row in zip(prompts, ids["minigpt"], strict=True)]
        for row, (a, b) in enumerate(zip(*ids.values(), strict=True)):
            assert a[: sure[row]] == b[: sure[row]], f"{shape}: row {row} is another text"
        times = in_turns(calls, rounds, tokens=n)
        ratios = [b / a for a, b in zip(*times.values(), strict=True)]
        measured[f"{B} rows"] = {
            "milliseconds_a_token": {library: spread(each) for library, each in times.items()},
            "ratio": spread(ratios),
            "tokens_compared": sum(sure),
        }
        if B == 1:
            measured["reached"] = {"ratio": median(ratios) >= target, "target": target}
    return measured


def in_turns(
    calls: dict[str, Callable[[], Any]], rounds: int, tokens: int = 1
) -> dict[str, list[float]]:
    """Milliseconds a token of every call, `rounds` times one after the other."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(1000 * (time.perf_counter() - started) / tokens)
    return times


def spread(numbers: list[float]) -> dict[str, float]:
    """The median, and the least and the greatest."""
    return {"median": median(numbers), "least": min(numbers), "greatest": max(numbers)}


@torch.inference_mode()
def growth(shape: str, rounds: int) -> dict[str, Any]:
    """One token after S - 1 others, with the cache and without, for every S of `LENGTHS`."""
    model = our_model(shape)
    tokens = torch.randint(0, model.vocab_size, (1, LENGTHS[-1]))
    cache, step = KVCache.for_model(model, 1), TokenStep(model)
    model(tokens, cache=cache, last_only=True)
    measured: dict[str, Any] = {}
    for S in LENGTHS:

        def cached_step(S: int = S) -> None:
            cache.length = S - 1
            step(tokens[:, S - 1], cache)

        def full_forward(S: int = S) -> None:
            model(tokens[:, :S], last_only=True)

        cached_step()
        times = in_turns({"cached": cached_step, "uncached": full_forward}, rounds)
        flops = {"cached": step_flops(model, 1, S), "uncached": step_flops(model, S, S)}
        cached, uncached = (median(each) / 1000 for each in times.values())
        measured[str(S)] = {
            "milliseconds": {name: spread(each) for name, each in times.items()},
            "ratio": uncached / cached,
            "gigaflops": {name: each / 1e9 for name, each in flops.items()},
            "uncached_gigaflops_a_second": flops["uncached"] / 1e9 / uncached,
            "cached_gigabytes_a_second": step_bytes(model, S) / 1e9 / cached,
        }
    return measured


def step_flops(model: GPT, T: int, S: int) -> int:
    """Multiplications and additions of the last T of S positions, with one row of the head.

    Attention of T > 1 queries is counted causally: a query reads the keys up to its own.
    """
    config = model.config
    matrices = 12 * config.n_layer * config.n_embd**2
    keys_read = T * (2 * S - T + 1) // 2
    attention = 2 * config.n_layer * config.n_embd * keys_read  # q kᵀ, and the weights times v
    return 2 * (T * matrices + attention + model.vocab_size * config.n_embd)


def step_bytes(model: GPT, S: int) -> int:
    """What a cached step of one row reads: the weights, of the tables one row, and the cache."""
    config = model.config
    weights = model.parameter_count(embeddings=False) + model.vocab_size * config.n_embd
    return 4 * (weights + 2 * config.n_layer * S * config.n_embd)


def main(rounds: int, first: int, last: int) -> None:
    """Measure, show and keep."""
    torch.set_num_threads(THREADS)
    facts = machine()
    measured: dict[str, Any] = {"transformers": version("transformers"), "rounds": rounds}
    for shape in list(SHAPES)[first : last + 1]:
        measured[shape] = against_transformers(shape, rounds)
        for batch in (f"{B} rows" for B in BATCHES):
            found = measured[shape][batch]
            times = {
                name: round(t["median"], 3) for name, t in found["milliseconds_a_token"].items()
            }
            print(f"{shape}, {batch}: {times} ms a token, ratio {found['ratio']['median']:.2f}")
    if len(measured) < 2 + len(SHAPES):
        return
    measured["growth of gpt2"] = growth("gpt2", rounds)
    keep("decode", facts, measured)


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=7, first=0, last=2))

"""Decoding against `transformers` and llama.cpp, token by token, and a cached step against none.

python bench/decode.py [rounds=5] [first=0] [last=2]

Three shapes in float32 on two threads, with random weights, which all share. Each continues the
same prompts of 16 tokens greedily, one row and eight, in turns; a time is that of the whole call
over its new tokens. The ids have to be the same, as far as rounding cannot change one. Beside them
are our own with weights of 8 bits and, for one row, llama.cpp in float32 and float16. Bytes that a
step reads over its time are held against the rate at which the machine reads memory.
`first` and `last` choose among the shapes; only a run of all of them is kept.

Then what `compile=true` costs at a first start and, with the compiler's cache, at a second; and the
largest shape reads one token after S - 1 others, through the cache and by a full forward.
The first is bound by reading the weights and what is cached (bytes a second), which hardly grows
with S; the second by arithmetic (operations a second), which grows with S and a little with S².
"""

import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, cast

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from record import FIRST_SEED, PROJECT, keep, machine, options, run
from torch import Tensor, nn
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(PROJECT))

import llama
from turns import spread

from minigpt.config import ModelConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.huggingface import gpt2_name
from minigpt.model.gpt import GPT
from minigpt.model.int8 import is_exact, round_weights
from minigpt.model.kv_cache import KVCache
from minigpt.model.token_step import TokenStep

#: Rows of token ids.
Ids = list[list[int]]

THREADS = 2
PROMPT = 16
BATCHES = (1, 8)
#: Layers, heads, width, context, vocabulary, new tokens; how many times as fast as `transformers`
#: one row and eight are to be.
SHAPES = {
    "char": (4, 4, 128, 256, 65, 200, (4, 3)),
    "small": (6, 6, 384, 256, 4096, 200, (3, 2)),
    "gpt2": (12, 12, 768, 1024, 50257, 128, (1.3, 1.3)),
}
#: How much faster weights of 8 bits are to make one row of the largest shape.
INT8_TARGET = 2
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


def our_caller(model: GPT, prompts: Ids, n: int, *, compiled: bool = False) -> Callable[[], Ids]:
    """A call that continues the prompts (B, 16) by `n` tokens and returns those ids."""
    decoding = Decoding(
        end_id=-1,
        vocab_size=model.vocab_size,
        max_new_tokens=n,
        sampling=Sampling(temperature=0),
        compile_step=compiled,
    )
    return lambda: [row.ids for row in generate(model, prompts, decoding, seed=0)]


def their_caller(theirs: Any, prompts: Ids, n: int) -> Callable[[], Ids]:
    """The same call of `transformers`."""
    tokens = torch.tensor(prompts)
    settings = GenerationConfig(
        do_sample=False, use_cache=True, min_new_tokens=n, max_new_tokens=n, pad_token_id=0
    )
    attended = torch.ones_like(tokens)

    def ids() -> Ids:
        found: Tensor = theirs.generate(tokens, attention_mask=attended, generation_config=settings)
        return cast("Ids", found[:, PROMPT:].tolist())

    return ids


def callers(shape: str, folder: Path) -> Callable[[Ids], dict[str, Callable[[], Ids]]]:
    """From prompts to a call a contestant; the models are made once."""
    ours, n = our_model(shape), SHAPES[shape][5]
    theirs, rounded = their_model(ours), copy.deepcopy(ours)
    if is_exact():
        round_weights(rounded)
    llamas: dict[str, Any] = {}
    if llama.is_there():
        llamas = {d: llama.continuing(ours, folder, d, THREADS) for d in llama.DTYPES}

    def calls(prompts: Ids) -> dict[str, Callable[[], Ids]]:
        found = {
            "minigpt": our_caller(ours, prompts, n),
            "transformers": their_caller(theirs, prompts, n),
        }
        if is_exact():
            found["minigpt int8"] = our_caller(rounded, prompts, n)
        if len(prompts) == 1:
            for dtype, ids in llamas.items():
                found[f"llama.cpp {dtype}"] = lambda ids=ids: [ids(prompts[0], n)]
        return found

    return calls


def sure_tokens(ours: GPT, prompt: list[int], ids: list[int]) -> int:
    """How many of these greedy ids come before the first that rounding might have changed."""
    with torch.inference_mode():
        logits = ours(torch.tensor([prompt + ids[:-1]]))[0, PROMPT - 1 :]
    best = logits.topk(2).values
    near = cast("list[bool]", (best[:, 0] - best[:, 1] <= TIE).tolist())
    return near.index(True) if True in near else len(ids)


def against_others(shape: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Milliseconds a token of all, for every batch size; a ratio is another's over ours."""
    ours, make = our_model(shape), callers(shape, folder)
    *_, n, targets = SHAPES[shape]
    measured: dict[str, Any] = {"reached": {}}
    for B, target in zip(BATCHES, targets, strict=True):
        prompts = cast("Ids", torch.randint(0, ours.vocab_size, (B, PROMPT)).tolist())
        calls = make(prompts)
        ids = {name: call() for name, call in calls.items()}  # warms all up
        sure = [sure_tokens(ours, *row) for row in zip(prompts, ids["minigpt"], strict=True)]
        for name in {"transformers", "llama.cpp float32"} & set(ids):
            for row, (a, b) in enumerate(zip(ids["minigpt"], ids[name], strict=True)):
                least = sure[row] if name == "transformers" else min(sure[row], 1)
                assert a[:least] == b[:least], f"{shape}: row {row} is another text in {name}"
        times = in_turns(calls, rounds, tokens=n)
        mine = times["minigpt"]
        ratios = {
            name: spread([b / a for a, b in zip(mine, each, strict=True)])
            for name, each in times.items()
        }
        measured[f"{B} rows"] = {
            "milliseconds_a_token": {name: spread(each) for name, each in times.items()},
            "others_over_ours": ratios,
            "gigabytes_a_second": step_bytes(ours, PROMPT + n // 2, B) / 1e6 / median(mine),
            "tokens_compared": sum(sure),
        }
        reached = {"ratio": ratios["transformers"]["median"] >= target, "target": target}
        if shape == "gpt2" and B == 1 and is_exact():
            reached["int8"] = 1 / ratios["minigpt int8"]["median"] >= INT8_TARGET
        measured["reached"][f"{B} rows"] = reached
    return measured


def compile_costs(shape: str) -> dict[str, Any]:
    """Seconds that compiling takes in a process of its own, twice, and milliseconds a token then.

    The cache is a new folder, in place of the compiler's own (TORCHINDUCTOR_CACHE_DIR, by default
    torchinductor_NAME in the system's folder for temporary files).
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        index = list(SHAPES).index(shape)
        starts = [run("bench/decode.py", f"first={index}", "compiled=1") for _ in range(2)]
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    return {
        name: json.loads(start.splitlines()[-1])
        for name, start in zip(("first start", "second start"), starts, strict=True)
    }


def compiled_start(shape: str) -> None:
    """Print what `compile_costs` wants to know of one start."""
    model, n = our_model(shape), SHAPES[shape][5]
    prompts = cast("Ids", torch.randint(0, model.vocab_size, (1, PROMPT)).tolist())
    call = our_caller(model, prompts, n, compiled=True)
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    times = in_turns({"": call}, 3, tokens=n)[""]
    extra = seconds - median(times) * n / 1000
    print(json.dumps({"seconds_to_compile": extra, "milliseconds_a_token": median(times)}))


def read_rate() -> float:
    """Gigabytes a second at which memory is read, the best of several times."""
    numbers = torch.ones(1 << 26)
    times = in_turns({"": numbers.sum}, 9)[""]
    return numbers.nbytes / 1e6 / min(times)


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


@torch.inference_mode()
def growth(shape: str, rounds: int) -> dict[str, Any]:
    """One token after S - 1 others, with the cache and without, for every S of `LENGTHS`."""
    model = our_model(shape)
    tokens = torch.randint(0, model.vocab_size, (1, LENGTHS[-1]))
    cache, step = KVCache.for_model(model, 1), TokenStep(model, 1)
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


def step_bytes(model: GPT, S: int, B: int = 1) -> int:
    """What a cached step reads: the weights once, of the tables nothing, and the cache."""
    config = model.config
    weights = model.parameter_count(embeddings=False) + model.vocab_size * config.n_embd
    return 4 * (weights + 2 * B * config.n_layer * S * config.n_embd)


def main(rounds: int, first: int, last: int, compiled: int) -> None:
    """Measure, show and keep."""
    torch.set_num_threads(THREADS)
    shapes = list(SHAPES)[first : last + 1]
    if compiled:
        compiled_start(shapes[0])
        return
    facts = machine()
    measured: dict[str, Any] = {
        "transformers": version("transformers"),
        "llama-cpp-python": version("llama-cpp-python") if llama.is_there() else None,
        "rounds": rounds,
        "memory_read_gigabytes_a_second": read_rate(),
    }
    with tempfile.TemporaryDirectory() as folder:
        for shape in shapes:
            measured[shape] = against_others(shape, rounds, Path(folder))
            show(shape, measured)
    if len(shapes) < len(SHAPES):
        return
    measured["compile=true"] = {shape: compile_costs(shape) for shape in shapes}
    measured["growth of gpt2"] = growth("gpt2", rounds)
    keep("decode", facts, measured)


def show(shape: str, measured: dict[str, Any]) -> None:
    """A line a batch size."""
    for batch in (f"{B} rows" for B in BATCHES):
        found = measured[shape][batch]
        share = found["gigabytes_a_second"] / measured["memory_read_gigabytes_a_second"]
        times = ", ".join(
            f"{name} {each['median']:.3f} ({found['others_over_ours'][name]['median']:.2f})"
            for name, each in found["milliseconds_a_token"].items()
        )
        print(f"{shape}, {batch}: {times} ms a token, {share:.0%} of the memory's rate", flush=True)


if __name__ == "__main__":
    main(**options(sys.argv[1:], rounds=5, first=0, last=2, compiled=0))

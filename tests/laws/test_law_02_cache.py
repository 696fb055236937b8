"""Law 2: decoding with the cache gives what the full forward gives, at every length."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling, Uniforms, sample_token
from minigpt.generation.windows import window_start
from minigpt.model.gpt import GPT
from minigpt.model.kv_cache import KVCache
from tests.laws.choices import POSITIONS, choices

BLOCK_SIZE = 8
END = 40  # of a vocabulary of 41
EDGES = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 10 * BLOCK_SIZE]
DTYPES = [torch.float64, torch.float32]


def model(dtype: torch.dtype = torch.float64, seed: int = 0, **made_of: Any) -> GPT:
    """A small model with weights large enough that its choices depend on the whole context."""
    torch.manual_seed(seed)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=BLOCK_SIZE, **made_of)
    gpt = GPT(config, END + 1).to(dtype).eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return gpt


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens, the end token among them."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, END + 1, (length,), generator=generator).tolist()


def greedy(**changes: int | bool | None) -> Decoding:
    """Greedy decoding that no end token stops."""
    return Decoding(end_id=-1, vocab_size=END + 1, sampling=Sampling(temperature=0), **changes)  # type: ignore[arg-type]


def plain(
    gpt: GPT, ids: list[int], n: int, stride: int, sampling: Sampling, seed: int = 0
) -> tuple[list[int], list[float]]:
    """The reference, a row at a time: a full forward of the window that the rule keeps.

    Returns the new tokens and, for each, how far its logit was above the second.
    """
    ids, first = list(ids), len(ids)
    uniforms, gaps = Uniforms([(seed, 0)], torch.device("cpu")), []
    with torch.no_grad():
        for _ in range(n):
            start = 0
            while len(ids) - start > BLOCK_SIZE:
                start += stride
            logits = gpt(torch.tensor([ids[start:]]))[:, -1]
            best = logits[0].topk(2).values
            gaps.append(float(best[0] - best[1]))
            drawn = None if sampling.temperature == 0 else uniforms.next()
            ids.append(int(sample_token(logits, sampling, drawn)))
    return ids[first:], gaps


@settings(deadline=None, max_examples=40)
@given(
    length=st.integers(1, BLOCK_SIZE),
    cuts=st.lists(st.integers(1, BLOCK_SIZE), max_size=5),
    made_of=choices,
    dtype=st.sampled_from(DTYPES),
    readable=st.booleans(),
)
def test_any_chunking_of_a_prompt_gives_the_logits_of_the_full_forward(
    length: int, cuts: list[int], made_of: dict[str, Any], dtype: torch.dtype, readable: bool
) -> None:
    gpt, tokens = model(dtype, **made_of), torch.tensor([prompt(length), prompt(length, 1)])
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    cache = KVCache.for_model(gpt, 2, length)
    attention: list[torch.Tensor] | None = [] if readable else None
    with torch.no_grad():
        full = gpt(tokens)
        parts = [gpt(tokens[:, a:b], cache=cache, attention=attention) for a, b in pairwise(edges)]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    largest = max(1.0, full.abs().max().item())
    torch.testing.assert_close(
        torch.cat(parts, dim=1), full, rtol=tolerance, atol=tolerance * largest
    )


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("stride", [None, 1, 5, BLOCK_SIZE])
def test_same_greedy_ids_at_every_length(position: str, stride: int | None) -> None:
    gpt = model(position=position)
    for length in sorted({*range(1, 3 * BLOCK_SIZE + 1), *EDGES}):
        n = 2 * BLOCK_SIZE if length in EDGES else 3
        expected, _ = plain(gpt, prompt(length), n, stride or BLOCK_SIZE // 4, greedy().sampling)
        for use_cache in (True, False):
            decoding = greedy(max_new_tokens=n, context_stride=stride, use_cache=use_cache)
            assert generate(gpt, [prompt(length)], decoding, seed=0)[0].ids == expected


@pytest.mark.parametrize("position", POSITIONS)
def test_same_ids_in_float32_where_the_two_best_are_apart(position: str) -> None:
    gpt = model(torch.float32, position=position)
    for length in EDGES:
        n = 3 * BLOCK_SIZE
        expected, gaps = plain(gpt, prompt(length), n, BLOCK_SIZE // 4, greedy().sampling)
        sure = next((i for i, gap in enumerate(gaps) if gap <= 1e-4), n)
        assert sure > BLOCK_SIZE  # the comparison reaches past the context
        ids = generate(gpt, [prompt(length)], greedy(max_new_tokens=n), seed=0)[0].ids
        assert ids[:sure] == expected[:sure]


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(1, 3 * BLOCK_SIZE),
    n=st.integers(0, 2 * BLOCK_SIZE),
    stride=st.integers(1, BLOCK_SIZE),
    use_cache=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_samples_are_those_of_the_plain_loop(
    length: int, n: int, stride: int, use_cache: bool, seed: int
) -> None:
    gpt, sampling = model(), Sampling(temperature=0.9, top_k=30, top_p=0.95)
    expected, _ = plain(gpt, prompt(length), n, stride, sampling, seed)
    decoding = Decoding(
        end_id=-1, vocab_size=END + 1, max_new_tokens=n, sampling=sampling,
        context_stride=stride, use_cache=use_cache,
    )  # fmt: skip
    assert generate(gpt, [prompt(length)], decoding, seed=seed)[0].ids == expected


@given(length=st.integers(0, 500), block_size=st.integers(1, 60), stride=st.integers(1, 60))
def test_the_window_rule(length: int, block_size: int, stride: int) -> None:
    stride = min(stride, block_size)
    start = window_start(length, block_size, stride)
    assert start % stride == 0
    assert length - start <= block_size
    if start:
        assert length - (start - stride) > block_size  # no token is dropped before it has to be
        assert length - start >= block_size + 1 - stride >= 1

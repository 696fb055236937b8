"""Law 3: a prompt generates the same text alone and beside prompts of other lengths."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.generation.continuation import Continuation
from minigpt.generation.decode import Decoding, Row, generate, stream
from minigpt.generation.sampling import Sampling
from minigpt.generation.windows import window_start
from minigpt.model.gpt import GPT
from tests.laws.choices import POSITIONS, choices

BLOCK_SIZE = 7
END = 6  # of a vocabulary of 7: a row often ends

SAMPLINGS = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(temperature=1.3, top_k=4),
    Sampling(top_p=0.8, min_p=0.1),
    Sampling(repetition_penalty=1.4, frequency_penalty=0.5, logit_bias_ids=((2, 1.0),)),
    Sampling(no_repeat_ngram=3),
]


def model(dtype: torch.dtype, **made_of: Any) -> GPT:
    torch.manual_seed(3)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=BLOCK_SIZE, **made_of)
    gpt = GPT(config, END + 1).to(dtype).eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return gpt


def texts(results: list[Continuation]) -> list[tuple[list[int], str]]:
    """What must not change: all but the time."""
    return [(result.ids, result.reason) for result in results]


@settings(deadline=None, max_examples=30)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, END), min_size=1, max_size=3 * BLOCK_SIZE), min_size=2, max_size=5
    ),
    sampling=st.sampled_from(SAMPLINGS),
    stride=st.none() | st.integers(1, BLOCK_SIZE),
    use_cache=st.booleans(),
    stops=st.booleans(),
    num_samples=st.integers(1, 2),
    batch_size=st.integers(1, 10),
    made_of=choices,
)
def test_alone_and_in_a_batch(
    prompts: list[list[int]], sampling: Sampling, stride: int | None, use_cache: bool,
    stops: bool, num_samples: int, batch_size: int, made_of: dict[str, Any],
) -> None:  # fmt: skip
    gpt = model(torch.float64, **made_of)
    decoding = Decoding(
        end_id=END if stops else -1,
        vocab_size=END + 1,
        max_new_tokens=9,
        sampling=sampling,
        context_stride=stride,
        use_cache=use_cache,
    )
    together = generate(
        gpt, prompts, decoding, seed=9, num_samples=num_samples, batch_size=batch_size
    )
    alone = [
        result
        for prompt in prompts
        for result in generate(gpt, [prompt], decoding, seed=9, num_samples=num_samples)
    ]
    assert texts(together) == texts(alone)


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_of_every_length_in_one_batch_in_float32(position: str) -> None:
    gpt = model(torch.float32, position=position)
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(0, END + 1, (length,), generator=generator).tolist()
        for length in range(1, 3 * BLOCK_SIZE, 2)
    ]
    decoding = Decoding(
        end_id=-1, vocab_size=END + 1, max_new_tokens=12, sampling=Sampling(temperature=0)
    )
    together = generate(gpt, prompts, decoding, seed=0, batch_size=len(prompts))
    for prompt, result in zip(prompts, together, strict=True):
        alone = generate(gpt, [prompt], decoding, seed=0)[0].ids
        same = next((i for i in range(12) if result.ids[i] != alone[i]), 12)
        if same < 12:  # rounding may decide between two that are as good as equal
            ids = prompt + alone[:same]
            window = ids[window_start(len(ids), BLOCK_SIZE, BLOCK_SIZE // 4) :]
            with torch.no_grad():
                best = gpt(torch.tensor([window]))[0, -1].topk(2).values
            assert best[0] - best[1] <= 1e-4


def test_a_row_that_ended_disturbs_no_other_row() -> None:
    gpt = model(torch.float64)
    prompts = [[1, 2], [3, 4, 5, 0, 1]]
    decoding = Decoding(end_id=END, vocab_size=END + 1, max_new_tokens=30)
    results = generate(gpt, prompts, decoding, seed=2, num_samples=6)
    assert len({len(result.ids) for result in results}) > 3  # they do end at different times
    for number, prompt in enumerate(prompts):
        for sample in range(6):
            alone = Continuation(decoding)
            list(stream(gpt, Row(prompt, 2, sample), decoding, alone))
            assert alone.ids == results[6 * number + sample].ids

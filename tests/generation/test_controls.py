"""Each control by itself: what it means at its boundaries, and what others make of the same name.

All of them together, against plain Python, are in tests/laws/test_law_02_cache_controls.py.
"""

import copy
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import ModelConfig, TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.generation.controls import Ends, controls_in_use
from minigpt.generation.decode import Decoding, adjust, generate
from minigpt.generation.sampling import Sampling
from minigpt.model.gpt import GPT

CPU = torch.device("cpu")
V, END = 12, 11
TOKENS = [bytes([ord("a") + i]) for i in range(END)] + [b""]
LETTERS = Decoding(end_id=END, vocab_size=V, token_bytes=TOKENS)


def adjusted(logits: Tensor, prompt: list[int], new: list[int], **sampling: object) -> Tensor:
    """The logits of one row as the controls leave them after `new`."""
    decoding = replace(LETTERS, sampling=Sampling(**sampling))  # type: ignore[arg-type]
    controls = controls_in_use(decoding, [prompt], CPU)
    for token in new:
        for control in controls:
            control.append(torch.tensor([token]))
    return adjust(logits[None], controls)[0]


def test_what_is_not_used_is_not_there() -> None:
    assert controls_in_use(LETTERS, [[1, 2]], CPU) == []
    logits = torch.randn(1, V)
    assert adjust(logits, []) is logits


def test_the_repetition_penalty_divides_above_zero_and_multiplies_below() -> None:
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0, 0.0, *[1.0] * 7])
    got = adjusted(logits, [0, 1, 4], [2], repetition_penalty=2.0)
    assert got[:5].tolist() == [1.0, -4.0, 1.0, -2.0, 0.0]
    assert got[5:].tolist() == [1.0] * 7


def test_presence_and_frequency_count_the_new_text_alone() -> None:
    got = adjusted(torch.zeros(V), [0, 0, 1], [1, 2, 2], presence_penalty=1.5)
    assert got[:4].tolist() == [0.0, -1.5, -1.5, 0.0]
    got = adjusted(torch.zeros(V), [0, 0, 1], [1, 2, 2], frequency_penalty=0.5)
    assert got[:4].tolist() == [0.0, -0.5, -1.0, 0.0]


def test_no_penalty_and_no_ban_of_repetition_reaches_the_end_of_the_document() -> None:
    logits = torch.full((V,), 2.0)
    for control in (
        {"repetition_penalty": 9.0},
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"no_repeat_ngram": 1},
        {"no_repeat_ngram": 2},
    ):
        assert adjusted(logits, [END, 3, END, 3], [3], **control)[END] == 2.0


def banned(prompt: list[int], new: list[int], **sampling: object) -> set[int]:
    got = adjusted(torch.zeros(V), prompt, new, **sampling)
    return {i for i in range(V) if got[i] == -torch.inf}


def test_no_ngram_comes_twice() -> None:
    assert banned([1, 2, 3, 1, 2], [], no_repeat_ngram=3) == {3}
    assert banned([1, 2, 3], [1, 2], no_repeat_ngram=3) == {3}
    assert banned([1, 2, 3], [1, 2], no_repeat_ngram=2) == {3}
    assert banned([1, 2, 3], [1, 2], no_repeat_ngram=4) == set()
    assert banned([1, 2, 3], [5], no_repeat_ngram=1) == {1, 2, 3, 5}
    assert banned([1], [], no_repeat_ngram=5) == set()
    assert banned([4, 4], [4], no_repeat_ngram=2) == {4}


def test_a_banned_text_is_banned_wherever_it_begins() -> None:
    ban = {"logit_bias": (("abc", -math.inf),)}
    assert banned([0], [1], **ban) == {2}  # it begins in the prompt
    assert banned([], [0, 1], **ban) == {2}
    assert banned([0, 1], [3], **ban) == set()
    assert banned([0, 0], [1], **ban) == {2}


def test_biases_add_up() -> None:
    biases = {
        "logit_bias_ids": ((2, 1.0), (2, 0.5), (3, -math.inf)),
        "logit_bias": (("c", 2.0), ("bc", 4.0)),
    }
    got = adjusted(torch.zeros(V), [1], [], **biases)
    assert got[2] == 7.5
    assert got[3] == -torch.inf
    assert got[4] == 0


def test_until_so_many_tokens_nothing_may_end_a_row() -> None:
    ends = Ends(replace(LETTERS, stop=("ab", "d"), stop_ids=(5,)), 2, CPU)
    ends.append(torch.tensor([0, 1]))
    got = ends.forbid(torch.zeros(2, V)) == -torch.inf
    assert [row.nonzero()[:, 0].tolist() for row in got] == [[1, 3, 5, END], [3, 5, END]]


@pytest.fixture(scope="module")
def bpe() -> tuple[GPT, Decoding]:
    words = ["the cat sat on the mat and the category of cats is there 床前 😀"] * 4
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=320), words)
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=16)
    decoding = Decoding(
        end_id=-1,
        vocab_size=tokenizer.vocab_size,
        token_bytes=tokenizer.token_bytes,
        max_new_tokens=400,
    )
    return GPT(config, tokenizer.vocab_size).double().eval(), decoding


@pytest.mark.parametrize("text", ["e", "ca", " the", "the c", "\x00", "😀"])
def test_a_banned_text_never_appears_however_it_could_be_spelt(
    bpe: tuple[GPT, Decoding], text: str
) -> None:
    gpt, decoding = bpe
    favour = tuple((text[: i + 1], 5.0) for i in range(len(text)))
    free = replace(decoding, sampling=Sampling(logit_bias=favour))
    ban = replace(decoding, sampling=Sampling(logit_bias=(*favour, (text, -math.inf))))
    assert text in generate(gpt, [[0]], free, seed=1)[0].text
    assert text not in generate(gpt, [[0]], ban, seed=1)[0].text


@given(
    scores=st.lists(st.floats(-5, 5, width=32), min_size=V, max_size=V),
    prompt=st.lists(st.integers(0, END - 1), min_size=1, max_size=12),
    new=st.lists(st.integers(0, END - 1), max_size=8),
    penalty=st.sampled_from([0.5, 1.3, 4.0]),
    n=st.integers(1, 4),
)
@settings(deadline=None, max_examples=50)
def test_transformers_means_the_same(
    scores: list[float], prompt: list[int], new: list[int], penalty: float, n: int
) -> None:
    theirs = pytest.importorskip("transformers.generation.logits_process")
    row, logits = torch.tensor([prompt + new]), torch.tensor(scores)
    expected = theirs.RepetitionPenaltyLogitsProcessor(penalty)(row, logits[None].clone())
    got = adjusted(logits, prompt, new, repetition_penalty=penalty)
    torch.testing.assert_close(got[:END], expected[0, :END], rtol=1e-6, atol=1e-6)
    expected = theirs.NoRepeatNGramLogitsProcessor(n)(row, logits[None].clone())
    got = adjusted(logits, prompt, new, no_repeat_ngram=n)
    assert got[:END].tolist() == expected[0, :END].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_controls_take_logits_of_every_arithmetic(
    bpe: tuple[GPT, Decoding], dtype: torch.dtype
) -> None:
    sampling = Sampling(
        logit_bias=((" the", 2.0),),
        repetition_penalty=1.3,
        presence_penalty=0.3,
        no_repeat_ngram=2,
    )
    decoding = replace(bpe[1], max_new_tokens=20, sampling=sampling)
    result = generate(copy.deepcopy(bpe[0]).to(dtype), [[0], [1, 2]], decoding, seed=0)[0]
    assert len(result.ids) == 20
    assert len(set(zip(result.ids, result.ids[1:], strict=False))) == 19
    logits = torch.full((1, decoding.vocab_size), 0.1, dtype=dtype)
    assert adjust(logits, controls_in_use(decoding, [[0]], CPU)).dtype == torch.float32

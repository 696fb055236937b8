"""Law 10, of generation: the seed and a sample's number fix its text, and nothing else does."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import ModelConfig
from minigpt.generation.decode import Decoding, generate
from minigpt.generation.sampling import Sampling
from minigpt.model.gpt import GPT

END = 30
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11]]
DECODING = Decoding(end_id=END, vocab_size=END + 1, max_new_tokens=10)


def model() -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=16)
    return GPT(config, END + 1).double().eval()


MODEL = model()


def ids(gpt: GPT, seed: int, num_samples: int = 1, batch_size: int = 32) -> list[list[int]]:
    results = generate(
        gpt, PROMPTS, DECODING, seed=seed, num_samples=num_samples, batch_size=batch_size
    )
    return [result.ids for result in results]


def test_the_same_seed_gives_the_same_text() -> None:
    gpt = model()
    assert ids(gpt, 7) == ids(gpt, 7)


def test_another_seed_gives_another_text() -> None:
    gpt = model()
    assert len({str(ids(gpt, seed)) for seed in range(4)}) == 4


def test_samples_differ_from_each_other() -> None:
    samples = ids(model(), 7, num_samples=6)
    assert len({str(sample) for sample in samples[:6]}) == 6


def test_a_sample_depends_neither_on_how_many_there_are_nor_on_the_batch() -> None:
    gpt = model()
    many = ids(gpt, 7, num_samples=5)
    for batch_size in (1, 4, 7):
        for num_samples in (1, 3):
            expected = [
                many[5 * prompt + sample] for prompt in range(3) for sample in range(num_samples)
            ]
            assert ids(gpt, 7, num_samples, batch_size) == expected


def test_a_sample_does_not_depend_on_what_was_drawn_before() -> None:
    gpt = model()
    expected = ids(gpt, 7)
    torch.manual_seed(123)
    torch.rand(5)
    assert ids(gpt, 7) == expected


def test_a_longer_text_begins_with_the_shorter_one() -> None:
    gpt = model()
    ever = Decoding(end_id=-1, vocab_size=END + 1, max_new_tokens=300)
    short = Decoding(end_id=-1, vocab_size=END + 1, max_new_tokens=9)
    long = generate(gpt, PROMPTS[:1], ever, seed=1)[0].ids
    assert len(long) == 300
    assert long[:9] == generate(gpt, PROMPTS[:1], short, seed=1)[0].ids


@settings(deadline=None, max_examples=40)
@given(
    sampling=st.builds(
        Sampling,
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.5]),
        no_repeat_ngram=st.none() | st.integers(1, 3),
        temperature=st.sampled_from([0.5, 1.0, 2.0]),
        top_k=st.none() | st.integers(1, END + 1),
        top_p=st.none() | st.sampled_from([0.5, 0.9]),
        min_p=st.none() | st.sampled_from([0.05, 0.5]),
    ),
    prompts=st.lists(
        st.lists(st.integers(0, END), min_size=1, max_size=48), min_size=1, max_size=4
    ),
    seed=st.integers(0, 2**32 - 1),
    batch_size=st.integers(1, 9),
    num_samples=st.integers(1, 3),
)
def test_whatever_the_controls_a_sample_is_that_of_its_seed_and_number(
    sampling: Sampling, prompts: list[list[int]], seed: int, batch_size: int, num_samples: int
) -> None:
    decoding = replace(DECODING, sampling=sampling)
    together = generate(
        MODEL, prompts, decoding, seed=seed, num_samples=num_samples, batch_size=batch_size
    )
    for number, prompt in enumerate(prompts):
        alone = generate(MODEL, [prompt], decoding, seed=seed, num_samples=3)
        for sample in range(num_samples):
            assert together[number * num_samples + sample].ids == alone[sample].ids


def test_greedy_does_not_depend_on_the_seed() -> None:
    gpt = model()
    greedy = Decoding(
        end_id=END, vocab_size=END + 1, max_new_tokens=10, sampling=Sampling(temperature=0)
    )
    first = [result.ids for result in generate(gpt, PROMPTS, greedy, seed=1, num_samples=2)]
    other = [result.ids for result in generate(gpt, PROMPTS, greedy, seed=2, num_samples=2)]
    assert first == other
    assert first[0::2] == first[1::2]

"""Ends, counts, notices and what the model is asked to read (faults 6, 34, 36, 38 and 39)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from minigpt.config import ModelConfig
from minigpt.errors import InputError
from minigpt.generation import decode as decode_module
from minigpt.generation import windows
from minigpt.generation.continuation import Continuation
from minigpt.generation.decode import Decoding, Row, decode, generate, stream
from minigpt.generation.sampling import Sampling
from minigpt.model import token_step
from minigpt.model.gpt import GPT
from minigpt.model.token_step import TokenStep

BLOCK_SIZE, VOCABULARY, NO_END = 8, 20, -1
GREEDY = Sampling(temperature=0)


@pytest.fixture
def gpt() -> GPT:
    torch.manual_seed(1)
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=BLOCK_SIZE)
    model = GPT(config, VOCABULARY).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def decoding(max_new_tokens: int, end_id: int = NO_END, sampling: Sampling = GREEDY) -> Decoding:
    return Decoding(
        end_id=end_id, vocab_size=VOCABULARY, max_new_tokens=max_new_tokens, sampling=sampling
    )


@pytest.mark.parametrize("n", [0, 1, 2, BLOCK_SIZE, 3 * BLOCK_SIZE + 1])
def test_exactly_so_many_tokens_where_nothing_ends(gpt: GPT, n: int) -> None:
    for result in generate(gpt, [[1], [2, 3, 4]], decoding(n), seed=0):
        assert len(result.ids) == n
        assert result.reason == "length"


def test_a_row_stops_at_its_end_token_which_is_not_part_of_the_text(gpt: GPT) -> None:
    prompts = [[1], [2, 3, 4], [5, 6]]
    free = [result.ids for result in generate(gpt, prompts, decoding(20), seed=0)]
    for end_id in {token for ids in free for token in ids}:
        for ids, result in zip(
            free, generate(gpt, prompts, decoding(20, end_id), seed=0), strict=True
        ):
            ends = end_id in ids
            assert result.ids == (ids[: ids.index(end_id)] if ends else ids)
            assert result.reason == ("end" if ends else "length")


def test_the_end_token_as_last_token_that_is_allowed_still_ends(gpt: GPT) -> None:
    free = generate(gpt, [[1]], decoding(20), seed=0)[0].ids
    n = next(i for i in range(1, 20) if free[i] not in free[:i])
    result = generate(gpt, [[1]], decoding(n + 1, free[n]), seed=0)[0]
    assert (result.ids, result.reason) == (free[:n], "end")
    result = generate(gpt, [[1]], decoding(n, free[n]), seed=0)[0]
    assert (result.ids, result.reason) == (free[:n], "length")


def test_the_loop_ends_when_all_rows_have_ended(gpt: GPT) -> None:
    free = generate(gpt, [[1]], decoding(20), seed=0)[0].ids
    steps = list(decode(gpt, [Row([1], seed=0)], decoding(20, free[4])))
    assert len(steps) == free.index(free[4]) + 1


def test_an_end_token_in_a_prompt_ends_nothing(gpt: GPT) -> None:
    free = generate(gpt, [[3, 7, 3]], decoding(1), seed=0)[0].ids
    assert free != [3]
    assert generate(gpt, [[3, 7, 3]], decoding(1, end_id=3), seed=0)[0].ids == free


def test_stream_gives_what_generate_gives(gpt: GPT) -> None:
    for sampling in (GREEDY, Sampling()):
        for sample in range(4):
            settings = decoding(30, end_id=4, sampling=sampling)
            whole = generate(gpt, [[1, 2]], settings, seed=5, num_samples=4)[sample]
            streamed = Continuation(settings)
            list(stream(gpt, Row([1, 2], 5, sample), settings, streamed))
            assert (streamed.ids, streamed.reason) == (whole.ids, whole.reason)


def test_ids_beyond_the_tokenizer_are_never_sampled(gpt: GPT) -> None:
    for sampling in (GREEDY, Sampling(temperature=1e4)):
        small = Decoding(end_id=NO_END, vocab_size=3, max_new_tokens=50, sampling=sampling)
        assert set(generate(gpt, [[1], [19]], small, seed=0)[1].ids) <= {0, 1, 2}


def test_results_are_in_the_order_given(gpt: GPT) -> None:
    prompts = [[1] * n for n in (9, 2, 5, 1, 7)]
    expected = [generate(gpt, [prompt], decoding(4), seed=0)[0].ids for prompt in prompts]
    for batch_size in (1, 2, 100):
        got = generate(gpt, prompts, decoding(4), seed=0, batch_size=batch_size)
        assert [result.ids for result in got] == expected


def test_no_prompts_give_no_results(gpt: GPT) -> None:
    assert generate(gpt, [], decoding(4), seed=0) == []


def read_by(
    gpt: GPT, prompts: list[list[int]], settings: Decoding, batch_size: int = 9
) -> list[tuple[int, int]]:
    """Rows and columns of each forward pass; a step reads a column."""
    sizes: list[tuple[int, int]] = []
    real_step, real_hidden = TokenStep.__call__, GPT.hidden

    def hidden(model: GPT, tokens: torch.Tensor, **named: Any) -> torch.Tensor:
        sizes.append((tokens.shape[0], tokens.shape[1]))
        return real_hidden(model, tokens, **named)

    def step(step: TokenStep, tokens: torch.Tensor, *args: Any) -> torch.Tensor:
        sizes.append((tokens.shape[0], 1))
        return real_step(step, tokens, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenStep, "__call__", step)
        patch.setattr(GPT, "hidden", hidden)
        generate(gpt, prompts, settings, seed=0, batch_size=batch_size)
    return sizes


def test_a_prefill_then_one_token_a_step_then_a_window_every_stride(gpt: GPT) -> None:
    step = (1, 1)
    # the window of 9 tokens starts at 2 and has 6 before the newest, as those of 11 and 13 have
    expected = [(1, 3), *[step] * 5, (1, 6), *[step] * 2, (1, 6), *[step] * 2, (1, 6), step]
    assert read_by(gpt, [[1, 2, 3]], decoding(11)) == expected


def test_prompts_of_like_length_run_together(gpt: GPT) -> None:
    prompts = [[1] * n for n in (5, 1, 2, 6)]
    assert read_by(gpt, prompts, decoding(1), batch_size=2) == [(2, 2), (2, 6)]


def test_only_the_window_that_moves_is_read_anew(gpt: GPT) -> None:
    sizes = read_by(gpt, [[1, 2, 3], [4], [5]], decoding(8))
    assert sizes == [(3, 3), *[(3, 1)] * 5, (1, 6), *[(3, 1)] * 2]
    sizes = read_by(gpt, [[1, 2, 3], [4], [5]], decoding(9))
    assert sizes[-2:] == [(3, 6), (3, 1)]  # all of them are full


def test_of_many_windows_a_few_are_read_anew_at_a_time(
    gpt: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[i] for i in range(7)]
    expected = [result.ids for result in generate(gpt, prompts, decoding(20), seed=0)]
    monkeypatch.setattr(windows, "ROWS_READ_ANEW", 3)
    sizes = read_by(gpt, prompts, decoding(9))
    assert sizes == [(7, 1), *[(7, 1)] * 7, (3, 6), (3, 6), (1, 6), (7, 1)]
    assert [result.ids for result in generate(gpt, prompts, decoding(20), seed=0)] == expected


def test_with_the_whole_context_as_stride_nothing_is_read_anew(gpt: GPT) -> None:
    settings = replace(decoding(20), context_stride=BLOCK_SIZE)
    assert read_by(gpt, [[1, 2]], settings) == [(1, 2), *[(1, 1)] * 19]


def test_without_the_cache_the_window_is_read_each_step(gpt: GPT) -> None:
    settings = replace(decoding(8), use_cache=False)
    assert read_by(gpt, [[1, 2, 3]], settings) == [(1, n) for n in (3, 4, 5, 6, 7, 8, 7, 8)]


def test_a_row_that_ended_has_no_window(gpt: GPT) -> None:
    long = [1, 2, 3, 4, 5, 6]
    end_id = generate(gpt, [long], decoding(1), seed=0)[0].ids[0]
    goes_on = [[i] for i in range(VOCABULARY)]
    texts = generate(gpt, goes_on, decoding(6, end_id), seed=0)
    short = next(i for i in range(VOCABULARY) if len(texts[i].ids) == 6)
    for use_cache in (True, False):
        settings = replace(decoding(6, end_id), use_cache=use_cache)
        notices: list[str] = []
        generate(gpt, [long, [short]], settings, seed=0, say=notices.append)
        assert notices == []
    # once the long row's places are full, nothing is read for it
    assert read_by(gpt, [long, [short]], decoding(6, end_id)) == [(2, 6), *[(2, 1)] * 5]


def test_rows_are_looked_at_now_and_then_where_looking_waits(
    gpt: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = generate(gpt, [[1], [2]], decoding(40), seed=0)
    end_id = free[0].ids[3]
    expected = generate(gpt, [[1], [2]], decoding(40, end_id), seed=0)
    steps = len(read_by(gpt, [[1]], decoding(40, end_id)))
    monkeypatch.setattr(decode_module, "STEPS_BETWEEN_LOOKS", {"cpu": 16})
    got = generate(gpt, [[1], [2]], decoding(40, end_id), seed=0)
    assert [(row.ids, row.reason) for row in got] == [(row.ids, row.reason) for row in expected]
    assert len(read_by(gpt, [[1]], decoding(40, end_id))) > steps


def test_going_past_the_context_is_said_once(gpt: GPT) -> None:
    notices: list[str] = []
    generate(gpt, [[1, 2, 3]], decoding(6), seed=0, say=notices.append)
    assert notices == []  # the last token that is read is the eighth
    generate(gpt, [[1, 2, 3]], decoding(30), seed=0, say=notices.append)
    assert len(notices) == 1
    assert "past the context of 8 tokens" in notices[0]
    generate(gpt, [[1], [2, 3]], decoding(30), seed=0, batch_size=1, say=notices.append)
    assert len(notices) == 2
    one_by_one = replace(decoding(30), context_stride=1)
    list(stream(gpt, Row([1, 2, 3], 0), one_by_one, Continuation(one_by_one), notices.append))
    assert len(notices) == 3
    assert notices[2].endswith("from the last 8 of them")


def test_a_model_in_training_mode_is_refused(gpt: GPT) -> None:
    with pytest.raises(ValueError, match="training mode"):
        generate(gpt.train(), [[1]], decoding(1), seed=0)


def test_a_prompt_without_tokens_is_refused(gpt: GPT) -> None:
    with pytest.raises(ValueError, match="without tokens"):
        generate(gpt, [[1], []], decoding(1), seed=0)


def test_a_stride_beyond_the_context_is_refused(gpt: GPT) -> None:
    settings = Decoding(
        end_id=NO_END, vocab_size=VOCABULARY, max_new_tokens=1, context_stride=BLOCK_SIZE + 1
    )
    with pytest.raises(InputError, match="context_stride=9: must be at most"):
        generate(gpt, [[1]], settings, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_decodes(gpt: GPT, dtype: torch.dtype) -> None:
    results = generate(gpt.to(dtype), [[1], [2, 3, 4]], decoding(12, sampling=Sampling()), seed=0)
    assert [len(result.ids) for result in results] == [12, 12]


def test_what_is_compiled_is_the_step(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compiler(function: Any, **_: object) -> object:
        compiled.append(function.__qualname__)
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    generate(gpt, [[1]], replace(decoding(3), compile_step=True), seed=0)
    assert compiled == ["TokenStep._read"]


@pytest.mark.slow
@pytest.mark.parametrize("graphs_on", [(), ("cpu",)], ids=["kernels", "graphs"])
def test_a_compiled_step_gives_the_same_text(
    gpt: GPT, graphs_on: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU has no graphs, but goes the way of a device that has."""
    monkeypatch.setattr(token_step, "GRAPHS_ON", graphs_on)
    torch.compiler.reset()
    settings = decoding(3 * BLOCK_SIZE)
    compiled = replace(settings, compile_step=True)
    for prompts in ([[1, 2, 3]], [[1], [2, 3, 4]]):
        expected = [result.ids for result in generate(gpt, prompts, settings, seed=0)]
        got = [result.ids for result in generate(gpt, prompts, compiled, seed=0)]
        assert got == expected

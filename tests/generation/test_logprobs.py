"""The scorer against a plain loop over tokens, each given what the windows' rule says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.checkpoint import load_model
from minigpt.config import ModelConfig
from minigpt.errors import InputError
from minigpt.generation import logprobs
from minigpt.generation.logprobs import score_texts, token_logprobs, windows_of
from minigpt.model.gpt import GPT

V = 11


def model_of(block_size: int, dtype: torch.dtype = torch.float64) -> GPT:
    torch.manual_seed(3)
    model = GPT(ModelConfig(n_layer=2, n_head=2, n_embd=8, block_size=block_size), V)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.to(dtype).eval()


@given(n_tokens=st.integers(0, 60), block_size=st.integers(1, 17), stride=st.integers(1, 17))
def test_every_token_but_the_first_is_scored_once_with_the_context_of_the_rule(
    n_tokens: int, block_size: int, stride: int
) -> None:
    stride = min(stride, block_size)
    windows = list(windows_of(n_tokens, block_size, stride))
    scored = [place for window in windows for place in range(window.first, window.last + 1)]
    assert scored == list(range(1, n_tokens))
    for number, window in enumerate(windows):
        assert window.start == number * stride  # each moves by the stride
        assert 1 <= window.width <= block_size
        for place in range(window.first, window.last + 1):
            given_to_it = place - window.start
            if place <= block_size:
                assert given_to_it == place  # all that is before it
            else:
                assert block_size - stride < given_to_it <= block_size


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    block_size=st.integers(1, 12),
    stride=st.integers(1, 12),
    batch_size=st.one_of(st.none(), st.integers(1, 5)),
    at_a_time=st.integers(V, 200),
    draw=st.randoms(use_true_random=False),
)
def test_scores_are_those_of_a_plain_loop(
    lengths: list[int],
    block_size: int,
    stride: int,
    batch_size: int | None,
    at_a_time: int,
    draw: Any,
) -> None:
    stride = min(stride, block_size)
    model = model_of(block_size)
    texts = [np.array([draw.randrange(V) for _ in range(n)], dtype=np.uint16) for n in lengths]
    told: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "MOST_LOGITS", at_a_time)
        found = score_texts(model, texts, stride=stride, batch_size=batch_size, done=told.append)
    assert sum(told) == sum(max(0, n - 1) for n in lengths)
    for ids, scores in zip(texts, found, strict=True):
        assert len(scores.logprobs) == max(0, len(ids) - 1)
        for place in range(1, len(ids)):
            start = 0
            while place - start > block_size:  # the rule, as words say it
                start += stride
            if place > block_size:  # the window is moved for the first token that it lacks
                first = block_size + 1 + (place - block_size - 1) // stride * stride
                start = 0
                while first - start > block_size:
                    start += stride
            with torch.no_grad():
                logits = model(torch.tensor(ids[None, start:place].astype(np.int64)))[0, -1]
            expected = logits.log_softmax(-1)
            assert scores.logprobs[place - 1] == pytest.approx(
                expected[ids[place]].item(), abs=1e-12
            )
            assert scores.guess_logprobs[place - 1] == pytest.approx(
                expected.max().item(), abs=1e-12
            )
            assert expected[scores.guesses[place - 1]] == expected.max()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_the_batch_size_changes_nothing(dtype: torch.dtype, bound: float) -> None:
    model = model_of(16, dtype)
    draw = np.random.default_rng(1)
    texts = [draw.integers(V, size=n) for n in draw.integers(2, 90, size=30)]
    alone = score_texts(model, texts, stride=5, batch_size=1)
    for batch_size in (2, 7, 1000, None):
        together = score_texts(model, texts, stride=5, batch_size=batch_size)
        for a, b in zip(alone, together, strict=True):
            assert np.abs(a.logprobs - b.logprobs).max() <= bound
            assert np.abs(a.guess_logprobs - b.guess_logprobs).max() <= bound


def test_the_losses_are_those_of_transformers(
    gpt2_folder: Callable[..., tuple[Path, Any]],
) -> None:
    folder, theirs = gpt2_folder(2, 3, 24, 17, 7, "gelu_new")
    ours = load_model(folder).model
    draw = np.random.default_rng(2)
    texts = [draw.integers(ours.vocab_size, size=n) for n in (2, 9, 17)]
    for ids, scores in zip(texts, score_texts(ours, texts, stride=8), strict=True):
        tokens = torch.tensor(ids[None])
        with torch.no_grad():
            loss = theirs(tokens, labels=tokens).loss
        assert -scores.logprobs.mean() == pytest.approx(loss.item(), abs=1e-5)


def test_past_the_context_the_losses_are_those_of_transformers_sliding_window(
    gpt2_folder: Callable[..., tuple[Path, Any]],
) -> None:
    """As their guide to perplexity does it: labels that are no part of a window's end are -100."""
    folder, theirs = gpt2_folder(2, 3, 24, 17, 7, "gelu_new")
    ours = load_model(folder).model
    ids = np.random.default_rng(3).integers(ours.vocab_size, size=60)
    stride, block_size = 6, 16  # one less: their windows hold the targets too
    total, ended = 0.0, 0
    for start in range(0, len(ids), stride):
        end = min(start + block_size + 1, len(ids))
        tokens = torch.tensor(ids[None, start:end])
        labels = tokens.clone()
        labels[:, : -(end - ended)] = -100
        scored = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += theirs(tokens, labels=labels).loss.item() * scored
        ended = end
        if end == len(ids):
            break
    with torch.no_grad():
        ours.config.block_size = block_size
        (scores,) = score_texts(ours, [ids], stride=stride)
    assert -scores.logprobs.sum() == pytest.approx(total, abs=1e-4)


def test_one_text_is_a_use_of_the_scorer() -> None:
    model = model_of(8)
    ids = np.random.default_rng(4).integers(V, size=30).tolist()
    (scores,) = score_texts(model, [ids], stride=2)
    assert token_logprobs(model, ids, 2) == scores.logprobs.tolist()
    assert token_logprobs(model, ids[:1], 2) == token_logprobs(model, [], 2) == []


def test_bfloat16_logits_are_widened() -> None:
    model = model_of(8, torch.bfloat16)
    ids = list(range(8))
    (scores,) = score_texts(model, [ids], stride=4)
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]]))[0].float()
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert scores.logprobs == pytest.approx(expected.numpy(), abs=1e-6)


def test_numbers_out_of_range_are_named() -> None:
    model = model_of(8, torch.float32)
    with torch.no_grad():
        model.embedding.weight.mul_(torch.inf)
    with pytest.raises(InputError, match="dtype=float32"):
        score_texts(model, [[1, 2, 3]], stride=4)

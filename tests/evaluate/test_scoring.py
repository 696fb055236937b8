"""Documents and what is counted of them; what is kept of them."""

import numpy as np
import pytest
import torch

from minigpt.config import ModelConfig, TokenizerConfig
from minigpt.data.token_store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError
from minigpt.evaluate import scoring
from minigpt.evaluate.extremes import FEW_TOKENS, PLACES, SHOWN_TOKENS, Extremes
from minigpt.evaluate.scoring import Document, n_targets, scored_documents, stride_for
from minigpt.generation.logprobs import Scores, score_texts
from minigpt.model.gpt import GPT

TEXTS = ["The sea.\n", "naïve — 日本語 🎉", "a", "The night of the stars calls my heart. " * 3]


@pytest.fixture(params=["bpe", "char", "bytes"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=280), TEXTS)


def model_for(tokenizer: Tokenizer, block_size: int = 12) -> GPT:
    torch.manual_seed(1)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=block_size)
    return GPT(config, tokenizer.vocab_size + 3).double().eval()


def store_of(tokenizer: Tokenizer, texts: list[str]) -> TokenStore:
    ids = [tokenizer.end_id]
    starts = [0]
    for text in texts:
        ids += [*tokenizer.encode(text), tokenizer.end_id]
        starts.append(len(ids) - 1)
    return TokenStore(np.array(ids, dtype=np.uint16), np.array(starts), n_bytes=0)


@pytest.mark.parametrize("score_end", [True, False])
def test_documents_are_read_by_themselves_between_end_tokens(
    tokenizer: Tokenizer, *, score_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TOKENS_AT_A_TIME", 20)  # several groups
    model = model_for(tokenizer)
    stores = [store_of(tokenizer, TEXTS[:3]), store_of(tokenizer, TEXTS[3:])]
    told: list[int] = []
    found = list(
        scored_documents(model, tokenizer, stores, stride=5, score_end=score_end, done=told.append)
    )
    assert [document.number for document in found] == [0, 1, 2, 3]
    assert sum(told) == n_targets(stores, score_end=score_end)
    for text, document in zip(TEXTS, found, strict=True):
        ids = [tokenizer.end_id, *tokenizer.encode(text), *[tokenizer.end_id] * score_end]
        assert document.ids.tolist() == ids
        (alone,) = score_texts(model, [ids], stride=5)
        assert document.scores.logprobs == pytest.approx(alone.logprobs, abs=1e-12)
        assert document.n_tokens == len(ids) - 1
        assert document.n_bytes == len(text.encode())
        assert document.n_characters == len(text)
        assert document.nats == pytest.approx(-alone.logprobs.sum())
        assert tokenizer.decode(document.ids) == text


def test_a_stride_beyond_the_context_is_refused(tokenizer: Tokenizer) -> None:
    model = model_for(tokenizer)
    assert [stride_for(given, model) for given in (None, 1, 12)] == [6, 1, 12]
    assert stride_for(None, model_for(tokenizer, block_size=1)) == 1
    with pytest.raises(InputError, match="stride=13: must be at most the model's context, 12"):
        stride_for(13, model)


def document(number: int, losses: list[float], ids: list[int] | None = None) -> Document:
    n = len(losses)
    scores = Scores(-np.array(losses), np.zeros(n, dtype=np.int32), np.full(n, -0.1))
    tokens = np.array([9, *(ids or [1] * n)], dtype=np.uint16)
    return Document(number, tokens, scores, n_bytes=n, n_characters=n)


def test_extremes_are_those_of_all_documents_sorted() -> None:
    draw = np.random.default_rng(1)
    documents = [
        document(i, draw.exponential(size=draw.integers(1, 40)).tolist()) for i in range(200)
    ]
    kept = Extremes(10, 7)
    for each in documents:
        kept.add(each)
    order = sorted(documents, key=lambda each: each.bits_per_byte)
    long = [each for each in order if each.n_tokens >= FEW_TOKENS]
    assert 7 <= len(long) < len(order)
    assert [e.number for _, e in kept.most.ranked()] == [e.number for e in long[:7]]
    assert [e.number for _, e in kept.least.ranked()] == [e.number for e in long[::-1][:7]]
    losses = sorted((x for each in documents for x in -each.scores.logprobs), reverse=True)
    assert [loss for loss, _ in kept.places.ranked()] == losses[:PLACES]
    for loss, (shown, place) in kept.places.ranked():
        assert -shown.scores.logprobs[place] == loss
        whole = documents[shown.number].scores.logprobs
        assert whole[shown.start + place] == -loss
    assert kept.counts[1] == sum(len(each.scores.logprobs) for each in documents)
    assert kept.sums[1] == pytest.approx(sum(each.nats for each in documents))


def test_documents_of_a_few_tokens_are_shown_where_there_are_no_others() -> None:
    kept = Extremes(10, 5)
    for number, losses in enumerate(([9.0], [0.5] * FEW_TOKENS, [2.0])):
        kept.add(document(number, losses))
    assert [shown.number for _, shown in kept.least.ranked()] == [1, 0, 2]


def test_of_a_long_document_a_part_is_kept() -> None:
    kept = Extremes(10, 2)
    kept.add(document(0, [0.5] * (SHOWN_TOKENS + 100)))
    ((_, shown),) = kept.least.ranked()
    assert len(shown.ids) == len(shown.scores.logprobs) == SHOWN_TOKENS
    assert shown.n_tokens == SHOWN_TOKENS + 100
    assert shown.scores.logprobs.base is None  # the rest is not held


def test_pairs_are_kept_where_the_models_differ() -> None:
    kept = Extremes(10, 3)
    for number, (a, b) in enumerate([(1, 1), (1, 2), (3, 1), (1, 4), (2, 1.5), (1, 9), (1, 3)]):
        kept.add(document(number, [a, a]), document(number, [b, b]))
    assert [pair[0].number for _, pair in kept.better.ranked()] == [2, 4]
    assert [pair[0].number for _, pair in kept.worse.ranked()] == [5, 3, 6]
    assert kept.worse.ranked()[0][1][1].bits_per_byte == pytest.approx(9 / np.log(2))


def test_nothing_is_kept_where_nothing_is_shown() -> None:
    kept = Extremes(10, 0)
    kept.add(document(0, [1.0]), document(0, [2.0]))
    for each in (kept.least, kept.most, kept.better, kept.worse):
        assert each.ranked() == []

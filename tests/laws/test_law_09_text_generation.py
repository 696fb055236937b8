"""Law 9 for generated text: streamed and whole are the same, with every kind of tokenizer."""

from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from minigpt.checkpoint import LoadedModel
from minigpt.config import ModelConfig, TokenizerConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.generation.language_model import LanguageModel
from minigpt.generation.logprobs import token_logprobs
from minigpt.model.gpt import GPT
from tests.laws.choices import POSITIONS

BLOCK_SIZE = 8
CORPUS = ["The cat said: “yes!” and the dog's 12 fleas left.\r\n", "猫と犬 🐈 床前明月光\t"] * 3
KINDS = ["char", "bytes", "bpe", "gpt2"]


def language_model(tokenizer: Tokenizer, position: str) -> LanguageModel:
    torch.manual_seed(2)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=BLOCK_SIZE, position=position)
    gpt = GPT(config, tokenizer.vocab_size).double().eval()
    for parameter in gpt.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    record = {"documents": 2}
    return LanguageModel(LoadedModel(gpt, tokenizer, record), batch_size=3, say=lambda _: None)


def gpt2_tokenizer(folder: Path) -> Tokenizer:
    vocabulary, merges = str(folder / "vocab.json"), str(folder / "merges.txt")
    inner = tokenizers.Tokenizer(models.BPE.from_file(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END])
    return Tokenizer(inner)


@pytest.fixture(scope="module", params=[(k, p) for k in KINDS for p in POSITIONS])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    kind, position = request.param
    if kind == "gpt2":
        tokenizer = gpt2_tokenizer(request.getfixturevalue("shared_data") / "gpt2_tokenizer")
        assert tokenizer.vocab_size == 50257
    else:
        tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=300), CORPUS)
    return language_model(tokenizer, position)


alphabet = sorted(set("".join(CORPUS)))
prompts = st.text(alphabet, max_size=3 * BLOCK_SIZE)
stops = st.lists(st.text(alphabet, min_size=1, max_size=2), max_size=3)
QUICK = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(prompt=prompts, stop=stops, seed=st.integers(0, 99), n=st.integers(0, 3 * BLOCK_SIZE))
def test_streamed_whole_alone_and_in_a_batch_are_one_text(
    model: LanguageModel, prompt: str, stop: list[str], seed: int, n: int
) -> None:
    controls = {"seed": seed, "max_new_tokens": n, "stop": stop}
    samples = model.generate([prompt, "猫", prompt + "."], num_samples=2, **controls)  # type: ignore[arg-type]
    alone = model.generate(prompt, num_samples=2, **controls)  # type: ignore[arg-type]
    for number in (0, 1):
        together = samples[number]
        pieces = list(model.stream(prompt, sample=number, **controls))  # type: ignore[arg-type]
        assert "".join(pieces) == together.text == alone[number].text
        assert (alone[number].ids, alone[number].reason) == (together.ids, together.reason)


@QUICK
@given(prompt=prompts, stop=stops, seed=st.integers(0, 99))
def test_a_stop_text_ends_the_text_that_there_is_without_it(
    model: LanguageModel, prompt: str, stop: list[str], seed: int
) -> None:
    free = model.generate(prompt, seed=seed, max_new_tokens=24)[0]
    stopped = model.generate(prompt, seed=seed, max_new_tokens=24, stop=stop)[0]
    token_bytes = model.tokenizer.token_bytes
    data = b"".join(token_bytes[i] for i in free.ids)
    assert free.text == data.decode("utf-8", "replace") == model.tokenizer.decode(free.ids)
    ends = [(at + len(s.encode()), at) for s in stop if (at := data.find(s.encode())) >= 0]
    if not ends:
        assert (stopped.ids, stopped.text, stopped.reason) == (free.ids, free.text, free.reason)
        return
    kept = data[: min(ends)[1]]
    assert (stopped.text, stopped.reason) == (kept.decode("utf-8", "replace"), "stop")
    assert not any(s in stopped.text for s in stop)
    # the tokens are those that the text needs
    assert stopped.ids == free.ids[: len(stopped.ids)]
    sizes = [sum(len(token_bytes[i]) for i in free.ids[:n]) for n in range(len(free.ids) + 1)]
    assert len(stopped.ids) == next(n for n, size in enumerate(sizes) if size >= len(kept))


@QUICK
@given(text=prompts)
def test_a_text_is_as_probable_as_a_plain_forward_says(model: LanguageModel, text: str) -> None:
    ids = model.tokenizer.encode(text)
    expected: list[float] = []
    for i in range(1, len(ids)):
        start = 0
        while i - start > BLOCK_SIZE:
            start += BLOCK_SIZE // 4
        with torch.no_grad():
            logits = model.model(torch.tensor([ids[start:i]]))[0, -1]
        expected.append(float(logits.log_softmax(-1)[ids[i]]))
    assert model.logprobs(text) == pytest.approx(expected, abs=1e-9)


def test_what_is_generated_is_as_probable_as_it_is_when_read(model: LanguageModel) -> None:
    sample = model.generate(
        "The cat", seed=1, max_new_tokens=3 * BLOCK_SIZE, temperature=3.0, start_of_document=False
    )[0]
    ids = model.tokenizer.encode("The cat") + sample.ids
    read = token_logprobs(model.model, ids, BLOCK_SIZE // 4)
    assert sample.logprobs == pytest.approx(read[len(ids) - len(sample.ids) - 1 :], abs=1e-9)

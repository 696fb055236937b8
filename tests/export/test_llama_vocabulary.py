"""A tokenizer in llama.cpp's words, by its algorithm in plain Python; what it has no words for."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import pre_tokenizers

from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError
from minigpt.export.llama_vocabulary import (
    CONTROL,
    NORMAL,
    UNUSED,
    decode,
    encoder,
    llama_vocabulary,
)
from tests.export.conftest import tokenizer_of

KINDS = {kind: tokenizer_of(kind) for kind in ("bpe", "bytes", "char")}


@given(text=st.lists(st.one_of(st.text(), st.sampled_from([END, "the sea", " "]))).map("".join))
@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_every_text_becomes_our_ids(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    vocabulary = llama_vocabulary(tokenizer, tokenizer.vocab_size)
    ids = encoder(vocabulary, [])(text)
    assert ids == tokenizer.encode(text)
    assert decode(vocabulary, ids) == text


@given(text=st.text(min_size=1, max_size=30), seed=st.randoms())
def test_any_alphabet_of_characters_is_found_again(text: str, seed: Any) -> None:
    """Whatever the characters of a corpus are, the bytes of each meet in it and in no other."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [text])
    vocabulary = llama_vocabulary(tokenizer, tokenizer.vocab_size)
    mixed = "".join(seed.choices(text, k=40))
    assert encoder(vocabulary, [])(mixed) == tokenizer.encode(mixed)


def test_characters_of_common_beginnings_are_kept_apart() -> None:
    """Every character of a block, whose UTF-8 differs in the last byte or the last two."""
    alphabet = "".join(
        map(chr, [*range(0x20, 0x250), *range(0x3040, 0x3100), *range(0x1F600, 0x1F650)])
    )
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), [alphabet])
    vocabulary = llama_vocabulary(tokenizer, tokenizer.vocab_size)
    encode = encoder(vocabulary, [tokenizer.end_id])
    for text in (alphabet, alphabet[::-1], "".join(a + b for a, b in itertools.pairwise(alphabet))):
        assert encode(text) == [tokenizer.end_id, *tokenizer.encode(text)]


def test_what_a_characters_tokenizer_does_not_know_is_left_out() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["aé猫"])
    encode = encoder(llama_vocabulary(tokenizer, tokenizer.vocab_size), [])
    assert encode("a\u00e8bé狗猫👍a") == tokenizer.encode("aé猫a")


def test_there_is_always_a_merge_and_it_may_never_happen() -> None:
    """llama.cpp asks for the list; a file cannot hold an empty one."""
    assert llama_vocabulary(KINDS["bytes"], 257).merges == [f"{END} {END}"]


def test_kinds_of_token() -> None:
    tokenizer = KINDS["bytes"]
    vocabulary = llama_vocabulary(tokenizer, 260)
    assert vocabulary.kinds == [NORMAL] * 256 + [CONTROL] + [UNUSED] * 3
    assert vocabulary.tokens[256:] == [END, "[PAD257]", "[PAD258]", "[PAD259]"]
    assert decode(vocabulary, [256, 257, *tokenizer.encode("a")]) == "a"


def described(kind: str = "bpe") -> dict[str, Any]:
    return json.loads(KINDS[kind].to_json())


def tokenizer(description: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_json(json.dumps(description))


@pytest.mark.parametrize(
    ("name", "value"), [("ignore_merges", True), ("byte_fallback", True), ("dropout", 0.5)]
)
def test_a_bpe_that_is_not_plain_is_refused(name: str, value: object) -> None:
    description = described()
    description["model"][name] = value
    with pytest.raises(InputError, match=f"{name}={value}"):
        llama_vocabulary(tokenizer(description), 400)


def test_another_pre_tokenizer_is_refused() -> None:
    inner = Inner.from_str(KINDS["bpe"].to_json())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with pytest.raises(InputError, match=r"pre-tokenizer is .*Digits.*: only GPT-2's"):
        llama_vocabulary(Tokenizer(inner), 400)


def test_a_pattern_that_is_left_out_is_refused() -> None:
    description = described()
    description["pre_tokenizer"]["use_regex"] = False
    with pytest.raises(InputError, match="use_regex"):
        llama_vocabulary(tokenizer(description), 400)


def test_another_added_token_is_refused() -> None:
    inner = Inner.from_str(KINDS["bpe"].to_json())
    inner.add_tokens(["<|user|>"])
    with pytest.raises(InputError, match=r"added token '<\|user\|>'"):
        llama_vocabulary(Tokenizer(inner), 400)


def test_the_older_way_to_say_plain_is_plain() -> None:
    """GPT-2's own file says "" where none is meant."""
    description = described()
    description["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    ours = KINDS["bpe"]
    vocabulary = llama_vocabulary(tokenizer(description), ours.vocab_size)
    assert vocabulary == llama_vocabulary(ours, ours.vocab_size)

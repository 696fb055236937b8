import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.config import TokenizerConfig
from minigpt.data import pieces as pieces_of
from minigpt.data.pieces import LONGEST_WORD, bounded, pieces
from minigpt.data.tokenizer import Tokenizer
from minigpt.data.tokenizer_json import END, GPT2_CUT
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError

TEXTS = ["the cat sat on the mat\n", "The dog's  mat, too: 12 mats!\r\n", "el niño 猫が好き 🐈"]


def make(kind: str, vocab_size: int | None = 300) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=vocab_size), TEXTS)


TOKENIZERS = {kind: make(kind) for kind in ("bpe", "char", "bytes")}


def test_the_vocabulary_is_the_real_one() -> None:
    alphabet = set("".join(TEXTS))
    assert TOKENIZERS["bytes"].vocab_size == 257
    assert TOKENIZERS["char"].vocab_size == len(alphabet) + 1
    # the text has too few repeated pairs for the vocabulary asked for
    assert 257 < make("bpe", 5000).vocab_size < 400
    assert TOKENIZERS["bpe"].vocab_size <= 300
    for tokenizer in TOKENIZERS.values():
        assert 0 <= tokenizer.end_id < tokenizer.vocab_size == len(tokenizer.token_bytes)
        assert tokenizer.token_bytes[tokenizer.end_id] == b""
        assert len(set(tokenizer.token_bytes)) == tokenizer.vocab_size


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_json_keeps_everything(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    read = Tokenizer.from_json(tokenizer.to_json())
    assert read.to_json() == tokenizer.to_json()
    assert (read.kind, read.end_id, read.vocab_size) == (
        kind,
        tokenizer.end_id,
        tokenizer.vocab_size,
    )
    assert [read.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


@given(st.text())
@settings(deadline=None, max_examples=100)
def test_the_json_means_the_same_to_the_library(text: str) -> None:
    for kind in ("bpe", "bytes"):
        library = tokenizers.Tokenizer.from_str(TOKENIZERS[kind].to_json())
        library.encode_special_tokens = True
        ids = TOKENIZERS[kind].encode(text)
        assert library.encode(text).ids == ids
        assert library.decode(ids) == text


@given(st.text(alphabet=sorted(set("".join(TEXTS)))))
@settings(deadline=None, max_examples=50)
def test_the_character_json_means_the_same_to_the_library(text: str) -> None:
    library = tokenizers.Tokenizer.from_str(TOKENIZERS["char"].to_json())
    ids = TOKENIZERS["char"].encode(text)
    assert library.encode(text).ids == ids
    assert library.decode(ids) == text


@given(st.lists(st.text(alphabet="ab' \n\r.,1é。\u2028\u00a0\x1c", max_size=30), max_size=4))
@settings(deadline=None, max_examples=200)
def test_a_text_encodes_the_same_in_pieces_and_in_batches(texts: list[str]) -> None:
    tokenizer = TOKENIZERS["bpe"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    for text in texts:
        cut = list(pieces(text, GPT2_CUT, size=1))
        assert "".join(cut) == text
        assert [i for piece in cut for i in tokenizer.encode(piece)] == tokenizer.encode(text)


def test_pieces_are_cut_where_they_can_be() -> None:
    assert list(pieces("one two  three", GPT2_CUT, size=1)) == ["one", " two", "  three"]
    assert list(pieces("one two three", GPT2_CUT, size=5)) == ["one two", " three"]
    assert list(pieces("one two three", None, size=5)) == ["one two three"]
    assert list(pieces("", GPT2_CUT)) == [""]


def test_long_documents_are_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TOKENIZERS["bpe"].encode_batch(TEXTS)
    monkeypatch.setattr("minigpt.data.pieces.PIECE", 8)
    assert TOKENIZERS["bpe"].encode_batch(TEXTS) == whole


def test_an_unseen_character_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"'€' \(U\+20AC\) at position 4 is not among the \d+"):
        TOKENIZERS["char"].encode("mat €")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_half_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match=r"position 1 holds U\+D83D"):
        TOKENIZERS[kind].encode("a\ud83d")
    with pytest.raises(InputError, match=r"position 1 holds U\+D83D"):
        TOKENIZERS[kind].encode_batch(["a\ud83d"])


def test_bytes_that_are_not_a_character_decode_to_the_replacement() -> None:
    ids = TOKENIZERS["bytes"].encode("é")
    assert TOKENIZERS["bytes"].decode(ids[:1]) == "\ufffd"
    assert TOKENIZERS["bytes"].decode([*ids, TOKENIZERS["bytes"].end_id, *ids]) == "éé"


def test_training_is_the_same_every_time() -> None:
    assert make("bpe").to_json() == TOKENIZERS["bpe"].to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["model"].update(type="Nonsense"), "not a tokenizer's JSON"),
        (lambda data: data["added_tokens"].clear() or data["model"]["vocab"].pop(END), "no token"),
        (
            lambda data: data.update(
                model={"type": "WordLevel", "vocab": {"a": 0, END: 1}, "unk_token": "a"}
            ),
            "only BPE",
        ),
    ],
)
def test_another_kind_of_tokenizer_is_refused(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = json.loads(TOKENIZERS["bytes"].to_json())
    change(data)
    with pytest.raises(InputError, match=message):
        Tokenizer.from_json(json.dumps(data))


def test_an_unknown_kind_lists_the_kinds() -> None:
    with pytest.raises(InputError, match="bpe, char, bytes"):
        train_tokenizer(TokenizerConfig(kind="words"), TEXTS)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_a_fork_after_threaded_work_is_silent() -> None:
    script = """
import os
from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
tokenizer = train_tokenizer(TokenizerConfig(vocab_size=300), ["some text", "more text"])
if os.fork() == 0:
    tokenizer.encode_batch(["some text"] * 100)
    os._exit(0)
print(os.waitpid(-1, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@given(st.text("ab \n"), st.integers(1, 4))
def test_bounded_parts_are_the_text(text: str, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_of, "_LONG_WORD", re.compile(rf"\S{{{longest}}}(?=\S)"))
        parts = list(bounded(text))
    assert "".join(parts) == text
    assert all(len(word) <= longest for part in parts for word in part.split())
    assert list(bounded(text)) == [text]
    assert max(map(len, bounded("x" * 10_000))) == LONGEST_WORD

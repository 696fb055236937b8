"""Texts found in tokens on the device, against looking for them in the bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.errors import InputError
from minigpt.generation import text_match
from minigpt.generation.text_match import TextMatch
from minigpt.generation.text_stream import TextStream

CPU = torch.device("cpu")


def plain_completes(before: bytes, token: bytes, text: bytes) -> bool:
    """Whether `text` occurs in both together with its end inside the token."""
    ends = range(len(before) + 1, len(before + token) + 1)
    return any((before + token)[:end].endswith(text) for end in ends)


def match_of(texts: list[str], tokens: list[bytes]) -> TextMatch:
    return TextMatch(texts, tokens, CPU)


# few letters, so that texts overlap, contain each other and begin like themselves; tokens are
# whole texts, parts of characters and nothing at all
@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[str], list[bytes]]:
    alphabet = draw(st.sampled_from(["ab", "abc", "a你你", "😀😁b"]))
    texts = draw(st.lists(st.text(alphabet, min_size=1, max_size=5), min_size=1, max_size=4))
    data = st.text(alphabet, max_size=6).map(str.encode)
    parts = st.tuples(data, st.integers(0, 24), st.integers(0, 24)).map(
        lambda part: part[0][min(part[1:]) : max(part[1:])]
    )
    tokens = draw(st.lists(st.one_of(data, parts), max_size=8))
    return texts, [*(bytes([byte]) for byte in sorted(set(alphabet.encode()))), *tokens, b""]


@settings(deadline=None, max_examples=200)
@given(vocabularies(), st.data())
def test_texts_are_complete_where_their_last_byte_is(
    vocabulary: tuple[list[str], list[bytes]], data: st.DataObject
) -> None:
    texts, tokens = vocabulary
    ids = st.integers(0, len(tokens) - 1)
    n_rows, n_steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    rows = data.draw(
        st.lists(
            st.lists(ids, min_size=n_steps, max_size=n_steps), min_size=n_rows, max_size=n_rows
        )
    )
    prompts = data.draw(st.lists(st.lists(ids, max_size=6), min_size=n_rows, max_size=n_rows))
    so_far = [b"".join(tokens[i] for i in prompt) for prompt in prompts]
    match = match_of(texts, tokens)
    states = match.start(so_far)
    for step in range(n_steps):
        column = [row[step] for row in rows]
        plain = [
            [[plain_completes(before, t, text.encode()) for t in tokens] for text in texts]
            for before in so_far
        ]
        assert match.completing(states).tolist() == plain
        expected = [[of_text[i] for of_text in row] for row, i in zip(plain, column, strict=True)]
        assert match.completed(states, torch.tensor(column)).tolist() == expected
        states = match.advance(states, torch.tensor(column))
        so_far = [before + tokens[i] for before, i in zip(so_far, column, strict=True)]
        assert torch.equal(states, match.start(so_far))


@settings(deadline=None, max_examples=200)
@given(vocabularies(), st.data())
def test_a_text_is_complete_at_the_token_at_which_the_stream_stops(
    vocabulary: tuple[list[str], list[bytes]], data: st.DataObject
) -> None:
    texts, tokens = vocabulary
    row = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=16))
    match, text = match_of(texts, tokens), TextStream(tokens, texts)
    states = match.start([b""])
    for i in row:
        text.push(i)
        ids = torch.tensor([i])
        assert bool(match.completed(states, ids).any()) == text.stopped
        if text.stopped:
            break
        states = match.advance(states, ids)


def test_a_row_without_a_token_stays_where_it_is() -> None:
    match = match_of(["abc"], [b"a", b"b", b"c"])
    states = match.start([b"ab", b"ab"])
    ids = torch.tensor([-1, 0])
    assert not match.completed(states, ids).any()
    assert torch.equal(match.advance(states, ids), match.start([b"ab", b"aba"]))


def test_a_text_within_one_token_is_complete_wherever_it_starts() -> None:
    match = match_of(["aba", "b"], [b"xabay", b"ba", b"ab"])
    assert match.completing(match.start([b"", b"a"])).tolist() == [
        [[True, False, False], [True, True, True]],
        [[True, True, False], [True, True, True]],
    ]


def test_a_complete_text_may_overlap_with_the_next() -> None:
    match = match_of(["aa"], [b"a"])
    states, found = match.start([b""]), []
    for _ in range(4):
        ids = torch.tensor([0])
        found.append(bool(match.completed(states, ids)))
        states = match.advance(states, ids)
    assert found == [False, True, True, True]


def test_texts_are_found_in_real_tokens_and_tokens_that_are_left_out_keep_them_out() -> None:
    story = "Once upon a time there was a cat. The cat sat on a mat, 你好 😀. The end of it.\n"
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), [story * 5])
    texts = ["cat", "t. T", "好", "😀", " a "]
    match = match_of(texts, tokenizer.token_bytes)
    states, before, count = match.start([b""]), b"", [0] * len(texts)
    for i in tokenizer.encode(story):
        token = tokenizer.token_bytes[i]
        completes: Tensor = match.completing(states)[0]
        for p, text in enumerate(texts):
            plain = [plain_completes(before, t, text.encode()) for t in tokenizer.token_bytes]
            assert completes[p].tolist() == plain
            count[p] += plain[i]
        states = match.advance(states, torch.tensor([i]))
        before += token
    assert count == [story.count(text) for text in texts]


def test_tables_made_a_row_at_a_time_are_those_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = text_match.byte_moves([b"abab", b"ba"])
    tokens = [b"", b"ab", b"abababab", b"b", b"xba", b"a"]
    whole = text_match.token_moves(moves, tokens)
    for entries in (1, 2 * len(tokens), 4 * len(tokens)):
        monkeypatch.setattr(text_match, "ENTRIES_AT_A_TIME", entries)
        assert (text_match.token_moves(moves, tokens) == whole).all()


def test_texts_too_long_for_the_memory_are_refused_and_as_long_as_fit_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_match, "MAX_TABLES", 3 * (16 * 2 + 6144))
    text_match.check_size("stop", ["aé"], 1)
    refusal = (
        "stop: the texts are too long together: 4 bytes,"
        " and with a vocabulary of 1 tokens at most 3 fit"
    )
    with pytest.raises(InputError, match=refusal):
        text_match.check_size("stop", ["aé", "b"], 1)

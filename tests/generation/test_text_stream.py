"""A character appears when it is whole; the pieces are the text (law 9), cut at a stop string."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minigpt.config import TokenizerConfig
from minigpt.data.tokenizer_training import train_tokenizer
from minigpt.generation.text_stream import TextStream


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at random places, empty pieces included."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def stream(pieces: list[bytes], stop: list[str] | None = None) -> list[str]:
    """The text that appears with each piece, and at the end."""
    text = TextStream(pieces, stop or [])
    return [*(text.push(i) for i in range(len(pieces))), text.finish()]


def plain_cut(data: bytes, stop: list[str]) -> tuple[int, int | None]:
    """Where the text ends and which byte completes the stop string: a byte at a time."""
    for end in range(1, len(data) + 1):
        complete = [text.encode() for text in stop if data[:end].endswith(text.encode())]
        if complete:
            return end - max(map(len, complete)), end
    return len(data), None


def plain_certain(data: bytes, stop: list[str]) -> bytes:
    """The bytes that are text whatever comes after them, where no stop string is complete."""
    for start in range(len(data) + 1):
        rest = data[start:]
        if any(text.encode().startswith(rest) for text in stop):
            return data[:start]
    return data


places = st.lists(st.integers(min_value=0), max_size=12)

# few letters, so that stop strings overlap, contain each other and begin like themselves; the
# characters of three and four bytes share their first bytes
letters = st.sampled_from(["ab", "abc", "a你你", "😀😁b", "\ufffda"])
watched = letters.flatmap(
    lambda alphabet: st.tuples(
        st.text(alphabet, max_size=24),
        st.lists(st.text(alphabet, min_size=1, max_size=5), min_size=1, max_size=4),
    )
)


@settings(deadline=None, max_examples=100)
@given(st.text(), places)
def test_pieces_of_a_text_join_to_it_without_replacement(text: str, places: list[int]) -> None:
    shown = stream(cut(text.encode(), places))
    assert "".join(shown) == text
    assert shown[-1] == ""


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=40), places)
def test_any_bytes_join_to_the_text_of_the_whole(data: bytes, places: list[int]) -> None:
    assert "".join(stream(cut(data, places))) == data.decode("utf-8", "replace")


def test_a_character_appears_with_its_last_byte() -> None:
    assert stream([b"a", b"\xf0\x9f", b"\x98", b"\x80b"]) == ["a", "", "", "😀b", ""]


def test_what_is_unfinished_appears_once_at_the_end() -> None:
    text = TextStream([b"a\xe6\xbc"])
    assert text.push(0) == "a"
    assert text.finish() == "\ufffd"
    assert text.finish() == ""


def test_a_finished_stream_starts_afresh() -> None:
    text = TextStream([b"\xe6\xbc", b"b", b"c", b"abc"], ["bc"])
    assert text.push(0) + text.push(1) == ""
    assert text.finish() == "\ufffdb"
    assert text.push(2) == "c"  # the held "b" is gone
    assert text.push(3) == "a"
    assert (text.stopped, text.size) == (True, 2)
    assert text.finish() == ""
    assert (text.stopped, text.size) == (False, 0)
    assert text.push(2) == "c"


@settings(deadline=None, max_examples=300)
@given(watched, places)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(
    case: tuple[str, list[str]], places: list[int]
) -> None:
    data, stop = case[0].encode(), case[1]
    end, complete = plain_cut(data, stop)
    text = TextStream(pieces := cut(data, places), stop)
    shown, n_read = "", 0
    for i, piece in enumerate(pieces):
        shown += text.push(i)
        n_read += len(piece)
        assert text.stopped == (complete is not None and n_read >= complete)
        assert text.size == (end if text.stopped else n_read)
    assert shown + text.finish() == data[:end].decode("utf-8", "replace")


@settings(deadline=None, max_examples=300)
@given(watched, places)
def test_what_is_certain_appears_at_once_and_nothing_else_does(
    case: tuple[str, list[str]], places: list[int]
) -> None:
    data, stop = case[0].encode(), case[1]
    text = TextStream(pieces := cut(data, places), stop)
    shown, read = "", b""
    for i, piece in enumerate(pieces):
        shown += text.push(i)
        read += piece
        if text.stopped:
            break
        # of a text, what is cut short is its last character: it is not whole yet
        assert shown == plain_certain(read, stop).decode("utf-8", "ignore")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([b"a", b"b", b"\xe4", b"\xbd", b"\xa0"]), max_size=20), places)
@example([b"\xe4", b"\xbd", b"a", b"b"], [])  # unfinished where the text ends
def test_bytes_that_are_no_text_end_at_a_stop_string_too(
    symbols: list[bytes], places: list[int]
) -> None:
    data, stop = b"".join(symbols), ["ab", "ba", "你a", "a你"]
    end, complete = plain_cut(data, stop)
    *shown, rest = stream(cut(data, places), stop)
    assert "".join(shown) + rest == data[:end].decode("utf-8", "replace")
    assert rest == "" or complete is None  # after a stop nothing more is to come


def test_a_character_for_undecodable_bytes_stops_at_itself_only() -> None:
    assert stream([b"a\xff", b"b"], ["\ufffd"]) == ["a\ufffd", "b", ""]
    assert stream(["a\ufffdb".encode()], ["\ufffd"]) == ["a", ""]


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        (["one\n\nUser", ": two"], ["\n\nUser:"], ["one", "", ""]),
        (["one\n\nUs", "ed"], ["\n\nUser:"], ["one", "\n\nUsed", ""]),
        (["one\n\nUs"], ["\n\nUser:"], ["one", "\n\nUs"]),
        (["aSTOPb", "c"], ["STOP"], ["a", "", ""]),
        (["xabc"], ["abcd", "b"], ["xa", ""]),  # the longer one begins first and is never complete
        (["xa", "bcd"], ["abcd", "bc"], ["x", "a", ""]),  # complete first, though it begins later
        (["xabc"], ["c", "abc", "bc"], ["x", ""]),  # complete together: the longest
        (["aab"], ["ab"], ["a", ""]),
    ],
)
def test_a_stop_string_in_pieces(pieces: list[str], stop: list[str], shown: list[str]) -> None:
    assert stream([piece.encode() for piece in pieces], stop) == shown


def test_a_text_of_real_tokens_ends_before_the_stop_string() -> None:
    story = "Once upon a time there was a cat. The cat sat on a mat, 你好 😀. The end of it.\n"
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), [story * 5])
    ids = tokenizer.encode(story * 2)
    for stop in (" sat", "t. T", "好 ", "😀.", "e end", "\nOnce", "nowhere"):
        text = TextStream(tokenizer.token_bytes, [stop])
        shown = "".join(map(text.push, ids))
        assert text.stopped == (stop != "nowhere")
        assert text.size == len((story * 2).split(stop)[0].encode())
        assert shown + text.finish() == (story * 2).split(stop)[0]

"""A character appears when it is whole; the pieces are the text (law 9)."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.generation.text_stream import TextStream


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at random places, empty pieces included."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def stream(pieces: list[bytes]) -> list[str]:
    """The text that appears with each piece, and at the end."""
    text = TextStream(pieces)
    return [*(text.push(i) for i in range(len(pieces))), text.finish()]


places = st.lists(st.integers(min_value=0), max_size=12)


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
    text = TextStream([b"\xe6\xbc", b"a"])
    text.push(0)
    text.finish()
    assert text.push(1) == "a"

"""engine.server.detokenize against a plain reference that sees the whole output at once."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from engine.server.detokenize import TextStream

PIECES = [bytes([value]) for value in range(256)]
SHORT = st.text(alphabet="abé🙂", min_size=1, max_size=4)


def whole_text(text: str, stops: list[str]) -> str:
    """The text before the stop that is complete first; of two complete at once, before the longer."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(len(stop) for stop in found)]
    return text


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.text(alphabet="abé🙂", max_size=40), st.lists(SHORT, max_size=4), st.lists(st.integers(0, 200), max_size=12))
@example("xxab", ["abc"], [3])
@example("aaab", ["aab", "ab"], [])
@example("abcd", ["abcd", "bc"], [])
def test_text_does_not_depend_on_the_cuts_and_ends_before_the_first_complete_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stream = TextStream(PIECES, stops)
    written = ""
    for piece in pieces_of(text.encode(), cuts):
        written += stream.push(list(piece))
        assert whole_text(text, stops).startswith(written), "text was written that the whole output does not have"
    written += stream.finish()
    assert written == whole_text(text, stops)
    assert stream.stopped == any(stop in text for stop in stops)


@given(st.text(max_size=60))
def test_a_character_comes_whole_with_its_last_byte(text: str) -> None:
    stream = TextStream(PIECES, [])
    for character in text:
        *first, last = character.encode()
        assert all(stream.push([byte]) == "" for byte in first)
        assert stream.push([last]) == character
    assert stream.finish() == ""


def test_nothing_is_held_back_that_no_stop_begins_with() -> None:
    stream = TextStream(PIECES, ["END", "\n\n"])
    assert stream.push(list(b"one E")) == "one "
    assert stream.push(list(b"N")) == ""
    assert stream.push(list(b"OUGH\n")) == "ENOUGH"
    assert stream.finish() == "\n"


def test_half_a_character_at_the_end_is_left_out() -> None:
    stream = TextStream(PIECES, [])
    assert stream.push(list("né".encode()[:-1])) == "n"
    assert stream.finish() == ""


def test_bytes_that_are_no_text_come_as_replacement_characters() -> None:
    stream = TextStream(PIECES, [])
    assert stream.push([0xFF]) + stream.push([0xC3]) + stream.push(list(b"a")) == "��a"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    assert TextStream(PIECES, []).push([97, 5000, 98]) == "ab"

"""What a relay writes: pieces of connections in lines, however they are cut, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.providers.e2b.pieces import MAX_LINE, PIECE_BYTES, BrokenRelay, Kind, Lines, Piece

pieces = st.builds(Piece, st.integers(0, 2**32 - 1), st.sampled_from(list(Kind)), st.binary(max_size=200))


@given(st.lists(pieces, max_size=20), st.lists(st.integers(1, 50), min_size=1))
def test_pieces_come_out_however_the_text_is_cut(sent: list[Piece], cuts: list[int]) -> None:
    text = b"".join(piece.line() for piece in sent).decode("ascii")
    lines, received, at, turn = Lines(), [], 0, 0
    while at < len(text):
        size = cuts[turn % len(cuts)]
        received += lines.receive(text[at : at + size])
        at, turn = at + size, turn + 1
    assert received == sent


@pytest.mark.parametrize("text", ["!\n", "\n", "AAAA\n", "AAAAAAk=\n", "AAAAAQ€=\n", "A" * (MAX_LINE + 1)])
def test_what_is_no_piece_is_refused(text: str) -> None:
    with pytest.raises(BrokenRelay):
        Lines().receive(text)


def test_a_line_without_an_end_is_bounded() -> None:
    lines = Lines()
    for _ in range(MAX_LINE // 1000):
        assert lines.receive("A" * 1000) == []
    with pytest.raises(BrokenRelay):
        lines.receive("A" * 1000)


def test_the_largest_piece_fits_into_a_line() -> None:
    piece = Piece(1, Kind.DATA, bytes(PIECE_BYTES))
    assert len(piece.line()) <= MAX_LINE
    assert Lines().receive(piece.line().decode()) == [piece]

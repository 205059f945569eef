"""Secrets in answers: none gets through, in however many pieces it comes."""

from __future__ import annotations

import h11
from hypothesis import given
from hypothesis import strategies as st

from sandlot.worker.network.broker.redaction import NOTHING, Redaction

# Few letters, so that values overlap themselves, each other and what stands around them.
VALUES = st.lists(st.text("ab*", min_size=8, max_size=12).map(str.encode), min_size=1, max_size=2)
PIECES = st.lists(st.text("ab*", max_size=30).map(str.encode) | st.just(b""), max_size=10)


@given(VALUES, st.data())
def test_no_secret_gets_through_in_any_pieces(values: list[bytes], data: st.DataObject) -> None:
    parts = data.draw(
        st.lists(st.sampled_from(values) | st.text("ab*", max_size=5).map(str.encode), max_size=10)
    )
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    body = Redaction(values).body()
    passed = b""
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        passed += body.feed(whole[begin:end])
        # No more is held back than could begin a secret, so events of a stream arrive at once.
        held = end - len(passed)
        assert held < max(map(len, values))
        assert not held or any(value.startswith(whole[end - held : end]) for value in values)
    passed += body.end()
    assert len(passed) == len(whole)
    assert all(value not in passed for value in values)
    kept = [(new, old) for new, old in zip(passed, whole, strict=True) if new != old]
    assert {new for new, _ in kept} <= set(b"*\x7f")


@given(VALUES, PIECES)
def test_no_secret_gets_through_in_a_head(values: list[bytes], pieces: list[bytes]) -> None:
    text = b"".join([*pieces, values[0], *pieces])
    head = Redaction(values).head(h11.Response(status_code=200, headers=[(b"x", text)], reason=text))
    assert all(value not in bytes(head.reason) for value in values)
    assert all(value not in head.headers[0][1] for value in values)


def test_without_secrets_everything_stays() -> None:
    head = h11.Response(status_code=200, headers=[(b"x", b"y")], reason=b"OK")
    assert NOTHING.head(head) is head
    assert NOTHING.body().feed(b"abc") == b"abc"
    assert Redaction([b"0123456789"]).body().feed(b"abc") == b"abc"

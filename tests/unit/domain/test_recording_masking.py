"""Masking of output in pieces: wherever it is split, it is masked as a whole text is."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.history.masking import LOOKED_FOR_CHARS, MASK, MIN_SECRET_CHARS, masked
from sandlot.domain.recordings.masked_stream import STEP_CHARS, MaskedStream

# Few letters, so that secrets overlap each other and themselves, and text begins like a secret and is none.
LETTERS = "ab\n"
SECRETS = st.lists(st.text(LETTERS, min_size=MIN_SECRET_CHARS, max_size=9), min_size=1, max_size=4)


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    secrets = draw(SECRETS)
    parts = draw(
        st.lists(st.one_of(st.text(LETTERS + "xs", max_size=8), st.sampled_from(secrets)), max_size=8)
    )
    text = "".join(parts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return secrets, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def shown(secrets: list[str], pieces: list[str]) -> str:
    stream = MaskedStream(secrets)
    return "".join([*(stream.feed(piece) for piece in pieces), stream.end()])


@given(split_texts())
def test_a_split_text_is_masked_as_a_whole_one(made: tuple[list[str], list[str]]) -> None:
    secrets, pieces = made
    assert shown(secrets, pieces) == masked("".join(pieces), secrets)


@given(split_texts())
def test_no_secret_is_shown(made: tuple[list[str], list[str]]) -> None:
    secrets, pieces = made
    kept = shown(secrets, pieces)
    assert not any(secret in kept for secret in secrets)


@given(st.integers(0, 70), st.integers(0, 70))
def test_an_api_key_is_masked_wherever_it_is_split(first: int, second: int) -> None:
    key = issue(OWNER, 0.0, name="x").text
    text = f"ls {key} sl_ s"
    cuts = sorted((first, second))
    pieces = [text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]]
    assert shown([], pieces) == f"ls {MASK} sl_ s"


def test_text_is_held_back_only_while_it_may_be_a_secret() -> None:
    stream = MaskedStream(["hunter22"])
    assert stream.feed("Password: ") == "Password: "
    assert stream.feed("hunt") == ""
    assert stream.feed("ing") == "hunting"
    assert stream.feed("hunter2") == ""
    assert stream.feed("2!") == f"{MASK}!"
    assert stream.end() == ""


def test_a_long_secret_is_masked_as_a_whole() -> None:
    secret = "".join(f"{number:05}" for number in range(200))
    assert len(secret) > LOOKED_FOR_CHARS
    text = f"<{secret}>"
    for size in (1, 7, 255, 256, 257, 2000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert shown([secret], pieces) == f"<{MASK}>"


def test_a_secret_of_several_lines_is_found_on_a_terminal() -> None:
    assert shown(["one\ntwo"], ["one\r", "\ntwo."]) == f"{MASK}."


def test_a_long_text_is_masked_in_all_its_steps() -> None:
    text = "x" * (STEP_CHARS - 3) + "hunter22" + "y" * STEP_CHARS + "hunter22"
    assert shown(["hunter22"], [text]) == "x" * (STEP_CHARS - 3) + MASK + "y" * STEP_CHARS + MASK


def test_the_work_is_bounded_whatever_the_secrets_are() -> None:
    secrets = ["a" * (5 + number) for number in range(250)]

    def seconds(text: str) -> float:
        began = time.process_time()
        shown(secrets, [text])
        return time.process_time() - began

    small, large = (min(seconds("ab" * (size // 2)) for _ in range(3)) for size in (16_384, 65_536))
    assert large < 12 * small

"""Masking: no part of a secret that stands in a command is kept."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.callers.keys import issue
from sandlot.domain.callers.principal import OWNER
from sandlot.domain.history.masking import (
    CUT,
    MASK,
    MAX_SECRETS,
    MIN_SECRET_CHARS,
    masked,
    masked_words,
    secrets_in,
)

# Secrets are written with other letters than the rest, so that a letter says what it is a part of.
SECRETS = st.lists(st.text("abé", min_size=MIN_SECRET_CHARS, max_size=12), min_size=1, max_size=4)
REST = st.text("xyz '\"$\\\n\udc80", max_size=30)
SECRET_LETTERS = set("abé")


@st.composite
def commands(draw: st.DrawFn) -> tuple[str, list[str]]:
    secrets = draw(SECRETS)
    pieces = draw(st.lists(st.one_of(REST, st.sampled_from(secrets)), max_size=12))
    return "".join(pieces), secrets


@given(commands(), st.integers(1, 80))
def test_nothing_of_a_secret_is_kept_wherever_the_text_is_cut(
    made: tuple[str, list[str]], max_chars: int
) -> None:
    text, secrets = made
    assert not SECRET_LETTERS & set(masked(text, secrets, max_chars))


@given(commands())
def test_the_rest_is_kept(made: tuple[str, list[str]]) -> None:
    text, secrets = made
    kept = masked(text, secrets).replace(MASK, "")
    rest = "".join(letter for letter in text if letter not in SECRET_LETTERS)
    assert kept == rest.replace("\udc80", "?")


@given(st.lists(commands(), min_size=1, max_size=4), st.integers(1, 60))
def test_words_are_masked_before_they_are_quoted(made: list[tuple[str, list[str]]], max_chars: int) -> None:
    secrets = [secret for _, each in made for secret in each]
    words = [text for text, _ in made]
    assert not SECRET_LETTERS & set(masked_words(words, secrets, max_chars))


def test_a_secret_with_quotes_in_an_argument_is_found() -> None:
    secret = 'it\'s "mine"'
    assert masked_words(("echo", f"x{secret}y"), [secret]) == shlex.join(["echo", "x***y"])


def test_secrets_that_overlap_are_masked_together() -> None:
    assert masked("1 abcdefgh 2", ["abcdef", "cdefgh"]) == "1 *** 2"
    assert masked("1 aaaaaaa 2", ["aaaaa"]) == "1 *** 2"


def test_a_secret_at_the_cut_is_masked_as_a_whole() -> None:
    assert masked("12345secretsecret6789", ["secretsecret"], 8) == f"12345{MASK}{CUT}"
    assert masked("12345secretsecret", ["secretsecret"], 8) == f"12345{MASK}"


def test_a_long_secret_is_masked_to_its_end() -> None:
    secret = " ".join(map(str, range(300)))
    assert masked(f"a {secret} b", [secret]) == "a *** b"


def test_short_values_are_no_secrets() -> None:
    assert secrets_in(["1", "main", "", "12345"]) == ["12345"]


def test_an_api_key_is_masked_without_being_told() -> None:
    key = issue(OWNER, 0.0, name="x").text
    assert masked(f"curl -H 'X-API-Key: {key}' http://x", ()) == "curl -H 'X-API-Key: ***' http://x"
    assert masked("12345" + key, (), 10) == "12345***"


def test_too_many_secrets_to_look_for_leave_nothing_of_the_text() -> None:
    secrets = secrets_in(f"value-{number}" for number in range(10_000))
    assert len(secrets) == MAX_SECRETS + 1
    assert masked("echo value-9999", secrets) == MASK


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("a" * 3_000_000, ["a" * 5]),
        ("a" * 3_000_000, ["a" * 100_000]),
        ("a" * 3_000_000, ["b" + "a" * number for number in range(5, 250)]),
        ("a" * 3_000_000, ["a" * number for number in range(5, 250)]),
    ],
)
def test_no_text_and_no_secrets_take_long(text: str, secrets: list[str]) -> None:
    """The caller chooses both, and the worker's event loop waits. Unbounded, these take seconds.

    Compared with one pass over the text in the same moment: it takes about twice as long as the slowest.
    """
    took, passes = [], []
    for _ in range(3):
        began = time.perf_counter()
        masked(text, secrets)
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        assert sum(1 for _ in text) == len(text)
        passes.append(time.perf_counter() - began)
    assert min(took) < 3 * min(passes)

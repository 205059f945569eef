"""Ids, keys, tokens and links in E2B's forms, and what they lead back to."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.e2b.names import (
    is_terminal,
    key_for_e2b,
    key_from_e2b,
    new_exec_id,
    pid_of,
    sandbox_id_of,
    session_id_of,
)
from sandlot.domain.e2b.tokens import SandboxTokens, SignedLink, TokenKind
from sandlot.domain.errors import NotFound
from sandlot.domain.ids import is_exec_id, new_session_id

SECRET = b"s" * 32
SESSION, OTHER = new_session_id(), new_session_id()
KEY_ID = "abcdefghij27"


def test_a_sandbox_id_leads_back_to_its_session() -> None:
    assert sandbox_id_of(SESSION).isalnum()
    assert session_id_of(sandbox_id_of(SESSION)) == SESSION


@pytest.mark.parametrize(
    "wrong", ["", "ses_" + "0" * 32, "0" * 31, "0" * 33, "G" * 32, "../x", "0" * 31 + "\n"]
)
def test_no_other_text_is_a_sandbox_id(wrong: str) -> None:
    with pytest.raises(NotFound):
        session_id_of(wrong)


@pytest.mark.parametrize("terminal", [True, False])
def test_an_exec_carries_its_number(terminal: bool) -> None:
    exec_id = new_exec_id(terminal=terminal)
    assert is_exec_id(exec_id)
    assert is_terminal(exec_id) is terminal
    assert str(pid_of(exec_id)) == exec_id.rpartition("-")[2]


@given(st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True))
def test_any_exec_has_a_number(exec_id: str) -> None:
    assert 0 < pid_of(exec_id) < 2**31
    assert pid_of(exec_id) == pid_of(exec_id)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_a_key_is_read_in_both_forms(key: str) -> None:
    written = key_for_e2b(key)
    assert written.removeprefix("e2b_").isalnum()
    assert key_from_e2b(written.encode()) == key.encode()
    if not key.startswith("e2b_"):
        assert key_from_e2b(key.encode()) == key.encode()


@pytest.mark.parametrize("text", [b"e2b_", b"e2b_0", b"e2b_xyz", b"\xff\x00", b"e2b_\xff"])
def test_what_is_no_key_stays_what_it_is(text: bytes) -> None:
    assert key_from_e2b(text) == text


@pytest.mark.parametrize("key_id", ["", KEY_ID])
def test_a_token_opens_its_session_for_its_key(key_id: str) -> None:
    tokens = SandboxTokens(SECRET, "server-key")
    token = tokens.issue(SESSION, key_id)
    assert tokens.key_of(SESSION, token) == key_id
    assert SandboxTokens(SECRET, "server-key").key_of(SESSION, token) == key_id, "after a restart, too"
    assert tokens.key_of(OTHER, token) is None
    assert SandboxTokens(b"t" * 32, "server-key").key_of(SESSION, token) is None
    for wrong in (token[:-1], token + "0", token.upper(), token.replace("sbt", "sbx"), "", "sbt_owner_"):
        assert tokens.key_of(SESSION, wrong) is None


def test_a_token_cannot_be_given_to_another_key() -> None:
    tokens = SandboxTokens(SECRET, "server-key")
    mine = tokens.issue(SESSION, KEY_ID)
    assert tokens.key_of(SESSION, mine.replace(KEY_ID, "bcdefghij227")) is None
    assert tokens.key_of(SESSION, mine.replace(KEY_ID, "owner")) is None


def test_a_token_for_ports_opens_nothing_else() -> None:
    tokens = SandboxTokens(SECRET, "server-key")
    whole, port = tokens.issue(SESSION, KEY_ID), tokens.issue(SESSION, KEY_ID, TokenKind.PORT)
    assert tokens.key_of(SESSION, port, TokenKind.PORT) == KEY_ID
    assert tokens.key_of(SESSION, port) is None
    assert tokens.key_of(SESSION, whole, TokenKind.PORT) is None
    assert tokens.key_of(SESSION, port.replace("sbp_", "sbt_")) is None


def test_tokens_of_the_server_end_with_its_key() -> None:
    old, new = SandboxTokens(SECRET, "old"), SandboxTokens(SECRET, "new")
    assert new.key_of(SESSION, old.issue(SESSION, "")) is None
    assert new.key_of(SESSION, old.issue(SESSION, KEY_ID)) == KEY_ID


def signed(token: str, path: str = "/a", operation: str = "read", user: str = "", expires: str = "") -> str:
    """As E2B's SDK signs."""
    text = f"{path}:{operation}:{user}:{token}" + (f":{expires}" if expires else "")
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def test_a_link_fits_what_was_signed_and_nothing_else() -> None:
    assert SignedLink("/a", "read", "", signed("t")).fits("t")
    assert SignedLink("/a", "read", "user", signed("t", user="user")).fits("t")
    assert SignedLink("/a", "read", "", signed("t", expires="99"), "99").fits("t")
    for wrong in (
        SignedLink("/b", "read", "", signed("t")),
        SignedLink("/a", "write", "", signed("t")),
        SignedLink("/a", "read", "user", signed("t")),
        SignedLink("/a", "read", "", signed("t"), "99"),
        SignedLink("/a", "read", "", signed("t", expires="99"), "100"),
        SignedLink("/a", "read", "", signed("other")),
        SignedLink("/a\udcff", "read", "", signed("t")),
        SignedLink("/a", "read", "", "v1_ü\udcff"),
        SignedLink("/a", "read", "", ""),
    ):
        assert not wrong.fits("t")


@pytest.mark.parametrize(
    ("expires_at", "expired"),
    [(None, False), ("1001", False), ("1000", True), ("", True), ("-5", True), ("1e9", True), ("²", True)],
)
def test_when_a_link_expires(expires_at: str | None, expired: bool) -> None:
    assert SignedLink("/a", "read", "", "", expires_at).has_expired(1000.0) is expired

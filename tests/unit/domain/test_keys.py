"""Keys: how they are written, who may issue which, and how they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.callers.keys import (
    ApiKey,
    check_may_end,
    ended,
    issue,
    opens,
    parse_key,
    reissue,
    visible_to,
)
from sandlot.domain.callers.principal import ALL_SCOPES, OWNER, USER_SCOPES, Principal, Scope
from sandlot.domain.errors import Forbidden, InvalidRequest, NotFound

NOW = 1_700_000_000.0
TIMES = st.floats(min_value=0, max_value=1e9)


def a_key(**options: object) -> ApiKey:
    return issue(OWNER, NOW, name="a program", **options).key  # type: ignore[arg-type]


def test_every_key_is_another() -> None:
    texts = {issue(OWNER, NOW, name="x").text for _ in range(200)}
    assert len(texts) == 200
    assert len({text.split("_")[1] for text in texts}) == 200
    for text in texts:
        parsed = parse_key(text)
        assert parsed is not None
        assert text.startswith(f"sl_{parsed[0]}_{parsed[1]}")


@given(st.text(max_size=80))
def test_other_text_is_no_key(text: str) -> None:
    assert parse_key(text) is None
    assert parse_key(f"sl_aaaaaaaaaaaa_{text}") is None


def test_a_typing_error_is_found() -> None:
    """Any one character changed: no key at all, so that no store is asked."""
    text = issue(OWNER, NOW, name="x").text
    for place in range(len(text)):
        for other in {"a", "b", "Z", "7"} - {text[place]}:
            assert parse_key(text[:place] + other + text[place + 1 :]) is None


def test_only_its_own_secret_opens_it() -> None:
    first, second = issue(OWNER, NOW, name="x"), issue(OWNER, NOW, name="x")
    for new, other in ((first, second), (second, first)):
        parsed = parse_key(new.text)
        assert parsed is not None
        assert opens(new.key, parsed[1])
        assert not opens(other.key, parsed[1])


@given(st.frozensets(st.sampled_from(list(Scope))), st.frozensets(st.sampled_from(list(Scope)), min_size=1))
def test_nobody_gives_what_they_lack(own: frozenset[Scope], asked: frozenset[Scope]) -> None:
    creator = Principal("acme", own, "kkkkkkkkkkkk")
    may_manage = Scope.ADMIN in own or Scope.FLEET_OPERATE in own
    if may_manage and asked <= own:
        key = issue(creator, NOW, name="x", scopes=asked).key
        assert (key.scopes, key.tenant, key.created_by) == (asked, "acme", "kkkkkkkkkkkk")
    else:
        with pytest.raises(Forbidden):
            issue(creator, NOW, name="x", scopes=asked)


def test_without_scopes_a_key_uses_sandboxes() -> None:
    assert a_key().scopes == USER_SCOPES
    assert issue(Principal("t", ALL_SCOPES - {Scope.FILES}), NOW, name="x").key.scopes == USER_SCOPES - {
        Scope.FILES
    }
    with pytest.raises(InvalidRequest, match="at least one scope"):
        issue(Principal("t", frozenset({Scope.ADMIN})), NOW, name="x")


@given(st.lists(st.tuples(TIMES, st.booleans()), min_size=1, max_size=5), st.none() | TIMES)
def test_an_end_never_moves_back(ends: list[tuple[float, bool]], lifetime_s: float | None) -> None:
    key = a_key(lifetime_s=None if not lifetime_s else lifetime_s % 1e8 + 1)
    first = key.expires_at
    for at, revoked in ends:
        before = key
        key = ended(key, at, revoked=revoked)
        assert key.expires_at is not None
        assert key.expires_at <= (at if before.expires_at is None else min(at, before.expires_at))
        assert before.revoked_at is None or key.revoked_at == before.revoked_at
    assert key.expires_at == min([at for at, _ in ends] + ([] if first is None else [first]))
    assert (key.revoked_at is not None) == any(revoked for _, revoked in ends)


def test_a_reissued_key_lives_as_long_again() -> None:
    key = a_key(tenant="acme", scopes=frozenset({Scope.EXEC}), lifetime_s=100)
    new = reissue(OWNER, key, NOW + 60).key
    assert (new.tenant, new.name, new.scopes, new.expires_at) == ("acme", key.name, key.scopes, NOW + 160)
    with pytest.raises(InvalidRequest, match="expired"):
        reissue(OWNER, key, NOW + 100)
    with pytest.raises(Forbidden):
        reissue(Principal("acme", frozenset({Scope.ADMIN})), key, NOW)


def test_a_foreign_key_does_not_exist() -> None:
    key, mine = a_key(tenant="other"), Principal("acme", frozenset({Scope.ADMIN}))
    messages = set()
    for found in (key, None):
        with pytest.raises(NotFound) as missing:
            visible_to(mine, found)
        messages.add(missing.value.message)
    assert len(messages) == 1
    assert visible_to(Principal("acme", frozenset({Scope.FLEET_OPERATE})), key) is key


def test_a_managing_key_does_not_outlive_its_creator() -> None:
    creator = Principal("acme", ALL_SCOPES, "kkkkkkkkkkkk", expires_at=NOW + 60)
    for lifetime_s in (None, 3600.0):
        boss = issue(creator, NOW, name="x", scopes=frozenset({Scope.ADMIN}), lifetime_s=lifetime_s).key
        assert boss.expires_at == NOW + 60
        user = issue(creator, NOW, name="x", lifetime_s=lifetime_s).key
        assert user.expires_at == (None if lifetime_s is None else NOW + 3600)
    boss = issue(creator, NOW, name="x", scopes=frozenset({Scope.ADMIN})).key
    again = reissue(boss.principal, boss, NOW + 30).key
    assert again.expires_at == NOW + 60


def test_a_key_is_rotated_once() -> None:
    key = ended(a_key(), NOW + 60, revoked=False, replaced_by="bbbbbbbbbbbb")
    with pytest.raises(InvalidRequest, match="was replaced by bbbbbbbbbbbb"):
        reissue(OWNER, key, NOW)


def test_an_administrator_does_not_end_operators() -> None:
    operator = a_key(scopes=frozenset({Scope.FLEET_OPERATE}))
    with pytest.raises(Forbidden):
        check_may_end(Principal("default", frozenset({Scope.ADMIN})), operator)
    check_may_end(OWNER, operator)
    check_may_end(Principal("default", frozenset({Scope.ADMIN})), a_key())

"""Limits of tenants and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.callers.limits import (
    NO_LIMITS,
    Allowance,
    CallerLimits,
    Use,
    check_room,
    exceeded,
    key_holder,
    parse_limits,
    tenant_holder,
    total_use,
    use_of,
)
from sandlot.domain.capacity.limits import MIB, Limits
from sandlot.domain.errors import Busy, InvalidRequest
from sandlot.domain.session import Session


def test_parse() -> None:
    assert parse_limits("") == NO_LIMITS
    assert parse_limits(
        "sessions=10 cpus=0.5, memory_mb=2048,execs=4 creates_per_s=0.1 calls_per_s=50"
    ) == CallerLimits(10, 0.5, 2048, 4, 0.1, 50.0)
    assert parse_limits("sessions=0").sessions == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("session=3", "Unknown limit 'session'. Did you mean 'sessions'?"),
        ("sessions", "must be a whole number"),
        ("sessions=1.5", "must be a whole number"),
        ("cpus=many", "must be a number"),
        ("cpus=nan", "out of range"),
        ("sessions=-1", "out of range"),
        ("sessions=" + "9" * 400, "out of range"),
        ("calls_per_s=0", "out of range"),
        ("sessions=1 sessions=2", "given twice"),
    ],
)
def test_what_is_no_limit(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told.replace("?", r"\?")):
        parse_limits(text)


def test_own_limits_first() -> None:
    shared = CallerLimits(sessions=5, calls_per_s=10)
    assert CallerLimits(sessions=50).or_else(shared) == CallerLimits(sessions=50, calls_per_s=10)
    assert CallerLimits(sessions=0).or_else(shared).sessions == 0


def test_the_tighter_of_two() -> None:
    tightened = CallerLimits(sessions=5, cpus=1).tightened(CallerLimits(sessions=2, calls_per_s=3))
    assert tightened == CallerLimits(sessions=2, cpus=1, calls_per_s=3)


@given(st.lists(st.floats(0.05, 16, allow_nan=False), min_size=1, max_size=50))
def test_what_fits_exactly_fits(cpus: list[float]) -> None:
    rounded = [round(value, 2) for value in cpus]
    used = Use()
    for value in rounded:
        used += use_of(Limits(cpus=value))
    most = CallerLimits(cpus=sum(round(value * 100) for value in rounded) / 100)
    assert exceeded(most, used, Use()) is None
    assert exceeded(most, used, Use(millicpus=1)) == "cpus"


def test_a_session_counts_for_its_tenant_and_its_key() -> None:
    def session(tenant: str, key: str) -> Session:
        return Session("ses_1", "base", 0, 0, tenant=tenant, created_by=key)

    sessions = [session("acme", "k"), session("acme", ""), session("other", "k2")]
    assert total_use(tenant_holder("acme"), sessions) == Use(2, 1000, 1024)
    assert total_use(key_holder("k"), sessions) == Use(1, 500, 512)
    # A tenant cannot be named so that it counts as a key, and a session without a key counts for none.
    assert total_use(key_holder(""), sessions) == Use()
    assert total_use(tenant_holder("k"), sessions) == Use()


def test_the_refusal_says_what_to_do() -> None:
    allowance = Allowance(tenant_holder("acme"), CallerLimits(memory_mb=1000))
    check_room(allowance, Use(1, 500, 488), use_of(Limits(memory_bytes=512 * MIB)))
    with pytest.raises(Busy) as caught:
        check_room(allowance, Use(1, 500, 489), use_of(Limits(memory_bytes=512 * MIB)))
    assert "Tenant acme has reached its limit of 1000 MiB of memory" in caught.value.message
    assert "Delete sessions" in caught.value.message
    assert caught.value.details == {"reason": "quota", "limit": "memory_mb", "at_most": 1000}

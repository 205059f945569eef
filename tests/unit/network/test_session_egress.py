"""Environment, session and grants together; and which denials are kept and reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.caps import Caps
from sandlot.domain.network.decisions import Allowed, Decision, Denied
from sandlot.domain.network.denials import MAX_KEPT, REPORT_EVERY_S, REPORTS_AT_ONCE, DenialLog
from sandlot.domain.network.hosts import parse_host, parse_target
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.session_egress import MAX_GRANTS, SessionEgress

NOW = 1000.0


def egress(environment: Any = "none", own: Any = None, ceiling: Any = None) -> SessionEgress:
    bare = SessionEgress(
        parse_policy(environment), ceiling=None if ceiling is None else parse_policy(ceiling)
    )
    return bare if own is None else bare.asking(parse_policy(own))


def decide(of: SessionEgress, text: str, now: float = NOW) -> Decision:
    target = parse_target(text, 443)
    return of.decide(target.host, target.port, now)


def allows(of: SessionEgress, text: str, now: float = NOW) -> bool:
    return isinstance(decide(of, text, now), Allowed)


def test_nothing_is_allowed_unless_somebody_says_so() -> None:
    assert not allows(SessionEgress(), "example.com")
    assert SessionEgress().entries(NOW) == ()


def test_a_session_replaces_what_its_environment_allows() -> None:
    assert allows(egress(["a.com"]), "a.com")
    narrowed = egress(["a.com"], ["b.com"])
    assert not allows(narrowed, "a.com")
    assert allows(narrowed, "b.com")
    assert not allows(egress(["a.com"], "none"), "a.com")


def test_rules_that_deny_add_up() -> None:
    both = egress({"allow": ["public"], "deny": ["a.com"]}, {"allow": ["public", "a.com"], "deny": ["b.com"]})
    granted = both.with_grant("a.com", NOW).with_grant("b.com", NOW)
    for one in (both, granted):
        assert [allows(one, host) for host in ("a.com", "b.com", "c.com")] == [False, False, True]
    target, address = parse_target("c.com:443"), parse_host("8.8.8.8").address
    assert address is not None
    assert egress({"deny": ["8.8.8.8"]}, "public").denial_of_address(target, address) is not None
    assert egress("none", "public").denial_of_address(target, address) is None


def test_a_grant_ends() -> None:
    granted = egress(["a.com"]).with_grant("b.com", NOW, 600)
    assert [allows(granted, "b.com", now) for now in (NOW, NOW + 599, NOW + 600)] == [True, True, False]
    assert allows(granted, "a.com", NOW + 600)
    assert granted.entries(NOW) == ("a.com", "b.com")
    assert granted.entries(NOW + 600) == ("a.com",)
    assert not allows(granted.with_grant("b.com", NOW, 10), "b.com", NOW + 11)
    assert allows(granted.with_grant("b.com", NOW), "b.com", NOW + 1e9)
    assert allows(granted.with_grant("pypi", NOW, 10), "files.pythonhosted.org")
    assert not allows(granted.without_grant("b.com"), "b.com")
    with pytest.raises(InvalidRequest, match=r"'c\.com' was not granted.* Granted is: b\.com"):
        granted.without_grant("c.com")


def test_grants_are_bounded() -> None:
    full = egress()
    for number in range(MAX_GRANTS):
        full = full.with_grant(f"h{number}.com", NOW, 600)
    with pytest.raises(InvalidRequest, match="Revoke some"):
        full.with_grant("one-more.com", NOW)
    assert full.with_grant("h0.com", NOW, 60).grants[-1].entry == "h0.com"  # in place of the first
    assert [grant.entry for grant in full.with_grant("one-more.com", NOW + 600).grants] == ["one-more.com"]
    for seconds in (0, 0.5, -1, 1e9, float("nan")):
        with pytest.raises(InvalidRequest, match="for_s must be"):
            egress().with_grant("a.com", NOW, seconds)
    with pytest.raises(InvalidRequest, match="Did you mean 'pypi'"):
        egress().with_grant("pypii", NOW)


def test_a_ceiling() -> None:
    ceiling = {"allow": ["packages", "*.example.com", "db.example.net:5432"], "deny": ["secret.example.com"]}
    session = egress("none", ["pypi", "*.a.example.com", "b.example.com", "db.example.net:5432"], ceiling)
    for target in ("pypi.org", "x.a.example.com", "b.example.com:80", "db.example.net:5432"):
        assert allows(session, target)
    assert not allows(session.with_grant("*.example.com", NOW), "secret.example.com")
    for entry in (
        "github",
        "public",
        "example.com",
        "*.com",
        "b.example.com:22",
        "db.example.net",
        "8.8.8.8",
    ):
        with pytest.raises(InvalidRequest, match=f"{entry.replace('*', '[*]')} is more than sessions may"):
            session.with_grant(entry, NOW)
        with pytest.raises(InvalidRequest, match="Ask the operator"):
            egress("none", [entry], ceiling)


def test_a_ceiling_is_for_what_sessions_ask_for() -> None:
    """The operator declared the environment, so a session may have, and ask for, all that it allows."""
    session = egress(["a.com:5432", "a.com"], ceiling=["b.com"])
    assert allows(session, "a.com")
    assert allows(egress(["a.com:5432", "a.com"], ["a.com:5432"], ["b.com"]), "a.com:5432")
    with pytest.raises(InvalidRequest, match=r"which is: a\.com:5432, a\.com, b\.com"):
        session.asking(parse_policy(["c.com"]))


def test_a_ceiling_that_was_lowered_since() -> None:
    asked = egress("none", ["a.com"], "public").with_grant("c.com", NOW)
    lowered = replace(asked, ceiling=parse_policy(["b.com"]))
    for host in ("a.com", "c.com"):
        decision = decide(lowered, host)
        assert isinstance(decision, Denied)
        assert decision.rule == "above the ceiling"


def test_a_new_policy_ends_grants() -> None:
    asked = egress("none", ["a.com"]).with_grant("b.com", NOW)
    assert asked.asking(parse_policy("none")).entries(NOW) == ()


def test_a_registrys_host_is_asked_for_by_its_preset() -> None:
    for host, entry in (("pypi.org", "pypi"), ("deb.debian.org", "debian"), ("crates.io", "packages")):
        assert f'allow("{entry}", for_s=600)' in denied(host).ask
        assert f'allow("{entry}", for_s=600)' in denied(host).line
    assert 'allow("pypi.org:22", for_s=600)' in denied("pypi.org:22").ask


def test_any_protocol_needs_the_ceilings_consent() -> None:
    for ceiling, expected in ((None, True), ("public", False), (["a.com:443"], True)):
        decision = decide(egress("none", ["a.com:443"], ceiling), "a.com")
        assert isinstance(decision, Allowed)
        assert decision.any_protocol is expected


def test_the_lower_caps_count() -> None:
    environment = {"caps": {"connections": 16, "bytes": 1000}}
    assert egress(environment).caps == Caps(16, 1000)
    own = {"caps": {"connections": 32, "bytes": 10, "bytes_per_s": 40960}}
    assert egress(environment, own).caps == Caps(16, 10, 40960)


def denied(host: str) -> Denied:
    decision = decide(SessionEgress(), host)
    assert isinstance(decision, Denied)
    return decision


def test_equal_denials_are_reported_once_in_a_while() -> None:
    log = DenialLog()
    reports = [log.add(denied("a.com"), NOW + second) for second in range(int(REPORT_EVERY_S) + 1)]
    assert reports == [True, *[False] * (int(REPORT_EVERY_S) - 1), True]
    assert log.total == len(reports)
    assert log.since(NOW) == (denied("a.com"),)


def test_made_up_names_do_not_fill_the_log_or_the_history() -> None:
    log = DenialLog()
    reports = [log.add(denied(f"h{number}.com"), NOW) for number in range(5000)]
    assert sum(reports) == REPORTS_AT_ONCE
    kept = log.since(0)
    assert len(kept) == MAX_KEPT
    assert kept[-1].target == "h4999.com:443"
    assert log.add(denied("later.com"), NOW + REPORT_EVERY_S)


def test_the_denials_of_one_command() -> None:
    log = DenialLog()
    for at, host in ((1, "a.com"), (2, "b.com"), (3, "a.com"), (4, "c.com")):
        log.add(denied(host), at)
    assert [each.target for each in log.since(3)] == ["a.com:443", "c.com:443"]
    assert log.since(5) == ()

"""Egress policies: how they are written, and what they allow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import Address
from sandlot.domain.network.caps import Caps
from sandlot.domain.network.decisions import Allowed, Denied
from sandlot.domain.network.hosts import parse_host, parse_target
from sandlot.domain.network.policy import EgressPolicy, parse_policy
from sandlot.domain.network.presets import PRESETS
from sandlot.domain.network.rules import Rule, parse_rules


def allowed(document: Any, target: str) -> bool:
    asked = parse_target(target, 443)
    return isinstance(parse_policy(document).decide(asked.host, asked.port), Allowed)


LIST = [
    "example.com",
    "*.example.org",
    "db.example.com:5432",
    "93.184.216.34",
    "[2606:4700::1111]:853",
    "db:5432",
]


@pytest.mark.parametrize(
    "target",
    [
        *("example.com", "example.com:80", "EXAMPLE.COM.", "a.example.org", "a.b.example.org:80"),
        *("db.example.com:5432", "93.184.216.34", "93.184.216.34:80", "93.184.55330", "0x5db8d822"),
        *("[2606:4700::1111]:853", "[2606:4700:0::1111]:853", "db:5432"),
    ],
)
def test_what_a_list_allows(target: str) -> None:
    assert allowed(LIST, target)


@pytest.mark.parametrize(
    "target",
    [
        *("a.example.com", "example.org", "evilexample.com", "evilexample.org", "example.com.evil.net"),
        *("example.com:22", "example.com:8080", "db.example.com", "db.example.com:443", "db:443", "db"),
        *("93.184.216.35", "93.184.216.34:22", "[2606:4700::1111]", "[::ffff:93.184.216.34]"),
        *("127.0.0.1", "2130706433", "[::1]", "169.254.169.254", "localhost", "x.db:5432"),
    ],
)
def test_what_a_list_does_not_allow(target: str) -> None:
    assert not allowed(LIST, target)


def test_none_and_public() -> None:
    for target in ("example.com", "localhost", "93.184.216.34"):
        assert not allowed("none", target)
        assert not allowed([], target)
    assert allowed("public", "example.com")
    assert allowed({"allow": ["public", "db.example.com:5432"]}, "db.example.com:5432")
    for target in ("93.184.216.34", "[2606:4700::1111]", "example.com:22"):
        assert not allowed("public", target)


def test_deny_wins() -> None:
    policy = {
        "allow": ["public", "a.example.com:22", "bad.net"],
        "deny": ["*.example.com", "bad.net", "c.com:80"],
    }
    for target in ("a.example.com", "a.example.com:22", "bad.net", "bad.net:80", "c.com:80"):
        assert not allowed(policy, target)
    for target in ("example.com", "c.com", "x.bad.net"):
        assert allowed(policy, target)
    assert not allowed({"allow": ["packages"], "deny": ["pypi"]}, "pypi.org")
    assert allowed({"allow": ["packages"], "deny": ["pypi"]}, "registry.npmjs.org")


def test_a_denied_address_is_denied_behind_a_name() -> None:
    policy, target = parse_policy({"allow": ["public"], "deny": ["93.184.216.34"]}), parse_target("a.com:443")
    for text, denied in (
        ("93.184.216.34", True),
        ("[64:ff9b::5db8:d822]", True),
        ("93.184.216.35", False),
    ):
        address = parse_host(text).address
        assert isinstance(address, Address)
        assert (policy.denial_of_address(target, address) is not None) is denied


def test_a_port_that_is_listed_is_for_any_protocol() -> None:
    policy = parse_policy(["example.com", "example.com:443", "other.com", "db.com:5432"])
    for target, any_protocol in (
        ("example.com:443", True),
        ("example.com:80", False),
        ("other.com:443", False),
        ("db.com:5432", True),
    ):
        asked = parse_target(target)
        decision = policy.decide(asked.host, asked.port)
        assert isinstance(decision, Allowed)
        assert decision.any_protocol is any_protocol


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    for host in PRESETS[name]:
        assert allowed([name], host.replace("*", "x"))
    assert not allowed([name], "example.com")
    assert {rule.entry for rule in parse_rules(name)} == {name}


def test_all_registries_without_what_anyone_can_write_to() -> None:
    packages = set(PRESETS["packages"])
    assert packages > {*PRESETS["pypi"], *PRESETS["npm"], *PRESETS["debian"]}
    assert not packages & {*PRESETS["github"], *PRESETS["huggingface"]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("publik", "Unknown egress policy 'publik'. Did you mean 'public'?"),
        ("example.com", "Write none, public or a list of hosts"),
        (["pypii"], "Unknown preset 'pypii'. Did you mean 'pypi'?"),
        (["db"], "write its port too: db:443"),
        (["*"], "public for every name"),
        (["*example.com"], r"Write \*.example.com"),
        (["*.93.184.216.34"], "nothing is below an address"),
        (["https://example.com"], "without a scheme or a path"),
        (["user@example.com"], "without a scheme"),
        (["10.0.0.0/8"], "without a scheme or a path"),
        (["127.1"], "'127.1' is the address 127.0.0.1. Write it so."),
        (["0x7f000001:80"], "is the address 127.0.0.1"),
        (["bücher.example"], "write xn--bcher-kva.example"),
        (["example.com:0"], "is not a port"),
        (["example.com:"], "is not a port"),
        (["fe80::1%eth0"], "without a zone"),
        ([""], "is not a host"),
        ([5], "is not a host"),
        ([["pypi"]], "is not a host"),
        (None, "must be a list"),
        (5, "must be a list"),
        ({"alow": []}, "unknown field 'alow'. Did you mean 'allow'?"),
        ({"allow": "pypi"}, "allow must be a list"),
        ({"deny": ["public"]}, "Write none as the policy"),
        ({"allow": ["a.com"] * 501}, "at most 500"),
        ({"caps": {"conections": 5}}, "Unknown cap 'conections'. Did you mean 'connections'?"),
        ({"caps": {"connections": 0}}, "from 1 to 1024"),
        ({"caps": {"bytes": True}}, "whole number"),
        ({"caps": {"bytes_per_s": 1.5}}, "whole number"),
        ({"caps": []}, "must be a mapping"),
    ],
)
def test_a_wrong_policy_is_an_error(document: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_policy(document)


def test_denials_say_what_to_do() -> None:
    def denial(document: Any, text: str) -> Denied:
        target = parse_target(text, 443)
        decision = parse_policy(document).decide(target.host, target.port)
        assert isinstance(decision, Denied)
        return decision

    first = denial(["pypi"], "Evil.example.com")
    assert "evil.example.com:443" in first.text
    assert "Allowed are: pypi." in first.text
    assert 'session.network.allow("evil.example.com", for_s=600)' in first.text
    assert "no network" in denial("none", "a.com").why
    assert 'allow("pypi.org:22"' in denial(["pypi"], "pypi.org:22").ask
    assert "not on 22" in denial(["pypi"], "pypi.org:22").why
    assert "Use the host's name" in denial("public", "8.8.8.8").why
    assert denial({"allow": ["public"], "deny": ["*.bad.net"]}, "x.bad.net").rule == "deny: *.bad.net"
    assert "and 42 more" in denial([f"h{number}.com" for number in range(50)], "a.com").why


def test_what_to_ask_for_is_enough() -> None:
    """The entry that a denial names allows the target, whatever the target is."""
    for text in ("a.com", "a.com:80", "a.com:22", "db:80", "8.8.8.8", "8.8.8.8:53", "[2606:4700::1111]:443"):
        target = parse_target(text, 443)
        decision = parse_policy("none").decide(target.host, target.port)
        assert isinstance(decision, Denied)
        assert allowed([decision.ask.split('"')[1]], text)


def test_caps() -> None:
    policy = parse_policy({"caps": {"connections": 8, "bytes": 100, "bytes_per_s": 20000}})
    assert policy.caps == Caps(8, 100, 20000)
    assert Caps(8, None, 5000).tightened(Caps(4, 10)) == Caps(4, 10, 5000)


LABELS = st.text("abc", min_size=1, max_size=2)
HOSTS = st.lists(LABELS, min_size=2, max_size=3).map(".".join)
PORTS = st.sampled_from(["", ":22", ":80", ":443"])
ENTRIES = st.builds("{}{}{}".format, st.sampled_from(["", "*."]), HOSTS, PORTS) | st.sampled_from(
    [*PRESETS, "public"]
)
POLICIES = st.builds(
    EgressPolicy,
    st.lists(ENTRIES, max_size=4).map(tuple),
    st.lists(ENTRIES.filter(lambda e: e != "public"), max_size=2).map(tuple),
)


@given(POLICIES)
def test_a_policy_can_be_written_down(policy: EgressPolicy) -> None:
    assert parse_policy(policy.to_document()) == policy


@given(POLICIES, HOSTS, st.sampled_from([22, 80, 443]))
def test_a_decision_is_what_the_rules_say(policy: EgressPolicy, name: str, port: int) -> None:
    """As the entries read, written down again."""

    def says(entry: str, default: tuple[int, ...]) -> bool:
        if entry == "public":
            return port in default
        if entry in PRESETS:
            return any(says(host, default) for host in PRESETS[entry])
        host, _, listed = entry.partition(":")
        named = name.endswith(host[1:]) if host.startswith("*") else name == host
        return named and (port == int(listed) if listed else port in default)

    expected = any(says(entry, (80, 443)) for entry in policy.allow) and not any(
        says(entry, (22, 80, 443)) for entry in policy.deny
    )
    assert isinstance(policy.decide(parse_host(name), port), Allowed) is expected


@given(ENTRIES, ENTRIES, HOSTS, st.sampled_from([22, 80, 443]))
def test_a_rule_that_includes_another_allows_what_it_allows(
    wide: str, narrow: str, name: str, port: int
) -> None:
    target = parse_target(f"{name}:{port}")
    for one in parse_rules(wide):
        assert one.includes(Rule(one.entry, one.host, one.below, one.port))
        for other in parse_rules(narrow):
            if one.includes(other) and other.allows(target):
                assert one.allows(target)

"""Secrets and gateways as values: what is accepted, where a secret may go, and what a request becomes."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.hosts import parse_target
from sandlot.domain.secrets.gateways import parse_gateways, parse_inject, parse_upstream
from sandlot.domain.secrets.placement import parse_placement
from sandlot.domain.secrets.secret import MAX_VALUE_CHARS, Secret

VALUE = "sk-0123456789"
BEARER = parse_placement("Authorization: Bearer {secret}")


def secret(**fields: Any) -> Secret:
    return Secret(**{"name": "api", "value": VALUE, "hosts": ("a.test",), "placement": BEARER, **fields})


def test_a_secret_shows_its_rules_and_not_its_value() -> None:
    assert VALUE not in repr(secret())
    assert "a.test" in repr(secret())
    assert "Authorization" in repr(secret())


@pytest.mark.parametrize(
    ("hosts", "target", "may"),
    [
        (("a.test",), "a.test:443", True),
        (("a.test",), "a.test:80", False),  # without TLS anyone on the way could read it
        (("a.test",), "b.a.test:443", False),
        (("a.test",), "evila.test:443", False),
        (("*.a.test",), "b.a.test:443", True),
        (("*.a.test",), "a.test:443", False),
        (("a.test:8443",), "a.test:8443", True),
        (("a.test:8443",), "a.test:443", False),
        (("a.test", "b.test"), "B.TEST.:443", True),
    ],
)
def test_hosts(hosts: tuple[str, ...], target: str, may: bool) -> None:
    assert secret(hosts=hosts).may_go_to(parse_target(target)) is may


@pytest.mark.parametrize(
    ("fields", "tenant", "environment", "may"),
    [
        ({}, "default", "base", True),
        ({}, "acme", "base", False),
        ({"tenants": ("acme",)}, "acme", "base", True),
        ({"tenants": ("acme",)}, "default", "base", False),
        ({"tenants": ("*",)}, "acme", "base", True),
        ({"environments": ("ml",)}, "default", "base", False),
        ({"environments": ("ml",)}, "default", "ml", True),
    ],
)
def test_whose_sessions_may_use_it(fields: dict[str, Any], tenant: str, environment: str, may: bool) -> None:
    assert secret(**fields).is_for(tenant, environment) is may


@pytest.mark.parametrize(
    "fields",
    [
        *({"name": ""}, {"name": "UPPER"}, {"name": "a/b"}, {"name": "-a"}),
        *({"value": "short"}, {"value": "x" * (MAX_VALUE_CHARS + 1)}, {"value": " 12345678"}),
        *({"value": "1234\r\n5678"}, {"value": "12345678é"}, {"value": "1234567\x7f9"}),
        *({"hosts": ()}, {"hosts": ("public",)}, {"hosts": ("github",)}, {"hosts": ("10.0.0.1",)}),
        *({"hosts": ("https://a.test",)}, {"hosts": ("*",)}, {"hosts": ("localhost",)}),
        *({"tenants": ()}, {"tenants": ("UPPER",)}, {"environments": ()}, {"environments": ("a b",)}),
    ],
)
def test_what_is_no_secret(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        secret(**fields)
    if "value" in fields:
        assert fields["value"] not in refused.value.message


# --- placement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Authorization: Bearer {secret}", "x-api-key: {secret}", "?key={secret}"])
def test_a_placement_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_placement(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "{secret}", "Authorization", "Authorization: Bearer", "Authorization: {secret} {secret}"),
        *(
            "Host: {secret}",
            "content-length: {secret}",
            "Transfer-Encoding: {secret}",
            "connection: {secret}",
        ),
        *(
            "A b: {secret}",
            "A:\n{secret}",
            "A: x\r\nB: {secret}",
            "?a b={secret}",
            "?a={secret}\n",
            "?={secret}",
        ),
        *("Authorization: Bearer {Secret}", "A: " + "x" * 300 + "{secret}", "é: {secret}", "A: é{secret}"),
    ],
)
def test_what_is_no_placement(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_placement(text)


@given(st.text())
def test_any_text_is_a_placement_or_is_refused(text: str) -> None:
    for candidate in (text, text + "{secret}", f"A: {text}{{secret}}", f"?{text}={{secret}}"):
        try:
            placement = parse_placement(candidate)
        except InvalidRequest:
            continue
        _, headers = placement.placed(VALUE, b"/", [])
        for name, value in headers:
            assert not set(name + value) & set(b"\r\n\0")


def test_a_header_replaces_what_the_program_wrote() -> None:
    target, headers = BEARER.placed(
        VALUE, b"/x?y=1", [(b"authorization", b"mine"), (b"a", b"b"), (b"Authorization", b"mine too")]
    )
    assert target == b"/x?y=1"
    assert headers == [(b"a", b"b"), (b"authorization", b"Bearer " + VALUE.encode())]


name_chars = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="&=#?+%"), max_size=5
)


@given(
    st.lists(st.tuples(name_chars, name_chars), max_size=5),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40),
)
def test_a_field_of_the_query_is_there_once(fields: list[tuple[str, str]], value: str) -> None:
    placement = parse_placement("?key={secret}")
    written = "&".join(
        f"{name}={text}" for name, text in [*fields, ("key", "mine"), ("k%65y", "mine"), ("", "")]
    )
    target, headers = placement.placed(value, b"/p?" + written.encode(), [])
    path, _, query = target.decode().partition("?")
    assert (path, headers) == ("/p", [])
    read = parse_qsl(query, keep_blank_values=True)
    assert [text for name, text in read if name == "key"] == [value]
    assert [pair for pair in read if pair[0] != "key"] == [
        *[each for each in fields if each[0] != "key"],
        ("", ""),
    ]
    # However the upstream repeats the query, the value is found.
    assert any(spelling in target.decode() for spelling in placement.spellings(value))


# --- gateways -------------------------------------------------------------------------------------


def test_gateways_of_an_environment() -> None:
    [gateway] = parse_gateways(
        {
            "openai": {
                "upstream": "https://api.openai.com/",
                "secret": "openai",
                "env": {"OPENAI_BASE_URL": "{gateway}/v1", "OPENAI_API_KEY": "added-by-the-gateway"},
            }
        }
    )
    assert str(gateway.upstream) == "https://api.openai.com"
    assert gateway.url == "http://gateway.sandlot/openai"
    assert gateway.variables == {
        "OPENAI_BASE_URL": "http://gateway.sandlot/openai/v1",
        "OPENAI_API_KEY": "added-by-the-gateway",
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be a mapping"),
        ({"A": {"upstream": "https://a.test"}}, "not a valid name"),
        ({"pypi": {"upstream": "https://a.test"}}, "package cache"),
        ({"a": "https://a.test"}, "write upstream"),
        ({"a": {}}, "no upstream"),
        ({"a": {"upstream": "https://a.test", "secrets": "x"}}, "Did you mean 'secret'"),
        ({"a": {"upstream": "http://a.test", "secret": "x"}}, "over https only"),
        ({"a": {"upstream": "https://a.test", "secret": 7}}, "not a valid name of a secret"),
        ({"a": {"upstream": "https://a.test", "env": {"A": 1}}}, "must be a string"),
        ({"a": {"upstream": "https://a.test", "env": {"A=B": "1"}}}, "variable"),
        ({n: {"upstream": "https://a.test", "env": {"X": "1"}} for n in "ab"}, "both set"),
    ],
)
def test_what_is_no_gateway(document: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_gateways(document)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a.test",
            "ftp://a.test",
            "https://",
            "https://user:pw@a.test",
            "https://a.test?x",
            "https://a.test#x",
        ),
        *(
            "https://a.test/../x",
            "https://a.test/a//b",
            "https://10.0.0.1",
            "https://a.test:0",
            "https://a b",
        ),
        *("https://a.test/%2e%2e", "https://a.test/x y", 7, None, "https://a.test\n"),
    ],
)
def test_what_is_no_upstream(text: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_upstream(text)


@given(st.text())
def test_any_text_is_an_upstream_or_is_refused(text: str) -> None:
    for candidate in (text, f"https://{text}", f"https://a.test/{text}", f"http://a.test:{text}"):
        try:
            upstream = parse_upstream(candidate)
        except InvalidRequest:
            continue
        assert parse_upstream(str(upstream)) == upstream


def test_secrets_that_are_injected() -> None:
    assert parse_inject(["github", "github", "b"]) == ("github", "b")
    for wrong in ("github", {"github": 1}, ["A"], [1], ["x"] * 51):
        with pytest.raises(InvalidRequest):
            parse_inject(wrong)

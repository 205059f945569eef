"""Tokens and addresses of previews."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest, Unauthorized
from sandlot.domain.ids import new_session_id
from sandlot.domain.network.ports import PUBLIC, ExposePort, Exposure
from sandlot.domain.network.preview_links import Link, LinkTokens, PreviewDomain, preview_of

NOW = 1_800_000_000.0
TOKENS = LinkTokens(b"a" * 32, clock=lambda: NOW)
LINK = Link("ses_" + "0f" * 16, 8000, "ab" * 8, int(NOW) + 60)
EXPOSURE = Exposure(8000, "ab" * 8)


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(1, 65535),
    st.one_of(st.just(PUBLIC), st.binary(min_size=8, max_size=8).map(bytes.hex)),
    st.one_of(st.none(), st.integers(int(NOW) + 1, 2**60)),
    st.booleans(),
)
def test_a_token_says_what_was_signed(
    session: bytes, port: int, exposure: str, expires_at: int | None, keep: bool
) -> None:
    link = Link("ses_" + session.hex(), port, exposure, expires_at, keep)
    assert TOKENS.read(TOKENS.sign(link)) == link


@given(st.integers(0, 700), st.integers(1, 255))
def test_a_changed_token_opens_nothing(at: int, change: int) -> None:
    token = TOKENS.sign(LINK)
    raw = bytearray(base64.urlsafe_b64decode(token + "=="[: -len(token) % 4]))
    raw[at % len(raw)] ^= change
    with pytest.raises(Unauthorized):
        TOKENS.read(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


@pytest.mark.parametrize(
    "token",
    ["", "x", "a" * 90, TOKENS.sign(LINK)[:-1], TOKENS.sign(LINK) + "A", TOKENS.sign(LINK) + "\n", "ü" * 91],
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(Unauthorized):
        TOKENS.read(token)


@given(st.text(max_size=100))
def test_no_text_breaks_the_reader(text: str) -> None:
    with pytest.raises(Unauthorized):
        TOKENS.read(text)


def test_a_token_ends_with_its_second() -> None:
    at = LINK.expires_at or 0
    assert LinkTokens(b"a" * 32, clock=lambda: at - 0.001).read(TOKENS.sign(LINK)) == LINK
    with pytest.raises(Unauthorized, match="expired"):
        LinkTokens(b"a" * 32, clock=lambda: at).read(TOKENS.sign(LINK))


def test_each_server_has_links_of_its_own() -> None:
    with pytest.raises(Unauthorized, match="not made by this server"):
        LinkTokens(b"b" * 32, clock=lambda: NOW).read(TOKENS.sign(LINK))


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("*.preview.example.com", "https://8000-{}.preview.example.com"),
        ("https://*.preview.example.com:8443", "https://8000-{}.preview.example.com:8443"),
        ("http://*.localhost:8000", "http://8000-{}.localhost:8000"),
        ("*.Preview.Example.COM ", "https://8000-{}.preview.example.com"),
    ],
)
def test_the_hosts_of_a_domain(text: str, origin: str) -> None:
    domain, session_id = PreviewDomain.parse(text), new_session_id()
    assert domain.origin(session_id, 8000) == origin.format(session_id.removeprefix("ses_"))
    host = domain.origin(session_id, 8000).partition("://")[2].partition(":")[0]
    assert len(host.partition(".")[0]) <= 63
    assert domain.target(host) == (session_id, 8000)


@pytest.mark.parametrize(
    "text",
    ["", "*", "*.", "preview.example.com", "a.*.com", "*.example.com/x", "ftp://*.x.com", "*.x.com:0", "*.x.com:99999",
     "*.-x.com", "*.x..com", "*.*.com", "https://*.x.com/", "*.x com"],
)  # fmt: skip
def test_what_is_no_domain(text: str) -> None:
    with pytest.raises(InvalidRequest):
        PreviewDomain.parse(text)


@pytest.mark.parametrize(
    "label",
    ["", "8000", "8000-", "8000-" + "g" * 32, "8000-" + "0" * 31, "8000-" + "0" * 33, "08000-" + "0" * 32,
     "65536-" + "0" * 32, "0-" + "0" * 32, "-" + "0" * 32, "x.8000-" + "0" * 32, "8000-" + "0" * 32 + ".x"],
)  # fmt: skip
def test_what_is_no_host_of_a_preview(label: str) -> None:
    domain = PreviewDomain.parse("*.preview.example.com")
    assert domain.target(f"{label}.preview.example.com") is None
    assert domain.target("8000-" + "0" * 32 + ".example.com") is None


def test_a_private_preview_has_a_secret_in_its_url() -> None:
    by_path = preview_of(TOKENS, None, LINK.session_id, EXPOSURE, ExposePort(8000))
    assert by_path.url == by_path.prefix + "/"
    token = by_path.prefix.removeprefix("/preview/")
    assert TOKENS.read(token).exposure == EXPOSURE.id
    assert by_path.expires_at == NOW + 24 * 3600 + 1
    domain = PreviewDomain.parse("*.x.com")
    by_host = preview_of(TOKENS, domain, LINK.session_id, EXPOSURE, ExposePort(8000, expires_s=60))
    assert by_host.url == f"https://8000-{'0f' * 16}.x.com/?sandlot_link=" + by_host.url.partition("=")[2]
    assert TOKENS.read(by_host.url.partition("=")[2]).expires_at == NOW + 61


def test_a_public_one_has_none() -> None:
    public, request = Exposure(8000, "ab" * 8, public=True), ExposePort(8000, public=True)
    by_host = preview_of(TOKENS, PreviewDomain.parse("*.x.com"), LINK.session_id, public, request)
    assert (by_host.url, by_host.expires_at) == (f"https://8000-{'0f' * 16}.x.com/", None)
    by_path = preview_of(TOKENS, None, LINK.session_id, public, request)
    assert TOKENS.read(by_path.prefix.removeprefix("/preview/")).exposure == PUBLIC


@pytest.mark.parametrize("wrong", [{"expires_s": 0}, {"expires_s": 1e9}, {"public": True, "expires_s": 60}])
def test_what_cannot_be_asked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        ExposePort(8000, **wrong)  # type: ignore[arg-type]

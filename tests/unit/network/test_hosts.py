"""A host is seen as what it is, however it is spelled."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.addresses import embedded_v4, is_public, parse_v4
from sandlot.domain.network.hosts import Host, parse_host, parse_target

# Spelling → the address that it is.
ADDRESSES = {
    "127.0.0.1": "127.0.0.1",
    "127.0.0.1.": "127.0.0.1",
    "127.1": "127.0.0.1",
    "127.0.1": "127.0.0.1",
    "2130706433": "127.0.0.1",
    "0x7f000001": "127.0.0.1",
    "0X7F.1": "127.0.0.1",
    "0x7f.0x0.0x0.0x1": "127.0.0.1",
    "0177.0.0.1": "127.0.0.1",
    "0177.0.0.01": "127.0.0.1",
    "017700000001": "127.0.0.1",
    "000000000177.1": "127.0.0.1",
    "0": "0.0.0.0",
    "0x": "0.0.0.0",
    "2852039166": "169.254.169.254",
    "0xa9fea9fe": "169.254.169.254",
    "0251.0376.0251.0376": "169.254.169.254",
    "169.254.43518": "169.254.169.254",
    "169.0xfea9fe": "169.254.169.254",
    "169.254.169.0376": "169.254.169.254",
    "[::1]": "::1",
    "[0:0:0:0:0:0:0:1]": "::1",
    "[::FFFF:127.0.0.1]": "::ffff:7f00:1",
    "[::ffff:7f00:1]": "::ffff:7f00:1",
    "[::127.0.0.1]": "::7f00:1",
    "[64:ff9b::169.254.169.254]": "64:ff9b::a9fe:a9fe",
    "[fd00:ec2::254]": "fd00:ec2::254",
    "[2002:7f00:1::]": "2002:7f00:1::",
}

NAMES = {
    "example.com": "example.com",
    "EXAMPLE.Com": "example.com",
    "example.com.": "example.com",
    "a_b.example.com": "a_b.example.com",
    "xn--bcher-kva.example": "xn--bcher-kva.example",
    "1.2.3.4.example": "1.2.3.4.example",
    "0x7f.1.com": "0x7f.1.com",
    "localhost": "localhost",
    "1e3": "1e3",
    "x" * 63 + ".com": "x" * 63 + ".com",
}

NEITHER = [
    *("", ".", "..", "example..com", ".example.com", "example.com..", "-example.com", "example-.com"),
    *("256.0.0.1", "1.2.3.4.5", "1.2.3.256", "4294967296", "0x100000000", "08.0.0.1", "1.2.3.09", "1..2"),
    *("127.0.0.1..", "example.1", "example.0x1", "0x7g.1", "9" * 5000, "0x" + "f" * 5000),
    *("[::1", "::1]", "[]", "[::1]x", "[127.0.0.1]", "[fe80::1%eth0]", "[fe80::1%25eth0]", "[::1%]", "::1"),
    *("[::ffff:127.1]", "[::ffff:0177.0.0.1]", "[1::2::3]", "[v1.fe]", "[example.com]"),
    *("user@example.com", "example.com@127.0.0.1", "example.com:80", "http://example.com", "example.com/x"),
    *("example.com\\x", "example.com#x", "example.com?x", "example%2ecom", "%31%32%37.0.0.1", "127%2e0.0.1"),
    *("exa mple.com", " example.com", "example.com ", "example.com\n", "example.com\r\nX: y", "a\x00.com"),
    *(
        "bücher.example",
        "\uff11\uff12\uff17.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "exampl\uff45.com",
        "\u212aiwi.com",
        "ex\u00adample.com",
    ),
    *("*.example.com", "exam*ple.com", "a,b.com", "a;b.com", "'a'.com", "+1", "-1"),
    *("x" * 64 + ".com", ".".join(["x" * 60] * 5)),
]


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items())
def test_an_address_in_any_spelling(text: str, address: str) -> None:
    host = parse_host(text)
    assert host.address == ip_address(address)
    assert host == parse_host(str(host))
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(("text", "name"), NAMES.items())
def test_a_name(text: str, name: str) -> None:
    assert parse_host(text) == Host(name)


@pytest.mark.parametrize("text", NEITHER, ids=lambda text: ascii(text)[:30])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_host(text)
    assert len(refused.value.message) < 500
    assert refused.value.message.isprintable()


def test_the_ascii_form_is_named_and_not_used() -> None:
    with pytest.raises(InvalidRequest, match=r"write xn--bcher-kva\.example"):
        parse_host("bücher.example")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.com:443", "example.com", 443),
        ("example.com.:8443", "example.com", 8443),
        ("[::1]:443", "::1", 443),
        ("127.1:65535", "127.0.0.1", 65535),
    ],
)
def test_a_target(text: str, host: str, port: int) -> None:
    target = parse_target(text)
    assert (target.host.text, target.port) == (host, port)
    assert parse_target(str(target)) == target


def test_a_target_without_a_port() -> None:
    assert parse_target("example.com", 80).port == parse_target("[::1]", 80).port == 80
    for text in ("example.com", "[::1]"):
        with pytest.raises(InvalidRequest, match="has no port"):
            parse_target(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:+80",
            "example.com:0x50",
            "::1:80",
        ),
        "example.com:80 ",
        "example.com:\uff18\uff10",
        "example.com:080",
        "example.com:-1",
        ":80",
        "a:b:80",
        "[::1]80",
    ],
)
def test_no_target(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_target(text, 80)


@given(st.integers(0, 2**32 - 1), st.data())
def test_every_spelling_that_the_c_library_takes(number: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    parts = [number >> 24, number >> 16 & 255, number >> 8 & 255, number & 255]
    last = sum(part << 8 * place for place, part in enumerate(reversed(parts[count - 1 :])))
    forms = [
        data.draw(st.sampled_from(["{:d}", "0{:o}", "0x{:x}", "0X{:X}", "000{:o}"])) for _ in range(count)
    ]
    text = ".".join(form.format(part) for form, part in zip(forms, [*parts[: count - 1], last], strict=True))
    assert IPv4Address(socket.inet_aton(text)) == parse_v4(text) == parse_host(text).address


@given(st.text("0123456789abcdefxX.", max_size=24))
def test_what_the_c_library_takes_for_an_address_is_never_a_name(text: str) -> None:
    try:
        address = IPv4Address(socket.inet_aton(text))
    except OSError:
        return
    assert parse_host(text).address == address


@given(st.text(max_size=60) | st.text("a1.-_:[]%@/x0", max_size=20))
def test_reading_a_host_again_changes_nothing(text: str) -> None:
    try:
        host = parse_host(text)
    except InvalidRequest as refused:
        assert refused.message.isprintable()
        return
    assert parse_host(str(host)) == host
    assert host.text.isascii()
    assert host.text == host.text.lower()


@given(st.ip_addresses(v=6))
def test_every_v6_address(address: IPv6Address) -> None:
    assert parse_host(f"[{address}]").address == address
    assert parse_host(f"[{address.exploded.upper()}]").address == address


@given(st.ip_addresses(v=4))
def test_nat64_is_the_address_behind_it(address: IPv4Address) -> None:
    behind = IPv6Address(int(IPv6Address("64:ff9b::")) | int(address))
    assert embedded_v4(behind) == address
    assert is_public(behind) == is_public(address)
    mapped = IPv6Address(0xFFFF << 32 | int(address))
    assert not is_public(mapped)

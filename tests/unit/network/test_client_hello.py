"""The name in a TLS client's first message, as real clients write it and as attackers would."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.worker.network.client_hello import (
    MAX_RECORDS,
    ClientHello,
    ClientHelloReader,
    MalformedHello,
    NotTls,
)


def real_hello(name: str | None, *, lowest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = lowest
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def read(data: bytes) -> ClientHello | None:
    return ClientHelloReader().feed(data)


def record(payload: bytes) -> bytes:
    return b"\x16\x03\x01" + len(payload).to_bytes(2) + payload


def in_records(hello: bytes, size: int) -> bytes:
    """The same message in records of another size, which some clients use to hide the name."""
    body = hello[5:]
    return b"".join(record(body[at : at + size]) for at in range(0, len(body), size))


def vector(length_bytes: int, data: bytes) -> bytes:
    return len(data).to_bytes(length_bytes) + data


def server_name(*names: bytes, kind: int = 0) -> bytes:
    return b"\x00\x00" + vector(2, vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names)))


def made_hello(*extensions: bytes, after: bytes = b"", kind: int = 1) -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\x00")
    body += vector(2, b"".join(extensions)) + after
    return record(bytes([kind]) + vector(3, body))


@pytest.mark.parametrize("lowest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_real_client(lowest: ssl.TLSVersion) -> None:
    assert read(real_hello("example.com", lowest=lowest)) == ClientHello("example.com")
    assert read(real_hello(None, lowest=lowest)) == ClientHello(None)


def test_a_hello_in_pieces_and_in_several_records() -> None:
    hello = in_records(real_hello("example.com"), 100)
    reader = ClientHelloReader()
    found = [reader.feed(hello[at : at + 1]) for at in range(len(hello))]
    assert found == [*[None] * (len(hello) - 1), ClientHello("example.com")]
    assert bytes(reader.received) == hello


def test_what_is_not_tls() -> None:
    for data in (b"GET / HTTP/1.1\r\n", b"SSH-2.0-x", b"\x80\x2e\x01", b"\x16\x02", b"\x00"):
        with pytest.raises(NotTls):
            read(data)
    assert read(b"") is None
    assert read(b"\x16") is None


NAME = server_name(b"a.test")


@pytest.mark.parametrize(
    "hello",
    [
        made_hello(NAME, NAME),
        made_hello(server_name(b"a.test", b"b.test")),
        made_hello(server_name(b"a.test", kind=1)),
        made_hello(server_name(b"")),
        made_hello(server_name("ä.test".encode())),
        made_hello(b"\x00\x00" + vector(2, b"")),
        made_hello(b"\x00\x00" + vector(2, vector(2, b"\x00" + vector(2, b"a.test")) + b"x")),
        made_hello(b"\x00\x00\x00\x20a.test"),
        made_hello(NAME, after=b"x"),
        made_hello(NAME, kind=2),
        record(made_hello(NAME)[5:] + b"x"),
        record(b"\x01\xff\xff\xff" + bytes(100)),
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        in_records(made_hello(NAME), 20) [:25] + b"\x17\x03\x01\x00\x01x",
        in_records(made_hello(server_name(b"a.test" * 40)), 4)[: 9 * (MAX_RECORDS + 1)],
    ],
)  # fmt: skip
def test_a_hello_that_a_server_could_read_in_another_way(hello: bytes) -> None:
    with pytest.raises(MalformedHello):
        read(hello)


def test_a_made_hello_is_fine_by_itself() -> None:
    assert read(made_hello(NAME)) == ClientHello("a.test")
    assert read(made_hello(b"\x00\x10\x00\x00", NAME)) == ClientHello("a.test")


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_any_bytes_end_in_one_of_four_ways(noise: bytes, cut: int, skip: int) -> None:
    hello = made_hello(NAME)
    for data in (noise, b"\x16\x03\x01" + noise, hello[:cut] + noise + hello[cut + skip :]):
        try:
            found = read(data)
        except (NotTls, MalformedHello):
            continue
        assert found is None or found.server_name is None or found.server_name.isascii()

"""78: the proxy reads a host and a request in one way, and the host outside gets what was read and nothing else."""

from __future__ import annotations

import re

import pytest

from sandlot.worker.network.client_hello import ACCESS_DENIED
from tests.attacks.egress import (
    FORBIDDEN,
    HERE,
    OPENED,
    Inside,
    answers_of_names,
    connect,
    get,
    hello,
    web_ports,
)
from tests.unit.network.rig import OK, answering, echo, outside

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

# Allowed are a.test and *.example.test. These resolve as well, and are neither.
STRANGERS = (
    *(
        "evil.test",
        "example.test",
        "evilexample.test",
        "example.test.evil.test",
        "a.test.evil.test",
        "b.a.test",
    ),
    *(
        "xample.test",
        "a.tes",
        "a.testt",
        "a-test",
        "www-example.test",
        "xn--80a.test",
        "xn--evil-.example.testt",
    ),
)
# {port} stands for the port. Nobody reads these as one host, or they are another's.
TWO_READINGS = (
    *("a.test@evil.test:{port}", "a.test:{port}@evil.test:{port}", "evil.test:{port}@a.test:{port}"),
    *(
        "evil.test:{port}#@a.test:{port}",
        "evil.test\\@a.test:{port}",
        "evil.test\\.a.test:{port}",
        "evil.test:{port},a.test",
    ),
    *(
        "evil.test%00.example.test:{port}",
        "evil.test%2f.example.test:{port}",
        "evil.test%20.example.test:{port}",
    ),
    *(
        "evil.test;.example.test:{port}",
        "evil.test&.example.test:{port}",
        "a.test..:{port}",
        ".a.test:{port}",
    ),
    *(
        "a..example.test:{port}",
        "-.example.test:{port}",
        "*.example.test:{port}",
        "[a.test]:{port}",
        "a.test:0{port}",
    ),
    *(
        "a.test:+{port}",
        "a.test:{port}:{port}",
        "a.test:{port}.0",
        "a.test:99999",
        "a.test:0",
        "a.test:",
        ":{port}",
    ),
    # Letters that look like others, or become them: Cyrillic, full width, the Kelvin sign, a soft hyphen, a dotted dot.
    *("\u0430.test:{port}", "\uff41.test:{port}", "wor\u212a.example.test:{port}", "a\u00ad.test:{port}"),
    *("a\u3002test:{port}", "evil.test\u2044.example.test:{port}", "evil.test\u200b.example.test:{port}"),
)
# Of one line, so that it splits a request if it splits anything.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"


def messages_that_two_servers_read_differently(authority: str) -> dict[str, bytes]:
    """Each hides a request behind one for the allowed host."""
    size = len(SMUGGLED)
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (size, SMUGGLED)

    def post(*lines: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
        head = b"POST http://%s/ HTTP/%s\r\nHost: %s\r\n" % (authority.encode(), version, authority.encode())
        return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body

    chunked, length, ending = b"Transfer-Encoding: chunked", b"Content-Length: %d" % size, b"0\r\n\r\n"
    zero = b"Content-Length: 0"
    return {
        "cl.te": post(b"Content-Length: %d" % (5 + size), chunked, body=ending + SMUGGLED),
        "te.cl": post(chunked, b"Content-Length: 4", body=chunk),
        "two lengths": post(zero, length, body=SMUGGLED),
        "two equal lengths": post(length, length, body=SMUGGLED),
        "a list of lengths": post(b"Content-Length: 0, %d" % size, body=SMUGGLED),
        "a length with a sign": post(b"Content-Length: +%d" % size, body=SMUGGLED),
        "a length in hexadecimal": post(b"Content-Length: 0x0", body=SMUGGLED),
        "a negative length": post(b"Content-Length: -1", body=SMUGGLED),
        "a length with an underscore": post(b"Content-Length: 1_0", body=SMUGGLED),
        "a huge length": post(b"Content-Length: 18446744073709551616", body=SMUGGLED),
        "a length that is no digit": post("Content-Length: \u0660".encode(), body=SMUGGLED),
        "a length before a colon with a space": post(b"Content-Length : %d" % size, zero, body=SMUGGLED),
        "an encoding before a colon with a space": post(b"Transfer-Encoding : chunked", length, body=chunk),
        "an encoding behind a tab": post(b"Transfer-Encoding:\tchunked", length, body=chunk),
        "an encoding behind a vertical tab": post(b"Transfer-Encoding: \x0bchunked", length, body=chunk),
        "an encoding behind a null": post(b"Transfer-Encoding: \x00chunked", length, body=chunk),
        "an encoding in quotes": post(b'Transfer-Encoding: "chunked"', length, body=chunk),
        "an unknown encoding": post(b"Transfer-Encoding: xchunked", length, body=chunk),
        "two encodings": post(chunked, b"Transfer-Encoding: identity", body=ending + SMUGGLED),
        "two equal encodings": post(chunked, chunked, body=ending + SMUGGLED),
        "an encoding of another case": post(b"tRANSFER-eNCODING: cHUNKED", body=ending + SMUGGLED),
        "a folded encoding": post(b"Transfer-Encoding:\r\n chunked", length, body=ending + SMUGGLED),
        "a folded line": post(b"X: y\r\n Transfer-Encoding: chunked", length, body=SMUGGLED),
        "a folded length": post(b"X: y\r\n\tContent-Length: 0", length, body=SMUGGLED),
        "a first line that is folded": post(length, body=SMUGGLED).replace(b"\r\nHost", b"\r\n Host", 1),
        "bare line feeds": post(length, body=SMUGGLED).replace(b"\r\n", b"\n", 4),
        "a bare line feed before an encoding": post(b"X: y\nTransfer-Encoding: chunked", length, body=chunk),
        "a bare return before a length": post(b"X: y\rContent-Length: 0", length, body=SMUGGLED),
        "a bare return before an end": post(b"X: y\r\r\n", body=SMUGGLED),
        "an encoding in 1.0": post(chunked, body=ending + SMUGGLED, version=b"1.0"),
        "a length that is for this hop": post(b"Connection: content-length", length, body=SMUGGLED),
        "an encoding that is for this hop": post(b"Connection: transfer-encoding", chunked, body=chunk),
        "a host that is for this hop": post(b"Connection: host", length, body=SMUGGLED),
        "an upgrade to HTTP/2": post(b"Connection: Upgrade", b"Upgrade: h2c", b"HTTP2-Settings: AAM", body=SMUGGLED),
        "a body of a GET": post(length, body=SMUGGLED).replace(b"POST", b"GET", 1),
        "a body of a HEAD": post(length, body=SMUGGLED).replace(b"POST", b"HEAD", 1),
        "a body that is expected": post(b"Expect: 100-continue", length, body=SMUGGLED),
        "a body without a length": post(body=SMUGGLED),
        "a chunk with a sign": post(chunked, body=b"+" + chunk),
        "a chunk in 0x": post(chunked, body=b"0x" + chunk),
        "a chunk behind a space": post(chunked, body=b" " + chunk),
        "a chunk with an extension": post(chunked, body=chunk.replace(b"\r\n", b";a=b\r\n", 1)),
        "a chunk with a line feed in an extension": post(chunked, body=b"2;\nxx\r\n" + ending + SMUGGLED),
        "a chunk with a return in an extension": post(chunked, body=b"2;\rxx\r\n" + ending + SMUGGLED),
        "a chunk with a line feed": post(chunked, body=b"0\n\n" + SMUGGLED),
        "a chunk that is longer than it says": post(chunked, body=b"1\r\nxx0\r\n\r\n" + SMUGGLED),
        "a chunk with other bytes at its end": post(chunked, body=b"1\r\nx??0\r\n\r\n" + SMUGGLED),
        "a huge chunk": post(chunked, body=b"ffffffffffffffff1\r\n" + SMUGGLED),
        "a trailer": post(chunked, body=b"0\r\nContent-Length: %d\r\nHost: evil.test\r\n\r\n" % size + SMUGGLED),
        "a return in the path": get(authority, "/x\rHost: evil.test"),
        "a line end in the path": get(authority, "/ HTTP/1.1\r\n\r\nGET /smuggled"),
        "a line feed in the path": get(authority, "/ HTTP/1.1\nHost: evil.test\n\nGET /smuggled"),
        "a space in the path": get(authority, "/ HTTP/1.1 "),
        "an encoded line end in the path": get(authority, "/%0d%0aHost:%20evil.test%0d%0a%0d%0aGET%20/smuggled"),
        "a line end in a value": post(b"X: y\r\n\r\n" + SMUGGLED),
        "a null in a value": post(b"X: y\x00Host: evil.test"),
        "a colon before a name": post(b": y"),
        "a second host": post(b"Host: evil.test"),
        "a method of two words": get(authority).replace(b"GET ", b"GET /smuggled HTTP/1.1\r\n", 1),
    }  # fmt: skip


def is_one_request(heard: bytes) -> bool:
    """As the strictest and the most lenient server reads it."""
    head, _, body = heard.partition(b"\r\n\r\n")
    if re.search(rb"[^\r]\n|\r(?!\n)|\x00|\r\n[ \t]", head) or b"evil.test" in head.split(b"\r\n", 1)[1]:
        return False
    lengths, encodings = (
        re.findall(rb"(?im)^%s:(.*)\r?$" % name, head) for name in (b"content-length", b"transfer-encoding")
    )
    # The program may have broken off, so less than the whole may have come.
    if encodings:
        while (chunk := re.match(rb"([0-9a-f]{1,8})\r\n", body)) and int(chunk[1], 16):
            body = body[chunk.end() + int(chunk[1], 16) :].removeprefix(b"\r\n")
        return (
            body in (b"", b"0\r\n\r\n")
            and [each.strip() for each in encodings] == [b"chunked"]
            and not lengths
        )
    return len(lengths) <= 1 and len(body) <= min((int(each) for each in lengths), default=0) < 2**63


async def test_78_a_host_is_read_in_one_way(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, connects: list[tuple[str, int]]
) -> None:
    known = (*STRANGERS, "a.test", "www.example.test", "work.example.test")
    asked = answers_of_names(monkeypatch, **{name.removesuffix(".test"): [HERE] for name in known})
    async with outside(answering(OK)) as web, outside(echo) as secure:
        web_ports(monkeypatch, web.port, secure.port)
        await inside.session.network.set(["a.test", "*.example.test"])
        port, tls = web.port, secure.port
        for_web, for_tls = ([each.format(port=number) for each in TWO_READINGS] for number in (port, tls))
        names, listed = STRANGERS, f"a.test:{port}"
        within = f"GET / HTTP/1.1\r\nHost: {listed}\r\n\r\n".encode()
        numbers = (
            HERE,
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            FORBIDDEN,
        )
        await inside.refused(
            [
                *(get(f"{name}:{port}") for name in names),
                *(get(f"{name}:{port}", host=listed) for name in names),
                *(get(listed, host=f"{name}:{port}") for name in names),
                *(connect(f"{name}:{tls}", hello("a.test")) for name in names),
                *(connect(f"{name}:{tls}", hello("a.test"), host="a.test") for name in names),
                *(connect(f"a.test:{tls}", hello("a.test"), host=name) for name in names),
                *(get(each) for each in for_web),
                *(get(each, host=listed) for each in for_web),
                *(get(listed, host=each) for each in for_web),
                *(connect(each, hello("a.test")) for each in for_tls),
                *(connect(f"a.test:{number}", within) for number in (21, 22, 25, 53, 853, 3128, 5432, 8080)),
                *(get(f"a.test:{number}") for number in (22, 25, 3128)),
                *(get(f"{each}:{port}") for each in numbers),
                *(connect(f"{each}:{tls}", hello("a.test")) for each in numbers),
                # Inside a tunnel for plain requests: another host, a whole URL, a tunnel in the tunnel.
                *(connect(listed, within.replace(b"a.test", name.encode())) for name in names),
                connect(listed, within.replace(b" / ", f" http://evil.test:{port}/ ".encode())),
                connect(listed, connect(f"evil.test:{tls}")),
                connect(listed, connect(f"a.test:{tls}")),
                connect(listed, hello("evil.test")),
            ]
        )
        assert (asked, connects) == ([], [])
        # The tunnel leads to the listed host, and another name is in its TLS, or none, or it is no TLS.
        openings = [
            *(hello(name) for name in (*names, None)),
            b"SSH-2.0-x\r\n",
            b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        ]
        answers = await inside.say([connect(f"a.test:{tls}", opening) for opening in openings])
        assert {answer.removeprefix(OPENED) for answer in answers} == {ACCESS_DENIED, b""}
        assert {bytes(heard) for heard in secure.received} == {b""}
        # Another spelling of a listed name is that name, and the host outside hears the usual one.
        same = ("a.test", "A.TEST", "a.test.", "WWW.Example.Test", "www.example.test.")
        plain = await inside.say([get(f"{name}:{port}") for name in same])
        assert [answer.endswith(b"hello") for answer in plain] == [True] * len(same)
        hosts = sorted(re.search(rb"(?i)host: (.*)\r\n", heard)[1].decode() for heard in web.received)  # type: ignore[index]
        assert hosts == ["a.test"] * 3 + ["www.example.test"] * 2  # on the port of http, which is not written
        started = [hello(name) for name in same]
        through = await inside.say(
            [connect(f"{name}:{tls}", each) for name, each in zip(same, started, strict=True)]
        )
        assert [answer.removeprefix(OPENED) for answer in through] == started
        assert set(asked) == {"a", "www.example"}


async def test_78_a_request_is_one_request(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is smuggled behind it, and no line is put into its head."""
    answers_of_names(monkeypatch, a=[HERE], evil=[HERE])
    async with outside(answering(OK)) as host:
        authority = f"a.test:{host.port}"
        await inside.session.network.set([authority])
        messages = messages_that_two_servers_read_differently(authority)
        answers = dict(zip(messages, await inside.say(list(messages.values())), strict=True))
        heard = [bytes(each) for each in host.received]
        fooled = [each for each in heard if not is_one_request(each)]
        fooled += [answer for answer in answers.values() if answer.count(b"hello") > 1]
        assert not fooled, fooled
        assert len(heard) <= len(messages)
        assert not any(b"GET /smuggled" in each.split(b"\r\n")[0] for each in heard)
        host.received.clear()
        first = get(authority).replace(b"Connection: close\r\n", b"")
        [answer] = await inside.say([first + get(authority)])
        assert answer.count(b"hello") == 2
        assert [is_one_request(bytes(each)) for each in host.received] == [True, True]

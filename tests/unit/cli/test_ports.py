"""``sandlot port-forward``, ``expose``, ``unexpose`` and ``previews`` against a real server, each a process."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
import typer
from tests.unit.cli.conftest import SECONDS, Served

from sandlot.cli.ports.port_forward import Forward, parse_forward
from sandlot.domain.computer import ByteStream
from sandlot.testing.service_suite.ports import echo

pytestmark = pytest.mark.slow  # each command is a process of its own


async def hello(stream: ByteStream) -> None:
    """A web server that knows one answer."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        received += await stream.receive()
    await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    await stream.send_end()


def test_a_port_of_a_sandbox_is_a_port_of_this_machine(served: Served) -> None:
    session = served.create()
    served.service.serve_port(session, 7007, echo)
    process = served.start("port-forward", session, "0:7007", "0:7008")
    try:
        assert process.stderr is not None
        found = {}
        for _ in range(2):
            line = process.stderr.readline().decode()
            said = re.search(r"127\.0\.0\.1:(\d+) to port (\d+) of ses_", line)
            assert said is not None, line
            found[int(said[2])] = int(said[1])
        with socket.create_connection(("127.0.0.1", found[7007]), SECONDS) as connection:
            data = bytes(range(256)) * 1000
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            got = b""
            while piece := connection.recv(65536):
                got += piece
            assert got == data
        with socket.create_connection(("127.0.0.1", found[7008]), SECONDS) as connection:
            assert connection.recv(1) == b""
        assert b"Nothing listens on port 7008" in process.stderr.readline()
        listening = socket.gethostbyname(socket.gethostname())
        if listening != "127.0.0.1":
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((listening, found[7007]), 5)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130


def test_a_port_in_use_is_an_error(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = served.start("port-forward", served.create(), f"{taken.getsockname()[1]}:7007")
        _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, b"in use" in err) == (1, True), err


def test_expose_prints_a_link_that_works_until_unexpose(served: Served) -> None:
    session = served.create()
    served.service.serve_port(session, 8000, hello)
    url = served.sandlot("expose", session, "8000").decode().strip()
    assert url.startswith(f"{served.url}/preview/")
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        assert answer.read() == b"hello"
    asked = json.loads(served.sandlot("expose", session, "9000", "--public", "--json"))
    assert (asked["port"], asked["public"], asked["expires_at"]) == (9000, True, None)
    listed = served.sandlot("previews", session).decode()
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["8000", "9000"]
    assert [one["port"] for one in json.loads(served.sandlot("previews", session, "--json"))] == [8000, 9000]
    served.sandlot("unexpose", session, "8000")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url, timeout=SECONDS)
    served.sandlot("expose", session, "8000", "--expires", "never", code=2)
    served.sandlot("expose", session, "3128", code=1)


def test_what_forwards_can_be() -> None:
    assert parse_forward("8000") == Forward(8000, 8000)
    assert parse_forward("9000:8000") == Forward(9000, 8000)
    for wrong in ("", "x", "8000:", ":8000", "1:2:3", "65536", "-1", "8000:x", "²"):
        with pytest.raises(typer.BadParameter):
            parse_forward(wrong)

"""How creates go to workers: on which connections, and what is made of everything that can come back."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandlot.domain.errors import Busy, LinkInterrupted, SandlotError, Unavailable
from sandlot.fleet.coordinator import create_sender
from sandlot.fleet.coordinator.create_sender import Sender
from sandlot.testing.eventually import eventually
from tests.fleet.fakes import nobody

HEADERS = {"Authorization": "Bearer token"}
GOOD = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nhi"


class Peer:
    """Answers each request with the next of ``answers``, and the last again and again. None: it hangs up."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.url = ""
        self.server: asyncio.Server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
        writer.close()


Serving = Callable[..., contextlib.AbstractAsyncContextManager[tuple[Peer, Sender]]]


@pytest.fixture
def serving() -> Serving:
    @contextlib.asynccontextmanager
    async def serve(*answers: bytes | None) -> AsyncIterator[tuple[Peer, Sender]]:
        peer = Peer(*answers)
        peer.server = server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
        peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        sender = Sender(peer.url)
        try:
            yield peer, sender
        finally:
            await sender.close()
            server.close()
            for writer in peer.writers:
                writer.close()
            await server.wait_closed()

    return serve


async def post(sender: Sender, body: bytes = b"{}") -> tuple[int, bytes]:
    return await sender.post("/v1/fleet/sessions", body, HEADERS, None)


async def posted_once(url: str) -> tuple[int, bytes]:
    sender = Sender(url)
    try:
        return await post(sender)
    finally:
        await sender.close()


async def test_one_connection_for_one_after_the_other(serving: Serving) -> None:
    async with serving(GOOD) as (peer, sender):
        for _ in range(3):
            assert await post(sender, b'{"a":1}') == (201, b"hi")
        assert peer.connections == 1
        host = peer.url.removeprefix("http://").encode()
        assert peer.requests[0] == (
            b"POST /v1/fleet/sessions HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: Bearer token\r\n"
            b'Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
        )


async def test_many_at_once_share_the_connections(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_sender, "MAX_CONNECTIONS", 2)
    async with serving(GOOD) as (peer, sender):
        await asyncio.gather(*(post(sender) for _ in range(5)))
        assert peer.connections == 2
        await sender.close()
        await post(sender)
        assert peer.connections == 3


async def test_an_answer_in_pieces_and_in_chunks(serving: Serving) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"
    async with serving(chunked) as (peer, sender):
        assert await post(sender) == (200, b"hi")
        assert await post(sender) == (200, b"hi")
        assert peer.connections == 1


async def test_a_server_that_wants_to_close_is_let(serving: Serving) -> None:
    async with serving(GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")) as (peer, sender):
        await post(sender)
        await post(sender)
        assert peer.connections == 2


async def test_a_connection_that_died_unused_is_not_an_error(serving: Serving) -> None:
    async with serving(GOOD, None, GOOD) as (peer, sender):
        await post(sender)
        # The second request finds it closed as it arrives: it is sent again, on another.
        assert await post(sender) == (201, b"hi")
        assert (peer.connections, len(peer.requests)) == (2, 3)


async def test_what_went_out_on_a_connection_that_died_may_have_arrived(serving: Serving) -> None:
    """Nobody takes a second connection: whether the first one brought it there is not known."""
    async with serving(GOOD, None) as (peer, sender):
        await post(sender)
        peer.server.close()
        with pytest.raises(Unavailable) as failed:
            await post(sender)
        assert failed.value.may_have_executed
        assert len(peer.requests) == 2
        with pytest.raises(Unavailable) as failed:
            await post(sender)
        assert not failed.value.may_have_executed


async def test_a_connection_that_lay_for_long_is_not_used(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_sender, "KEEP_ALIVE_S", 0.05)
    async with serving(GOOD) as (peer, sender):
        await post(sender)
        await asyncio.sleep(0.1)
        await post(sender)
        assert peer.connections == 2


async def test_a_new_connection_that_breaks_is_told(serving: Serving) -> None:
    async with serving(None) as (peer, sender):
        with pytest.raises(LinkInterrupted) as broken:
            await post(sender)
        assert broken.value.may_have_executed
        assert len(peer.requests) == 1


async def test_half_an_answer_is_told_and_not_asked_for_again(serving: Serving) -> None:
    async with serving(GOOD, GOOD[:-1], None) as (peer, sender):
        await post(sender)
        asking = asyncio.create_task(post(sender))
        while len(peer.requests) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        peer.writers[-1].close()
        with pytest.raises(LinkInterrupted) as broken:
            await asking
        assert broken.value.may_have_executed
        assert len(peer.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 2000000\r\n\r\n" + 2_000_000 * b"x",
        b"HTTP/1.1 201 Created\r\n" + 20_000 * (b"A: " + 60 * b"b" + b"\r\n"),
    ],
    ids=["not HTTP", "too large", "headers without end"],
)
async def test_what_is_no_answer(serving: Serving, answer: bytes) -> None:
    async with serving(answer) as (_peer, sender):
        with pytest.raises(SandlotError, match="Cannot read the response") as refused:
            await post(sender)
        assert (type(refused.value), refused.value.may_have_executed) == (SandlotError, True)


async def test_what_comes_unasked_ends_the_connection(serving: Serving) -> None:
    async with serving(GOOD + GOOD, GOOD) as (peer, sender):
        assert await post(sender) == (201, b"hi")
        assert await post(sender) == (201, b"hi")
        peer.writers[-1].write(GOOD)
        await asyncio.sleep(0.05)
        assert await post(sender) == (201, b"hi")


@pytest.mark.parametrize(
    ("status", "kind", "may_have_executed"),
    [(503, Unavailable, False), (429, Busy, False), (502, LinkInterrupted, True)],
)
async def test_a_strangers_answer(
    serving: Serving, status: int, kind: type[SandlotError], may_have_executed: bool
) -> None:
    answer = f"HTTP/1.1 {status} x\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno".encode()
    async with serving(answer) as (_peer, sender):
        with pytest.raises(kind) as refused:
            await post(sender)
        assert refused.value.may_have_executed is may_have_executed
        assert refused.value.details == {"foreign_status": status}
        if status in (503, 429):
            assert refused.value.retry_after_s == 7


async def test_what_comes_before_the_answer_is_not_the_answer(serving: Serving) -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with serving(hints + GOOD) as (peer, sender):
        for _ in range(2):
            assert await post(sender) == (201, b"hi")
        assert peer.connections == 1


@pytest.mark.parametrize("status", [201, 503])
async def test_a_body_that_ends_with_the_connection(serving: Serving, status: int) -> None:
    answer = f"HTTP/1.0 {status} x\r\nConnection: close\r\n\r\nhi".encode()
    async with serving(answer) as (peer, sender):
        asking = asyncio.create_task(post(sender))
        while not peer.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        peer.writers[-1].close()
        if status == 201:
            assert await asking == (201, b"hi")
        else:
            with pytest.raises(Unavailable) as refused:
                await asking
            assert not refused.value.may_have_executed


async def test_closed_while_a_call_is_under_way(serving: Serving) -> None:
    async with serving(b"", GOOD) as (peer, sender):
        asking = asyncio.create_task(post(sender))
        await eventually(lambda: peer.requests)
        await sender.close()
        with pytest.raises(LinkInterrupted) as broken:
            await asking
        assert broken.value.may_have_executed


@pytest.mark.parametrize("url", ["http://" + 64 * "a" + ".example", "http://127.0.0.1:99999"])
async def test_what_is_no_address(url: str) -> None:
    with pytest.raises(Unavailable, match="Cannot connect") as refused:
        await posted_once(url)
    assert not refused.value.may_have_executed


async def test_nobody_is_there() -> None:
    with pytest.raises(Unavailable) as refused:
        await posted_once(nobody())
    assert not refused.value.may_have_executed


@pytest.mark.parametrize("how", ["time", "cancel"])
async def test_silence(serving: Serving, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """No answer in time, or nobody waits for it any more: that connection is not used again."""
    monkeypatch.setattr(create_sender, "RESPONSE_TIMEOUT_S", 0.5 if how == "time" else 60.0)
    async with serving(b"", GOOD) as (peer, sender):
        asking = asyncio.create_task(post(sender))
        await eventually(lambda: peer.requests)
        if how == "cancel":
            asking.cancel()
        with pytest.raises(LinkInterrupted if how == "time" else asyncio.CancelledError):
            await asking
        assert await post(sender) == (201, b"hi")
        assert peer.connections == 2


async def test_tls(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    peer = Peer(GOOD)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=own)
    sender = Sender(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(Unavailable, match="certificate"):
            await sender.post("/x", b"", HEADERS, ssl.create_default_context())
        assert peer.requests == [], "nothing is said to somebody who may be anybody"
        trusting = ssl.create_default_context(cafile=certificate)
        assert await sender.post("/x", b"", HEADERS, trusting) == (201, b"hi")
    finally:
        await sender.close()
        server.close()

"""The SDK's errors as the domain's: never with the key, whatever the service answers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sandlot.domain.errors import EngineProblem, ImageMissing, NotFound, SandlotError
from sandlot.providers.e2b import E2BAccount, E2BProvider
from sandlot.providers.e2b.service import E2BService

KEY = "e2b_" + "5ec4e7" * 6


@contextmanager
def answering(status: int, message: str) -> Iterator[str]:
    """A server that answers every request so. ``KEY`` in the message is the key that it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told = message.replace("KEY", self.headers.get("X-API-KEY", "none"))
            body = json.dumps({"code": status, "message": told}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Should-Retry", "false")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815  # as the base class calls them

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def create_at(url: str) -> SandlotError:
    service = E2BService(E2BAccount(KEY, api_url=url, sandbox_url=url))
    with pytest.raises(SandlotError) as caught:
        asyncio.run(service.create("base", {}))
    return caught.value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
@pytest.mark.parametrize("message", ["the key KEY is wrong", "template base needs KEY"])
def test_no_error_shows_the_key(status: int, message: str) -> None:
    with answering(status, message) as url:
        error = create_at(url)
    shown = "".join(traceback.format_exception(error)) + str(error.details)
    assert KEY not in shown
    assert KEY not in repr(E2BAccount(KEY))


@pytest.mark.parametrize(
    ("status", "message", "kind", "retryable"),
    [
        (401, "no", EngineProblem, False),
        (429, "slow down", EngineProblem, True),
        (500, "broken", EngineProblem, True),
        (400, "bad timeout", EngineProblem, False),
        (404, "template 'bse' not found", ImageMissing, False),
        (400, "There is no template 'bse'", ImageMissing, False),
    ],
)
def test_what_an_answer_means(status: int, message: str, kind: type[SandlotError], retryable: bool) -> None:
    with answering(status, message) as url:
        error = create_at(url)
    assert (type(error), error.retryable, error.may_have_executed) == (kind, retryable, False)


def test_nobody_answers() -> None:
    error = create_at("http://127.0.0.1:9")
    assert isinstance(error, EngineProblem)
    assert error.retryable


async def test_what_the_folder_knows_needs_no_answer(tmp_path: Path) -> None:
    provider = E2BProvider(
        owner="test", data_dir=tmp_path, account=E2BAccount(KEY, api_url="http://127.0.0.1:9")
    )
    await provider.open()
    try:
        assert provider.recorded() == []
        assert not provider.has("sbx_" + "0" * 32)
        with pytest.raises(NotFound):
            await provider.adopt("sbx_" + "0" * 32)
    finally:
        await provider.close()


async def test_an_open_that_was_cancelled_can_be_repeated(tmp_path: Path) -> None:
    """The folder's lock is taken in a thread, which no cancellation ends."""
    epoch = tmp_path / "epoch"
    os.mkfifo(epoch)
    provider = E2BProvider(
        owner="test", data_dir=tmp_path, account=E2BAccount(KEY, api_url="http://127.0.0.1:9")
    )
    opening = asyncio.create_task(provider.open())
    writing = await asyncio.to_thread(os.open, epoch, os.O_WRONLY)  # it has the lock, and reads
    opening.cancel()
    os.write(writing, b"7")
    os.close(writing)
    with pytest.raises(asyncio.CancelledError):
        await opening
    await provider.open()
    await provider.close()
    assert epoch.read_text() == "9"

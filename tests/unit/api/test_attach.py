"""Attaching over a WebSocket."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from tests.unit.api.conftest import KEY, Live
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.api.responses import streams

HEADERS = {"Authorization": f"Bearer {KEY}"}


async def started(live: Live, **body: Any) -> str:
    path = f"/v1/sessions/{await live.session()}"
    answer = await live.client.post(path + "/exec", json={"background": True, "exec_id": "x", **body})
    assert answer.status_code == 202, answer.text
    return f"ws://127.0.0.1:{live.port}{path}/execs/x/attach"


async def all_messages(connection: ClientConnection) -> tuple[list[dict[str, Any]], bytes]:
    texts, output = [], b""
    try:
        while True:
            message = await connection.recv()
            if isinstance(message, str):
                texts.append(json.loads(message))
            else:
                channel, offset = struct.unpack(">BQ", message[:9])
                assert channel in (1, 2)
                assert offset == len(output)
                output += message[9:]
    except ConnectionClosed:
        return texts, output


async def test_stdin_output_and_exit(live: Live) -> None:
    url = await started(live, command="cat; echo done", stdin=True)
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.send(b"some ")
        await connection.send(b"input\n")
        await connection.send('{"type": "stdin_end"}')
        texts, output = await all_messages(connection)
    assert output == b"some input\ndone\n"
    assert [text["type"] for text in texts] == ["started", "exited"]
    assert texts[1]["verdict"] == "ok"
    assert texts[1]["exited"]["code"] == 0
    assert connection.close_code == 1000


async def test_silence_is_filled_with_pings(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.with_pings, "__defaults__", (0.05,))
    url = await started(live, command="sleep 0.4; echo done")
    async with connect(url, additional_headers=HEADERS) as connection:
        texts, output = await all_messages(connection)
    kinds = [text["type"] for text in texts]
    assert kinds.count("ping") >= 2
    assert [kind for kind in kinds if kind != "ping"] == ["started", "exited"]
    assert output == b"done\n"


async def test_offset(live: Live) -> None:
    url = await started(live, command="echo 0123456789")
    async with connect(url + "?offset=4", additional_headers=HEADERS) as connection:
        message = b""
        while not isinstance(message, bytes) or not message:
            received = await connection.recv()
            message = received if isinstance(received, bytes) else b""
    assert struct.unpack(">BQ", message[:9]) == (1, 4)
    assert message[9:] == b"456789\n"


async def test_leaving_does_not_end_the_exec(live: Live) -> None:
    url = await started(live, command="read line; echo got $line", stdin=True)
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.recv()
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.send(b"it\n")
        _, output = await all_messages(connection)
    assert output == b"got it\n"


async def test_signal_and_resize(live: Live) -> None:
    url = await started(live, command="sleep 60", pty={"rows": 10, "cols": 20})
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.send('{"type": "resize", "rows": 50, "cols": 100}')
        await connection.send('{"type": "signal", "signal": 9}')
        texts, _ = await all_messages(connection)
    assert texts[-1]["type"] == "exited"
    assert texts[-1]["exited"]["signal"] == 9


@pytest.mark.parametrize(
    "message",
    [
        "{",
        '{"type": "other"}',
        '{"type": "resize", "rows": 0, "cols": 1}',
        '{"type": "signal", "signal": 65}',
        "[" * 5000,
    ],
)
async def test_a_message_that_is_not_known_closes(live: Live, message: str) -> None:
    url = await started(live, command="sleep 60", stdin=True)
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.send(message)
        texts, _ = await all_messages(connection)
    assert texts[-1]["type"] == "error"
    assert texts[-1]["code"] == "invalid_request"
    assert connection.close_code == 4422


async def test_a_message_too_large_closes(live: Live) -> None:
    url = await started(live, command="sleep 60", stdin=True)
    async with connect(url, additional_headers=HEADERS) as connection:
        await connection.send(b"x" * (1024 * 1024 + 1))
        await all_messages(connection)
    assert connection.close_code == 4413


async def test_unknown_exec_and_session(live: Live) -> None:
    url = await started(live, command="true")
    for wrong in (url.replace("/x/", "/y/"), url.replace("ses_", "ses_0")):
        async with connect(wrong, additional_headers=HEADERS) as connection:
            texts, _ = await all_messages(connection)
        assert texts[0]["code"] == "not_found"
        assert connection.close_code == 4404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({**HEADERS, "Origin": "https://evil.example"}, 403),
        ({**HEADERS, "Host": "evil.example"}, 403),
    ],
)
async def test_who_may_not_attach(live: Live, headers: dict[str, str], status: int) -> None:
    url = await started(live, command="true")
    with pytest.raises(InvalidStatus) as caught:
        await connect(url, additional_headers=headers)
    assert caught.value.response.status_code == status

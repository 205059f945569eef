"""Results as an answer: packed, as JSON, and as JSON in pieces; always the same result, and never too many at once."""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.conftest import Live, serving

from sandlot.api.responses import large_results as result_pieces
from sandlot.api.responses import lists as file_lists
from sandlot.api.responses import results
from sandlot.api.responses.json import encode_json
from sandlot.client.http import HttpService
from sandlot.domain.capacity.budget import ByteBudget
from sandlot.domain.errors import Busy
from sandlot.domain.execution import MIB, ExecRequest, ExecResult, Exited, Verdict
from sandlot.domain.service import ExecStatus
from sandlot.domain.session import CreateSession
from sandlot.testing import FakeService
from sandlot.testing.eventually import eventually
from sandlot.wire.exec_bodies import ResultBody
from sandlot.wire.packed import (
    PACKED,
    RESULT,
    STATUS,
    THREAD_RUN,
    PackedResult,
    PackedStatus,
    packed_pieces,
)

TAKES_PACKED = {"Accept": f"application/json, {PACKED}"}
ZEROS = 700_000
LARGE = {
    "command": "cat; printf '\\377' >&2",
    "input_base64": base64.b64encode(bytes(ZEROS)).decode(),
    "exec_id": "large",
}
# Text of all widths, what JSON escapes, and what is cut off or none at all.
DATA = st.lists(
    st.sampled_from(
        [b"a", b'"', b"\0", b"\\", "é".encode(), "€".encode(), "😀".encode(), b"\xff", b"\xe2\x82"]
    )
).map(b"".join)
# A packed result as it is on the wire: other versions read and write it, so it may only grow.
GOLDEN = (
    "de0014a7657865635f6964a178aa73657373696f6e5f6964a173aa67656e65726174696f6e01a9657869745f636f646500a7"
    "76657264696374a26f6ba974696d65645f6f7574c2a97472756e6361746564c2a9726574727961626c65c2ab647572617469"
    "6f6e5f6d73cb3ff8000000000000ac6f75747075745f627974657302b17065616b5f6d656d6f72795f627974657300a66578"
    "69746564de0012a4636f646500a67369676e616c00a6726561736f6ea6657869746564a56572726f72a0a97472756e636174"
    "6564c2ac6f75747075745f627974657302ac7374646572725f627974657300a86761705f66726f6d00a66761705f746f00ab"
    "6475726174696f6e5f6d73cb3ff8000000000000a7757365725f6d73cb0000000000000000a973797374656d5f6d73cb0000"
    "000000000000b17065616b5f6d656d6f72795f627974657300a36f6f6dc2a96469736b5f66756c6cc2ab7368656c6c5f656e"
    "646564c2af7368656c6c5f726573746172746564c2a664656e69656490a46761707300ae7374646f75745f6f6d6974746564"
    "c0ae7374646572725f6f6d6974746564c0ae6f75747075745f6f6d6974746564c0a664656e69656490a67374646f7574c402"
    "61ffa6737464657272c40162a66f7574707574c40361ff62"
)
# As it was before results said what was denied.
BEFORE_DENIED = (
    "de0013a7657865635f6964a178aa73657373696f6e5f6964a173aa67656e65726174696f6e01a9657869745f636f646500a7"
    "76657264696374a26f6ba974696d65645f6f7574c2a97472756e6361746564c2a9726574727961626c65c2ab647572617469"
    "6f6e5f6d73cb3ff8000000000000ac6f75747075745f627974657302b17065616b5f6d656d6f72795f627974657300a66578"
    "69746564de0011a4636f646500a67369676e616c00a6726561736f6ea6657869746564a56572726f72a0a97472756e636174"
    "6564c2ac6f75747075745f627974657302ac7374646572725f627974657300a86761705f66726f6d00a66761705f746f00ab"
    "6475726174696f6e5f6d73cb3ff8000000000000a7757365725f6d73cb0000000000000000a973797374656d5f6d73cb0000"
    "000000000000b17065616b5f6d656d6f72795f627974657300a36f6f6dc2a96469736b5f66756c6cc2ab7368656c6c5f656e"
    "646564c2af7368656c6c5f726573746172746564c2a46761707300ae7374646f75745f6f6d6974746564c0ae737464657272"
    "5f6f6d6974746564c0ae6f75747075745f6f6d6974746564c0a67374646f7574c40261ffa6737464657272c40162a66f7574"
    "707574c40361ff62"
)
# As it was before results said what of them is missing.
BEFORE_OMITTED = (
    "de0010a7657865635f6964a178aa73657373696f6e5f6964a173aa67656e65726174696f6e01a9657869745f636f646500a7"
    "76657264696374a26f6ba974696d65645f6f7574c2a97472756e6361746564c2a9726574727961626c65c2ab647572617469"
    "6f6e5f6d73cb3ff8000000000000ac6f75747075745f627974657302b17065616b5f6d656d6f72795f627974657300a66578"
    "697465648ea4636f646500a67369676e616c00a6726561736f6ea6657869746564a56572726f72a0a97472756e6361746564"
    "c2ac6f75747075745f627974657302ab6475726174696f6e5f6d73cb3ff8000000000000a7757365725f6d73cb0000000000"
    "000000a973797374656d5f6d73cb0000000000000000b17065616b5f6d656d6f72795f627974657300a36f6f6dc2a9646973"
    "6b5f66756c6cc2ab7368656c6c5f656e646564c2af7368656c6c5f726573746172746564c2a46761707300a67374646f7574"
    "c40261ffa6737464657272c40162a66f7574707574c40361ff62"
)


def result_of(stdout: bytes, stderr: bytes = b"") -> ExecResult:
    exited = Exited(0, 0, "exited", duration_ms=1.5, output_bytes=2)
    return ExecResult(
        "x", 0, stdout, stderr, stdout + stderr, Verdict.OK, exited, session_id="s", generation=1
    )


async def joined(result: ExecResult) -> bytes:
    return b"".join([piece async for piece in result_pieces.result_pieces(result)])


@given(DATA, DATA, st.sampled_from([3, 6, 48]))
def test_pieces_are_the_whole(stdout: bytes, stderr: bytes, size: int) -> None:
    result = result_of(stdout, stderr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_pieces, "PIECE_BYTES", size)
        pieces = asyncio.run(joined(result))
    assert json.loads(pieces) == json.loads(encode_json(ResultBody.of(result)))


async def test_pieces_take_little_memory_and_leave_turns_to_others() -> None:
    result = result_of(bytes(8 * MIB), b"\xff" * 8 * MIB)
    size = turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    tracemalloc.start()
    try:
        async for piece in result_pieces.result_pieces(result):
            size += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        counting.cancel()
    assert size > 150 * MIB
    assert peak < 8 * MIB
    assert turns > 2 * 32 * MIB // result_pieces.PIECE_BYTES


async def answers(live: Live, headers: dict[str, str]) -> list[bytes]:
    """One result, from each of the routes that give results."""
    path = f"/v1/sessions/{await live.session(thread='talk')}"
    answered = [
        await live.client.post(path + "/exec", json=LARGE, headers=headers),
        await live.client.get(path + "/execs/large", headers=headers),
        await live.client.post("/v1/threads/talk/exec", json={"exec": LARGE}, headers=headers),
    ]
    kind = PACKED if headers else "application/json"
    assert [(one.status_code, one.headers["content-type"]) for one in answered] == [(200, kind)] * 3
    assert [one.headers["vary"] for one in answered] == ["Accept"] * 3
    assert all(("content-length" in one.headers) == bool(headers) for one in answered)
    return [one.content for one in answered]


@pytest.mark.parametrize("headers", [{}, TAKES_PACKED])
async def test_large_results(live: Live, headers: dict[str, str]) -> None:
    result, status, run = await answers(live, headers)
    told = RESULT.decode(result)
    assert (told.stdout, told.stderr, told.exit_code) == (bytes(ZEROS), b"\xff", 0)
    assert sorted(told.output) == sorted(told.stdout + told.stderr)
    assert STATUS.decode(status) == ExecStatus("large", running=False, result=told)
    ran = THREAD_RUN.decode(run).run
    assert ran.result == told
    assert (ran.opened.session.thread, ran.opened.created) == ("talk", False)


async def test_an_exec_that_runs_is_packed_too(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}"
    await live.client.post(path + "/exec", json={"command": "sleep 60", "background": True, "exec_id": "bg"})
    running = await live.client.get(path + "/execs/bg", headers=TAKES_PACKED)
    assert STATUS.decode(running.content) == ExecStatus("bg", running=True)
    await live.client.delete(path + "/execs/bg")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "application/json"),
        (PACKED, PACKED),
        (f"text/html;q=0.2, {PACKED.upper()} ; q=0.5", PACKED),
        (f"{PACKED};q=0", "application/json"),
        (f"{PACKED};q=0.000, application/json", "application/json"),
        (f"{PACKED}ish", "application/json"),
    ],
)
async def test_who_takes_what(live: Live, accept: str, kind: str) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    told = await live.client.post(path, json={"command": "echo hi"}, headers={"Accept": accept})
    assert told.headers["content-type"] == kind
    assert RESULT.decode(told.content).stdout == b"hi\n"


async def test_http_1_0_knows_no_pieces(live: Live) -> None:
    path = f"/v1/sessions/{await live.session()}/exec"
    await live.client.post(path, json=LARGE)
    told = STATUS.decode(await in_one_piece(live, f"{path}s/large")).result
    assert told is not None
    assert told.stdout == bytes(ZEROS)


async def test_http_1_0_gets_files_programs_and_lists_in_one_piece(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_lists, "MAX_UNSPLIT_BYTES", 0)
    session = await live.session()
    files = f"/v1/sessions/{session}/files"
    text = "z" * 40_000
    await live.client.put(f"{files}/content?path=text", content=text.encode())
    read = json.loads(await in_one_piece(live, f"/api/e2b/files/{session}?path=text"))
    assert read["content"] == text
    walked = json.loads(await in_one_piece(live, f"{files}/walk?path=."))
    assert [entry["name"] for entry in walked["entries"]] == ["text"]
    program = {"session_id": session, "code": "cat text", "language": "sh"}
    ran = json.loads(await in_one_piece(live, "/api/e2b/execute", json.dumps(program).encode()))
    assert ran == {**ran, "stdout": text, "stderr": "", "exit_code": 0}


async def in_one_piece(live: Live, path: str, body: bytes = b"") -> bytes:
    answer = await live.raw(
        f"{'POST' if body else 'GET'} {path} HTTP/1.0\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Authorization: {live.client.headers['authorization']}\r\n\r\n".encode()
        + body
    )
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    assert b"transfer-encoding" not in head.lower()
    assert f"content-length: {len(content)}".encode() in head.lower()
    return content


async def test_too_many_at_once_are_asked_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its client has taken it, has gone or was given up, a large result is held."""
    monkeypatch.setattr(results, "MIN_SEND_BYTES_PER_S", 1e9)
    service = FakeService()
    huge = result_of(bytes(16 * MIB))

    async def execute(*_: object) -> ExecResult:
        return huge

    monkeypatch.setattr(service, "execute", execute)
    async with serving(service, api_key=None, max_held_bytes=5 * ZEROS) as port:
        body = b'{"command":"true"}'
        asked = b"POST /v1/sessions/x/exec HTTP/1.1\r\nHost: localhost\r\n" + (
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

        async def status_of_another() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writers.append(writer)
            writer.write(asked)
            return await reader.readline()

        async def is_free() -> bool:
            return b" 200 " in await status_of_another()

        writers: list[asyncio.StreamWriter] = []
        try:
            # The whole budget is this one's, which does not read on.
            assert b" 200 " in await status_of_another()
            assert b" 429 " in await status_of_another()
            writers[0].transport.abort()
            monkeypatch.setattr(results, "SEND_TIMEOUT_S", 0.2)
            await eventually(is_free, 10, "who has gone holds nothing")
            await eventually(is_free, 10, "who does not read is cut off")
        finally:
            for writer in writers:
                writer.transport.abort()
    await service.close()


async def test_the_sdk_comes_back_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ByteBudget(4 * ZEROS)
    monkeypatch.setattr("sandlot.api.app.ByteBudget", lambda _: budget)
    service = FakeService()
    data = bytes(range(256)) * (ZEROS // 256)
    async with serving(service, api_key=None, worker_id="of-that-test") as port:
        client = HttpService(f"http://127.0.0.1:{port}")
        opened = await client.create_session(CreateSession())
        others = budget.acquire(4 * ZEROS)
        request = ExecRequest("cat", stdin=True)
        running = asyncio.create_task(client.execute(opened.session.id, request, data))
        await asyncio.sleep(1.5)  # refused, asked for by its id, refused again
        assert not running.done()
        budget.release(others)
        assert (await running).stdout == data
        assert [call.request.exec_id for call in service.calls] == [request.exec_id]
        await client.close()
    await service.close()


async def test_a_budget() -> None:
    budget = ByteBudget(10)
    first = budget.acquire(6)
    with pytest.raises(Busy, match="fetched by its exec id") as refused:
        budget.acquire(5)
    assert (refused.value.retryable, refused.value.may_have_executed) == (True, True)
    with pytest.raises(Busy):
        async with budget.acquired(5, within_s=0.01):
            pass
    waiting = asyncio.create_task(_held(budget, 99))  # more than all of it: all of it
    await asyncio.sleep(0)
    budget.release(first)
    await waiting
    assert budget.acquire(10) == 10


async def _held(budget: ByteBudget, size: int) -> None:
    async with budget.acquired(size, within_s=5):
        with pytest.raises(Busy):
            budget.acquire(1)


@given(DATA, DATA, st.integers(0, 70_000))
def test_packed_in_pieces_is_the_whole(stdout: bytes, stderr: bytes, more: int) -> None:
    result = result_of(stdout + bytes(more), stderr)
    status = PackedStatus.of(ExecStatus("x", running=False, result=result))
    for body in (PackedResult.of(result), status):
        assert b"".join(packed_pieces(body, result)) == msgspec.msgpack.encode(body)


def test_the_packed_form_stays() -> None:
    packed = msgspec.msgpack.encode(PackedResult.of(result_of(b"a\xff", b"b")))
    assert packed.hex() == GOLDEN
    assert RESULT.decode(packed) == result_of(b"a\xff", b"b")
    for before in (BEFORE_DENIED, BEFORE_OMITTED):
        assert RESULT.decode(bytes.fromhex(before)) == result_of(b"a\xff", b"b")
    # What a later version adds is not in the way.
    grown = {**msgspec.msgpack.decode(packed), "added": 1}
    assert RESULT.decode(msgspec.msgpack.encode(grown)) == result_of(b"a\xff", b"b")


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"\x80", b"{", b"\xc1", msgspec.msgpack.encode({"exec_id": 1})]
)
def test_what_is_no_result(answer: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        RESULT.decode(answer)

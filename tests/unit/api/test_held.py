"""S7: what a server holds on behalf of clients is taken from one budget before it is read."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.unit.api.conftest import Live, living

from sandlot.api.responses import lists as file_lists
from sandlot.domain.capacity.budget import FREE_BYTES, Account, ByteBudget, current_account
from sandlot.domain.errors import Busy
from sandlot.domain.execution import MIB, Channel, Exited, Output, ResultFold, Started
from sandlot.domain.files import FileEntry, FileType, Walk
from sandlot.domain.session import CreateSession
from sandlot.testing.fake.files import FakeFiles

EXITED = Exited(0, 0, "exited")


def entry(path: str) -> FileEntry:
    return FileEntry(path, path.rpartition("/")[2], FileType.FILE, 1, 0o644, 0, 0, 0)


# --- accounts ---------------------------------------------------------------------------------


def test_s7_account_takes_before_and_gives_back_all() -> None:
    budget = ByteBudget(100)
    account, other = Account(budget), Account(budget)
    account.hold(FREE_BYTES)  # is free
    account.hold(60)
    with pytest.raises(Busy):
        other.hold_at_least(FREE_BYTES + 41)
    other.hold_at_least(FREE_BYTES + 40)
    other.hold_at_least(10)  # less than it has
    account.release(30)
    other.hold(30)
    account.close()
    account.close()
    other.hold(30)
    account.hold(1000)  # after its end nothing is counted
    other.close()
    assert budget.acquire(100) == 100


def test_s7_what_is_larger_than_all_gets_all_of_it() -> None:
    budget = ByteBudget(100)
    account = Account(budget)
    for _ in range(10):
        account.hold(FREE_BYTES)
    with pytest.raises(Busy):
        budget.acquire(1)
    account.close()
    assert budget.acquire(100) == 100


async def test_s7_what_is_reserved_is_used_first_and_the_rest_given_back() -> None:
    budget = ByteBudget(100)
    account, other = Account(budget), Account(budget)
    await account.reserve(FREE_BYTES + 60, within_s=0)
    with pytest.raises(Busy) as caught:
        await other.reserve(FREE_BYTES + 41, within_s=0)
    assert not caught.value.may_have_executed
    account.hold(FREE_BYTES + 10)
    account.hold(20)
    assert account.held == FREE_BYTES + 60
    account.release_reserved()
    assert account.held == FREE_BYTES + 30
    other.hold(FREE_BYTES + 70)
    with pytest.raises(Busy):
        account.hold(1)  # nothing is reserved any more


# --- folding ----------------------------------------------------------------------------------


def fold(*outputs: tuple[Channel, bytes]) -> Any:
    folding = ResultFold("e")
    folding.add(Started(1, existing=False))
    offset = 0
    for channel, data in outputs:
        folding.add(Output(channel, offset, data))
        offset += len(data)
    return folding.add(EXITED)


def test_s7_output_of_one_channel_is_held_once() -> None:
    result = fold((Channel.STDERR, b"a"), (Channel.STDERR, b"b"))
    assert result.stderr is result.output
    assert (result.stdout, result.stderr, result.output) == (b"", b"ab", b"ab")
    mixed = fold((Channel.STDERR, b"a"), (Channel.STDOUT, b"b"), (Channel.STDERR, b"c"))
    assert (mixed.stdout, mixed.stderr, mixed.output) == (b"b", b"ac", b"abc")
    nothing = fold()
    assert (nothing.stdout, nothing.stderr, nothing.output) == (b"", b"", b"")


def test_s7_output_is_counted_while_it_is_read() -> None:
    budget = ByteBudget(2 * MIB)
    budget.acquire(MIB)  # somebody else's
    token = current_account.set(Account(budget))
    try:
        with pytest.raises(Busy) as caught:
            fold(*((Channel.STDOUT, bytes(MIB // 2)) for _ in range(4)))
        assert (caught.value.retryable, caught.value.may_have_executed) == (True, True)
    finally:
        current_account.reset(token)


# --- over HTTP --------------------------------------------------------------------------------


async def test_s7_long_walk_comes_in_pieces_and_whole(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await live.session()
    for number in range(7):
        await live.service.files(session).write(f"d/{number}", b"x")
    path = f"/v1/sessions/{session}/files"
    asked = [
        (path + "/walk", {"path": "d"}),
        (path + "/walk", {"path": "d", "limit": "3"}),
        (path, {"path": "d", "limit": "5"}),
        (path + "/search", {"path": "d", "pattern": "x"}),
        ("/list_files", {"path": "d", "session_id": session}),
        (f"/v1/sessions/{session}/execs", {}),
    ]
    for number in range(5):
        command = {"command": f"echo {number}", "exec_id": f"e{number}"}
        await live.client.post(f"/v1/sessions/{session}/exec", json=command)
    whole = [(await live.client.get(url, params=params)).json() for url, params in asked]
    monkeypatch.setattr(file_lists, "MAX_UNSPLIT_BYTES", 0)
    monkeypatch.setattr(file_lists, "PIECE_BYTES", 1000)
    for (url, params), expected in zip(asked, whole, strict=True):
        answer = await live.client.get(url, params=params)
        assert "content-length" not in answer.headers
        assert answer.json() == expected


async def test_s7_walks_take_their_room_before_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lists, "RESERVE_TIMEOUT_S", 0.1)
    under_way = most = 0
    goes_on = asyncio.Event()

    async def walk(*_: Any, **__: Any) -> Walk:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await goes_on.wait()
        under_way -= 1
        return Walk((entry("/workspace/f"),), truncated=False)

    monkeypatch.setattr(FakeFiles, "walk", walk)
    # Room for two with 10,000 entries, of which each may be four KiB.
    async with living(max_held_bytes=100 * MIB) as live:
        path = f"/v1/sessions/{await live.session()}/files/walk"
        walking = [asyncio.create_task(live.client.get(path)) for _ in range(10)]
        done, _ = await asyncio.wait(walking, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        refused = (await next(iter(done))) if done else None
        assert refused is not None
        assert (refused.status_code, refused.json()["may_have_executed"]) == (429, False)
        await asyncio.sleep(0.5)
        goes_on.set()
        statuses = sorted([(await one).status_code for one in walking])
        assert statuses == [200, 200] + [429] * 8
        assert most == 2
        assert (await live.client.get(path)).status_code == 200


async def test_s7_older_route_reads_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living(max_held_bytes=4 * MIB, api_key=None) as live:
        session = (await live.service.create_session(CreateSession())).session.id
        text, raw = "né\n".encode() * 200_000, bytes(range(256)) * 2000
        await live.service.files(session).write("text", text)
        await live.service.files(session).write("raw", raw)
        path = f"/api/e2b/files/{session}"
        told = (await live.client.get(path, params={"path": "text"})).json()
        assert (told["path"], told["content"], told["content_base64"]) == ("text", text.decode(), None)
        told = (await live.client.get(path, params={"path": "raw"})).json()
        assert base64.b64decode(told["content_base64"]) == raw

        reading = 0

        async def never(*_: Any, **__: Any) -> bytes:
            nonlocal reading
            reading += 1
            await asyncio.Event().wait()
            return b""

        monkeypatch.setattr(FakeFiles, "read_bytes", never)
        await live.service.files(session).write("large", bytes(3 * MIB))
        held = asyncio.create_task(live.client.get(path, params={"path": "large"}))
        await asyncio.sleep(0.5)
        refused = await live.client.get(path, params={"path": "large"})
        assert refused.status_code == 429
        assert reading == 1
        held.cancel()


async def test_s7_older_execute_gives_large_results_in_pieces(live: Live) -> None:
    session = await live.session()
    body = {"session_id": session, "command": "yes | head -c 700000"}
    answer = await live.client.post("/execute", json=body)
    assert "content-length" not in answer.headers
    assert len(answer.json()["stdout"]) == 700_000

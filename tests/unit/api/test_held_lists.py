"""S7: lists are counted by the memory that they take, not by the number of their entries."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.api.conftest import serving
from tests.unit.api.test_held_results import SLACK, asked, taken, traced

from sandlot.api.responses import lists as file_lists
from sandlot.domain.capacity.budget import Account, ByteBudget, current_account, hold, memory_of
from sandlot.domain.computer import ExecSummary
from sandlot.domain.execution import MIB
from sandlot.domain.files import FileEntry, FileType, TextMatch, Walk
from sandlot.testing import FakeService
from sandlot.testing.fake.files import FakeFiles
from sandlot.wire.agent_messages import ExecState

EMOJI = "\N{CRICKET}"


def deep(number: int, character: str = EMOJI) -> FileEntry:
    """Paths of 2,000 characters: as UTF-8 little more than 2,000 bytes, in memory four times as much."""
    path = f"{number:06}" + "d" * 1993 + character
    return FileEntry(path, path[-250:], FileType.SYMLINK, 2**40, 0o644, 2**41, 100_000, 100_000, path[::-1])


@pytest.mark.parametrize(
    "make",
    [
        deep,
        lambda number: deep(number, "d"),
        lambda number: FileEntry(f"/{number:06}", f"{number:06}", FileType.FILE, 1, 0o644, 2**41, 0, 0),
        lambda number: TextMatch(f"/{number:06}", 1000 + number, f"{number:06}" * 100 + EMOJI),
        lambda number: ExecSummary(f"{number:06}", False, None, f"{number:06} " * 20, 1e9 + number, 1000, 0, 1.5),
        lambda number: ExecState(f"{number:06}", False, None, f"{number:06} " * 20, 2**40 + number, 1000, 0, 1.5),
    ],
    ids=["deep", "ascii", "short", "match", "exec", "state"],
)  # fmt: skip
def test_s7_memory_of_entries_is_what_they_take(make: Any) -> None:
    with traced():
        before, _ = tracemalloc.get_traced_memory()
        entries = [make(number) for number in range(2000)]
        now, _ = tracemalloc.get_traced_memory()
    taken = now - before
    assert 0.9 * taken < memory_of(entries) < 3 * taken  # numbers that are the same object count each time


BUDGET = 32 * MIB
WALKS = 10
ENTRIES = 1000  # that take 17 MiB


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def test_s7_ten_walks_of_a_deep_tree_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    async def walk(*_: Any, **__: Any) -> Walk:
        return Walk(tuple(deep(number) for number in range(ENTRIES)), truncated=False)

    monkeypatch.setattr(FakeFiles, "walk", walk)
    monkeypatch.setattr(file_lists, "RESERVE_TIMEOUT_S", 0.1)
    one = memory_of(deep(number) for number in range(ENTRIES))
    assert WALKS * one > 2 * (BUDGET + SLACK)
    await measured(get(f"/v1/sessions/x/files/walk?limit={ENTRIES}"), one)


async def test_s7_lists_of_execs_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def summary(number: int) -> ExecSummary:
        return ExecSummary(f"{number:064}", False, None, f"{number:06}" + "\0" * 193 + EMOJI, 1e9 + number)

    async def list_execs(*_: Any) -> list[ExecSummary]:
        return [summary(number) for number in range(20_000)]

    monkeypatch.setattr(FakeService, "list_execs", list_execs)
    one = memory_of(map(summary, range(20_000)))
    assert WALKS * one > 2 * (BUDGET + SLACK)
    await measured(get("/v1/sessions/x/execs"), one)


async def test_s7_list_that_was_counted_is_measured_once_and_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = tuple(deep(number, "d") for number in range(4 * file_lists.MEASURE_BATCH))
    turn, in_turn = 0, Counter[int]()

    def noted(values: Iterable[object]) -> int:
        values = list(values)
        in_turn[turn] += len(values)
        return memory_of(values)

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def walk() -> Walk:
        hold(memory_of(entries))  # as who reads from a sandbox does
        return Walk(entries, truncated=False)

    monkeypatch.setattr(file_lists, "memory_of", noted)
    account = Account(ByteBudget(64 * MIB))
    others, token = asyncio.create_task(turns()), current_account.set(account)
    try:
        found = await file_lists.list_within_budget(walk(), len(entries))
        assert account.held == memory_of(entries)
        await file_lists.list_response(found)
    finally:
        current_account.reset(token)
        others.cancel()
    assert in_turn.total() == len(entries)
    assert max(in_turn.values()) <= file_lists.MEASURE_BATCH


async def measured(request: bytes, one: int) -> None:
    """Many ask and take nothing: some are served, the others are refused, and memory follows the budget."""
    service = FakeService()
    async with serving(service, api_key=None, max_held_bytes=BUDGET) as port:
        assert b" 200 " in await taken(port, request)
        with traced():
            async with asked(port, request, WALKS) as lines:
                _, peak = tracemalloc.get_traced_memory()
        refused = [line for line in lines if b" 429 " in line]
        assert 0 < len(refused) < WALKS
        assert peak < BUDGET + one + SLACK  # a fake makes its list before it can be counted
    await service.close()

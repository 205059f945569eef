"""History: what happened is recorded, for its own tenant alone, and stays after a session's end."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.history.events import Event, EventKind
from sandlot.testing.eventually import eventually
from sandlot.testing.service_suite.harness import Cases, ServiceHarness, ok, unique

# Seconds by which a command's end is recorded, where nobody waits for the command.
RECORDED_WITHIN_S = 30.0


async def events_of(session: AsyncSession, *kinds: str) -> list[Event]:
    return [event async for event in session.history(kinds=kinds)]


class HistoryCases(Cases):
    async def test_a_session_is_recorded_from_its_creation_to_its_end(self, client: AsyncClient) -> None:
        thread = unique()
        session = await client.create(thread=thread)
        result = await session.run("echo recorded; echo lost >&2; exit 3", timeout_s=30)
        await session.files.write("note", b"12345")
        await session.files.move("note", "kept")
        await session.files.remove("kept")
        await session.delete()
        events = await events_of(session)
        assert [event.kind for event in events] == [
            "session.created",
            "session.claimed",
            "exec.started",
            "exec.ended",
            "file.written",
            "file.moved",
            "file.removed",
            "session.ended",
        ]
        created, claimed, started, ended, written, moved, removed, deleted = events
        assert {(event.session_id, event.thread) for event in events} == {(session.id, thread)}
        assert created.details == {"environment": session.environment}
        assert claimed.details == {"sandbox_id": session.info.sandbox_id, "generation": 1}
        assert started.exec_id == ended.exec_id == result.exec_id
        assert started.details["command"] == "echo recorded; echo lost >&2; exit 3"
        assert (ended.details["verdict"], ended.details["exit_code"]) == ("nonzero", 3)
        assert ended.details["output_bytes"] == len("recorded\nlost\n")
        assert {"duration_ms", "user_ms", "system_ms", "peak_memory_bytes"} <= set(ended.details)
        assert written.details == {"path": "note", "bytes": 5}
        assert moved.details == {"path": "note", "destination": "kept"}
        assert removed.details == {"path": "kept", "files": 1}
        assert deleted.details == {"reason": "deleted"}
        assert [event.id for event in events] == sorted(event.id for event in events)
        assert [event.id async for event in client.events(thread=thread)] == [event.id for event in events]

    async def test_values_of_variables_are_not_recorded(self, client: AsyncClient) -> None:
        async with client.create(env={"TOKEN": "of-the-session"}) as session:
            await session.run("echo of-the-session of-the-command $X", env={"X": "of-the-command"})
            await session.run(["echo", "it's of-the-session"])
            await session.files.write("of-the-session.txt", b"")
            events = await events_of(session, "exec.started", "file.written")
        assert [event.details.get("command") or event.details["path"] for event in events] == [
            "echo *** *** $X",
            """echo 'it'"'"'s ***'""",
            "***.txt",
        ]

    async def test_a_command_that_nobody_reads_gets_its_end(self, fresh: AsyncSession) -> None:
        await fresh.start("sleep 1.5; exit 7", exec_id="unread")

        async def recorded() -> bool:
            return bool(await events_of(fresh, "exec.ended"))

        await eventually(recorded, RECORDED_WITHIN_S, "the end is recorded")
        [started, ended] = await events_of(fresh, "exec.started", "exec.ended")
        assert (started.exec_id, ended.exec_id, ended.details["exit_code"]) == ("unread", "unread", 7)

    async def test_a_command_asked_for_again_is_recorded_once(self, fresh: AsyncSession) -> None:
        for _ in range(2):
            await fresh.run("echo once", exec_id="once")
        await (await fresh.exec("once")).wait()
        assert [event.kind for event in await events_of(fresh)][2:] == ["exec.started", "exec.ended"]

    async def test_a_loss_is_recorded(self, fresh: AsyncSession, service_harness: ServiceHarness) -> None:
        await service_harness.lose(fresh.id)

        async def recorded() -> bool:
            return bool(await events_of(fresh, "session.lost"))

        await eventually(recorded, RECORDED_WITHIN_S, "the loss is recorded")
        await fresh.recreate()
        [first, again] = await events_of(fresh, "session.claimed")
        assert (first.details["generation"], again.details["generation"]) == (1, 2)

    async def test_events_are_found_by_kind_and_time(self, fresh: AsyncSession) -> None:
        for number in range(5):
            await ok(fresh, f"echo {number}")
        started = await events_of(fresh, "exec.started")
        assert [event.details["command"] for event in started] == [f"echo {number}" for number in range(5)]
        since = [event async for event in fresh.history(kinds=["exec.started"], since=started[2].at)]
        until = [event async for event in fresh.history(kinds=["exec.started"], until=started[2].at)]
        assert since == started[2:]
        assert until == started[:2]

    async def test_events_can_be_followed(self, fresh: AsyncSession) -> None:
        seen: list[Event] = []

        async def follow() -> None:
            async for event in fresh.history(follow=True):
                seen.append(event)
                if event.details.get("command") == "echo last":
                    return

        following = asyncio.create_task(follow())
        await ok(fresh, "echo first")
        await ok(fresh, "echo last")
        await asyncio.wait_for(following, RECORDED_WITHIN_S)
        assert len({event.id for event in seen}) == len(seen) == 5

    async def test_a_wrong_question_is_refused(self, client: AsyncClient, fresh: AsyncSession) -> None:
        with pytest.raises(InvalidRequest, match=r"Did you mean 'exec\.started'"):
            await events_of(fresh, "exec.start")
        with pytest.raises(InvalidRequest):
            async for _ in client.events(session="nonsense"):
                pass

    async def test_a_tenant_sees_its_own_events_only(
        self, client: AsyncClient, service_harness: ServiceHarness
    ) -> None:
        stranger = service_harness.stranger
        if stranger is None:
            pytest.skip("this service has one caller in these tests")
        thread = unique()
        async with client.create(thread=thread) as mine, stranger.create(thread=thread) as theirs:
            await ok(mine, "echo mine")
            await ok(theirs, "echo theirs")
            for own, session, command in ((client, mine, "echo mine"), (stranger, theirs, "echo theirs")):
                events = [event async for event in own.events(thread=thread)]
                assert {event.session_id for event in events} == {session.id}
                started = [event for event in events if event.kind == EventKind.EXEC_STARTED]
                assert [event.details["command"] for event in started] == [command]
            assert [event async for event in stranger.events(session=mine.id)] == []
            everything = [event async for event in stranger.events()]
            assert theirs.id in {event.session_id for event in everything}
            assert mine.id not in {event.session_id for event in everything}
            assert len({event.tenant for event in everything}) == 1
            await mine.delete()
            await theirs.delete()

    async def test_the_servers_own_events_are_not_for_users(self, service_harness: ServiceHarness) -> None:
        if service_harness.stranger is None:
            pytest.skip("this service has one caller in these tests")
        with pytest.raises(Forbidden):
            async for _ in service_harness.stranger.events(server=True):
                pass

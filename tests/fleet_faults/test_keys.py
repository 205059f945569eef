"""A key's end in a fleet: on every coordinator, and on the workers that clients reach straight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from sandlot import AsyncClient, AsyncSession, errors
from sandlot.client.http.administrator import Administrator
from sandlot.fleet.access import LEEWAY_S
from sandlot.testing.eventually import eventually
from sandlot.wire.key_bodies import CreateKeyBody, NewKeyBody
from tests.faults.rig import created_at_last
from tests.fleet_faults.rig import KEY, Fleet

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
REVOKED_WITHIN_S = 5.0
STREAMS = 20


async def administrator(fleet: Fleet, stack: AsyncExitStack, number: int = 0) -> Administrator:
    server = Administrator(fleet.coordinators[number].url, KEY)
    stack.push_async_callback(server.close)
    return server


async def test_revoked_while_streams_are_open(fleet: Fleet) -> None:
    """Twenty streams straight to workers and through a coordinator, revoked at the other coordinator.

    Of every kind that lasts: commands' output, waits for a result, changes of files, the history.
    """
    async with AsyncExitStack() as stack:
        boss, other = await administrator(fleet, stack, 0), await administrator(fleet, stack, 1)
        new = await boss.create_key(CreateKeyBody("of a stranger", tenant="stranger"))
        clients = [
            await stack.enter_async_context(fleet.client(0, key=new.secret)),
            await stack.enter_async_context(fleet.client(1, straight=False, key=new.secret)),
        ]
        session = await created_at_last(clients[0], thread="revoked", certain=False)
        assert fleet.worker_of(session) in fleet.workers
        # The tenant of the fleet's own key does not see it.
        async with fleet.client() as owner:
            with pytest.raises(errors.NotFound):
                await owner.get(session.id)
        execution = await session.start("echo begun; sleep 120", exec_id="watched")
        readers = []
        for number in range(STREAMS):
            through, kind = clients[number % 2], KINDS[number // 2 % len(KINDS)]
            readers.append(asyncio.create_task(kind(await through.get(session.id)), name=kind.__name__))
        await asyncio.sleep(1.0)
        assert not any(reader.done() for reader in readers)
        began = time.monotonic()
        assert (await other.revoke_key(new.key.id)).state == "revoked"
        ended = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), REVOKED_WITHIN_S + 1)
        took = time.monotonic() - began
        print(f"{STREAMS} streams ended {took:.1f} s after their key was revoked")
        assert took < REVOKED_WITHIN_S
        kinds = [(reader.get_name(), type(one)) for reader, one in zip(readers, ended, strict=True)]
        # The SDK repeats no watch: it would miss what changed meanwhile. So that one says that it was cut off.
        expected = {"watch_files": errors.LinkInterrupted}
        assert all(kind is expected.get(name, errors.Unauthorized) for name, kind in kinds), kinds
        # Every process has heard of it by then, not only those that had the streams.
        await asyncio.sleep(max(0.0, began + REVOKED_WITHIN_S - time.monotonic()))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: session.run("echo no"),
            lambda: clients[1].get(session.id),
            lambda: clients[0].create(),
            execution.kill,
        ]
        for call in calls:
            with pytest.raises(errors.Unauthorized):
                await call()
        await remove(boss, fleet, stack, "stranger", session)
    await fleet.settle()


async def read_output(session: AsyncSession) -> None:
    async for _ in (await session.exec("watched")).events():
        pass


async def wait_for_result(session: AsyncSession) -> None:
    await (await session.exec("watched")).wait(timeout_s=120)


async def watch_files(session: AsyncSession) -> None:
    async with session.files.watch(".") as changes:
        async for _ in changes:
            pass


async def follow_history(session: AsyncSession) -> None:
    async for _ in session.history(follow=True):
        pass


KINDS = (read_output, wait_for_result, watch_files, follow_history)


async def remove(
    boss: Administrator, fleet: Fleet, stack: AsyncExitStack, tenant: str, *sessions: AsyncSession
) -> None:
    """With another key of their tenant: the first one no longer opens anything."""
    key = await boss.create_key(CreateKeyBody("to clean up", tenant=tenant))
    client = await stack.enter_async_context(AsyncClient(fleet.coordinators[1].url, api_key=key.secret))
    for session in sessions:
        await (await client.get(session.id)).delete()
    await boss.revoke_key(key.key.id)


async def test_redis_is_away_at_that_moment(fleet: Fleet) -> None:
    """The revocation is refused and says so; known keys go on. Once Redis is back, it can be revoked."""
    async with AsyncExitStack() as stack:
        boss = await administrator(fleet, stack)
        new: NewKeyBody = await boss.create_key(CreateKeyBody("of a stranger", tenant="stranger"))
        client = await stack.enter_async_context(
            AsyncClient(fleet.coordinators[0].url, api_key=new.secret, patience_s=0)
        )
        session = await created_at_last(client, certain=False)
        fleet.redis.kill()
        try:
            with pytest.raises(errors.Unavailable) as refused:
                await boss.revoke_key(new.key.id)
            assert refused.value.retryable
            assert "Redis" in refused.value.message
            assert (await session.run("echo on")).output == "on\n"
        finally:
            fleet.redis.start()

        async def revoked() -> bool:
            try:
                return (await boss.revoke_key(new.key.id)).state == "revoked"
            except errors.Unavailable:
                return False

        await eventually(revoked, 30)
        began = time.monotonic()

        async def is_refused() -> bool:
            try:
                await session.run("echo no")
            except errors.Unauthorized:
                return True
            return False

        await eventually(is_refused, 30)
        assert time.monotonic() - began < REVOKED_WITHIN_S
        await remove(boss, fleet, stack, "stranger", session)
    await fleet.settle()


async def test_redis_goes_away_just_after_it(fleet: Fleet) -> None:
    """The coordinator that revoked the key refuses it at once. Workers that have not heard of it refuse it when
    the client's token ends, and no coordinator gives it another one meanwhile.
    """
    async with AsyncExitStack() as stack:
        boss = await administrator(fleet, stack)
        new = await boss.create_key(CreateKeyBody("of a stranger", tenant="stranger"))
        client = await stack.enter_async_context(fleet.client(0, key=new.secret))
        session = await created_at_last(client, certain=False)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
        path, key = f"/v1/sessions/{session.id}", {"Authorization": f"Bearer {new.secret}"}
        access = (await http.get(f"{fleet.coordinators[0].url}{path}", headers=key)).json()["access"]
        straight = {"Authorization": f"Bearer {access['token']}"}

        async def status(url: str, headers: dict[str, str]) -> int:
            return (await http.get(f"{url}{path}", headers=headers)).status_code

        assert await status(access["url"], straight) == 200
        worker = fleet.worker_of(session)
        worker.freeze()  # it cannot hear of the revocation before Redis is gone
        try:
            await boss.revoke_key(new.key.id)
            fleet.redis.kill()
        finally:
            worker.thaw()
        try:
            revoked_at = time.time()
            assert await status(fleet.coordinators[0].url, key) == 401
            life_s = access["expires_at"] - revoked_at
            assert 0 < life_s < fleet.timings.lost_after_s

            async def is_refused() -> bool:
                return await status(access["url"], straight) == 401

            await eventually(is_refused, life_s + LEEWAY_S + REVOKED_WITHIN_S)
            print(
                f"refused {time.time() - revoked_at:.1f} s after its revocation; its token had {life_s:.1f} s"
            )
            # The other coordinator may still know the key, but has no access to give.
            answer = await http.get(f"{fleet.coordinators[1].url}{path}", headers=key)
            assert answer.status_code in (200, 401, 503), answer.text
            assert not answer.json().get("access")
        finally:
            fleet.redis.start()
        await eventually(lambda: is_settled(boss, new), 30)
        await remove(boss, fleet, stack, "stranger", session)
    await fleet.settle()


async def is_settled(boss: Administrator, new: NewKeyBody) -> bool:
    """Whether Redis is back. If it lost the revocation, a member that saw it has made it again."""
    try:
        return (await boss.revoke_key(new.key.id)).state == "revoked"
    except errors.Unavailable:
        return False

"""The network of sessions on a worker: listeners inside, changes, restarts, and what commands were denied.

The sandboxes are scripted. Programs inside are sockets, hosts outside are stand-ins on loopback.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest
from tests.unit.network.rig import LOOPBACK, OK, answering, echo, outside, resolving
from tests.unit.worker.conftest import OwnWorker, Scene
from tests.unit.worker.scripted import ScriptedSandbox
from tests.unit.worker.test_reload import BASE, change

from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.errors import InvalidRequest, SandboxLost, Unavailable, Unsupported
from sandlot.domain.execution import ExecRequest, Verdict
from sandlot.domain.network.policy import parse_policy
from sandlot.domain.network.status import Forward, NetworkChange
from sandlot.domain.session import CreateSession, SessionState
from sandlot.testing.eventually import eventually
from sandlot.worker.network.options import NetworkOptions, ProxyOptions
from sandlot.worker.network.streams import HostStream

PROXY = "127.0.0.1:3128"
OPEN = NetworkOptions(ceiling=None, proxy=ProxyOptions(allowed=LOOPBACK))


async def session_of(scene: Scene, worker: OwnWorker, network: object = None) -> tuple[str, ScriptedSandbox]:
    asked = None if network is None else parse_policy(network)
    session = (await worker.create_session(CreateSession(network=asked))).session
    return session.id, scene.engine.sandboxes[session.sandbox_id or ""]


async def inside(
    sandbox: ScriptedSandbox, address: str = PROXY
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A program that connects to a port inside."""
    ours, its = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    sandbox.listeners[address][-1].offer(HostStream(reader, writer))
    return await asyncio.open_connection(sock=its)


async def ask(sandbox: ScriptedSandbox, url: str) -> bytes:
    reader, writer = await inside(sandbox)
    host = url.removeprefix("http://")
    writer.write(f"GET {url}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


async def test_a_session_is_served_by_its_policy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    async with outside(answering(OK)) as host:
        session_id, sandbox = await session_of(scene, worker)
        url = f"http://a.test:{host.port}"
        assert (await ask(sandbox, url)).startswith(b"HTTP/1.1 403 Sandlot denied")
        await worker.change_network(session_id, NetworkChange(allow=(f"a.test:{host.port}",), for_s=60))
        assert (await ask(sandbox, url)).endswith(b"hello")
        await worker.change_network(session_id, NetworkChange(revoke=(f"a.test:{host.port}",)))
        assert (await ask(sandbox, url)).startswith(b"HTTP/1.1 403")
        status = await worker.get_network(session_id)
        assert (status.traffic.connections, status.traffic.requests, status.traffic.denied) == (3, 1, 2)
        assert status.traffic.received_bytes == len(OK)
        assert [denied.target for denied in status.denied] == [f"a.test:{host.port}"]
        assert [len(heard) > 0 for heard in host.received] == [True]


async def test_a_warm_sandbox_listens_already(scene: Scene) -> None:
    worker = await scene.start()
    _, sandbox = await session_of(scene, worker)
    assert [listener.address for listener in sandbox.listeners[PROXY]] == [PROXY]


async def test_policy_grants_and_forwards_hold_after_a_restart(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, a=["127.0.0.1"], b=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    async with outside(answering(OK)) as host, outside(echo) as database:
        session_id, sandbox = await session_of(
            scene, worker, [f"a.test:{host.port}", f"b.test:{database.port}"]
        )
        change = NetworkChange(
            allow=(f"b.test:{host.port}",), for_s=600, forward=(Forward(5432, f"b.test:{database.port}"),)
        )
        before = await worker.change_network(session_id, change)
        worker = await scene.restart(worker, network=OPEN)
        await worker.list_execs(session_id)  # waits until it is adopted
        after = await worker.get_network(session_id)
        assert after == replace(before, traffic=after.traffic)
        for name in "ab":
            assert (await ask(sandbox, f"http://{name}.test:{host.port}")).endswith(b"hello")
        reader, writer = await inside(sandbox, "127.0.0.1:5432")
        writer.write(b"select 1")
        assert await asyncio.wait_for(reader.readexactly(8), 20) == b"select 1"
        writer.close()
        assert (await worker.get_session(session_id)).network == parse_policy(
            [f"a.test:{host.port}", f"b.test:{database.port}"]
        )


async def test_a_ceiling_that_was_lowered_keeps_nobody_from_starting(scene: Scene) -> None:
    worker = await scene.start(network=OPEN)
    session_id, sandbox = await session_of(scene, worker, ["a.test:99"])
    worker = await scene.restart(worker)
    await worker.list_execs(session_id)
    assert b"above the ceiling" in await ask(sandbox, "http://a.test:99")
    with pytest.raises(InvalidRequest, match="more than sessions may"):
        await worker.change_network(session_id, NetworkChange(allow=("a.test:99",)))


async def test_a_broken_listener_is_opened_again(scene: Scene) -> None:
    worker = await scene.start()
    _, sandbox = await session_of(scene, worker)
    for count in (2, 3):
        sandbox.listeners[PROXY][-1].break_off()
        await eventually(lambda count=count: len(sandbox.listeners[PROXY]) == count)  # type: ignore[misc]
        assert b"403" in await ask(sandbox, "http://a.test")


async def test_connections_end_with_the_session(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, a=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    async with outside(echo) as host:
        for end in ("revoke", "unforward", "delete", "lose"):
            session_id, sandbox = await session_of(scene, worker)
            forward = Forward(5432, f"a.test:{host.port}")
            await worker.change_network(
                session_id, NetworkChange(allow=(forward.target,), forward=(forward,))
            )
            reader, writer = await inside(sandbox, "127.0.0.1:5432")
            writer.write(b"x")
            assert await asyncio.wait_for(reader.readexactly(1), 20) == b"x"
            if end == "revoke":
                await worker.change_network(session_id, NetworkChange(revoke=(forward.target,)))
            elif end == "unforward":
                await worker.change_network(session_id, NetworkChange(unforward=(5432,)))
            elif end == "delete":
                await worker.delete_session(session_id)
            else:
                sandbox.die()
            assert await asyncio.wait_for(reader.read(), 20) == b"", end
            writer.close()
            await eventually(lambda: host.open == 0)


async def test_connections_end_with_their_grant(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that the worker has found again after a restart."""
    resolving(monkeypatch, a=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    async with outside(echo) as host:
        session_id, sandbox = await session_of(scene, worker)
        forward = Forward(5432, f"a.test:{host.port}")
        for restart in (False, True):
            change = NetworkChange(allow=(forward.target,), for_s=2 if restart else 1, forward=(forward,))
            await worker.change_network(session_id, change)
            if restart:
                worker = await scene.restart(worker, network=OPEN)
                await worker.list_execs(session_id)
            reader, writer = await inside(sandbox, "127.0.0.1:5432")
            writer.write(b"x")
            assert await asyncio.wait_for(reader.readexactly(1), 20) == b"x"
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            await eventually(lambda: host.open == 0)
            assert (await worker.get_network(session_id)).grants == ()


async def test_a_forward_whose_target_is_revoked_is_denied(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, a=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    session_id, sandbox = await session_of(scene, worker)
    forward = Forward(5432, "a.test:5432")
    change = NetworkChange(allow=(forward.target,), forward=(forward,))
    await worker.change_network(session_id, change)
    await worker.change_network(session_id, NetworkChange(revoke=(forward.target,)))
    reader, writer = await inside(sandbox, "127.0.0.1:5432")
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    status = await worker.get_network(session_id)
    assert [denied.target for denied in status.denied] == ["a.test:5432"]


async def test_a_port_that_cannot_be_opened_changes_nothing(scene: Scene) -> None:
    worker = await scene.start(network=OPEN)
    session_id, sandbox = await session_of(scene, worker)
    sandbox.listen_error = InvalidRequest("The address is in use.")
    change = NetworkChange(allow=("a.test:5432",), forward=(Forward(5432, "a.test:5432"),))
    with pytest.raises(InvalidRequest, match="in use"):
        await worker.change_network(session_id, change)
    status = await worker.get_network(session_id)
    assert (status.grants, status.forwards) == ((), ())


async def test_a_recreated_session_has_its_forwards_again(scene: Scene) -> None:
    worker = await scene.start(network=OPEN)
    session_id, sandbox = await session_of(scene, worker)
    change = NetworkChange(allow=("a.test:5432",), forward=(Forward(5432, "a.test:5432"),))
    await worker.change_network(session_id, change)
    sandbox.die()

    async def lost() -> bool:
        return (await worker.get_session(session_id)).state is SessionState.LOST

    await eventually(lost)
    with pytest.raises(SandboxLost, match="Recreate it first"):
        await worker.change_network(session_id, NetworkChange(forward=(Forward(5433, "a.test:5432"),)))
    session = await worker.recreate_session(session_id)
    await worker.list_execs(session_id)
    assert set(scene.engine.sandboxes[session.sandbox_id or ""].listeners) == {PROXY, "127.0.0.1:5432"}


async def test_a_command_is_told_what_was_denied_while_it_ran(scene: Scene) -> None:
    worker = await scene.start()
    session_id, sandbox = await session_of(scene, worker)
    await ask(sandbox, "http://before.test")
    running = await worker.start_exec(session_id, ExecRequest(command="wait", exec_id="e"))
    await ask(sandbox, "http://during.test")
    sandbox.execs["e"].done.set()
    first = await running.result()
    await ask(sandbox, "http://after.test")
    again = await worker.execute(session_id, ExecRequest(command="wait", exec_id="e"))
    for result in (first, again):
        assert [denied.target for denied in result.denied] == ["during.test:80"]
        assert result.verdict is Verdict.OK  # the command did not fail
    assert (await worker.execute(session_id, ExecRequest(command="x"))).denied == ()


async def test_an_environment_that_is_gone_allows_nothing(scene: Scene) -> None:
    worker = await scene.start(network=OPEN)
    session_id, sandbox = await session_of(scene, worker, ["a.test:99"])
    await worker.close()
    scene.lives.remove(worker)
    worker = scene.worker(network=OPEN)
    worker._parts.networks._recipes = {}
    await worker.open()
    await worker.list_execs(session_id)
    assert b"403" in await ask(sandbox, "http://a.test:99")


async def test_a_reload_changes_what_sessions_reach(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of running sessions and of new ones; connections that are no longer allowed end."""
    resolving(monkeypatch, a=["127.0.0.1"])
    worker = await scene.start(network=OPEN)
    async with outside(echo) as host:
        target = f"a.test:{host.port}"
        _, sandbox = await session_of(scene, worker, [target])
        for network in (parse_policy({"deny": [target]}), None):  # None: the environment is gone
            await change(worker, BASE)
            reader, writer = await inside(sandbox)
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nx".encode())
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\nx"), 20)).startswith(b"HTTP/1.1 200")
            await change(worker, *([] if network is None else [replace(BASE, network=network)]))
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            assert b"403" in await ask(sandbox, f"http://{target}")
        await change(worker, replace(BASE, network=parse_policy({"deny": [target]})))
        _, new_sandbox = await session_of(scene, worker, [target])
        assert f"(deny: {target})".encode() in await ask(new_sandbox, f"http://{target}")


async def test_a_port_that_a_program_has_taken_does_not_keep_the_session_from_going_on(scene: Scene) -> None:
    worker = await scene.start()
    session_id, sandbox = await session_of(scene, worker)
    sandbox.listen_error = InvalidRequest("The address is in use.")
    worker = await scene.restart(worker)
    assert (await worker.execute(session_id, ExecRequest(command="x"))).output == b"x"
    sandbox.listen_error = None
    await eventually(lambda: len(sandbox.listeners[PROXY]) == 2)
    assert b"403" in await ask(sandbox, "http://a.test")


async def test_an_older_agent_is_adopted_without_a_network(scene: Scene) -> None:
    worker = await scene.start()
    session_id, sandbox = await session_of(scene, worker)
    sandbox.listen_error = Unsupported("unknown operation")
    worker = await scene.restart(worker)
    assert (await worker.execute(session_id, ExecRequest(command="x"))).output == b"x"


async def test_a_sandbox_that_cannot_listen_is_given_to_nobody(scene: Scene) -> None:
    worker = await scene.start(queue_timeout_s=0.5)
    scene.engine.listen_error = InvalidRequest("The address is in use.")
    with pytest.raises(Unavailable, match="The address is in use"):
        await session_of(scene, worker, ["a.test"])
    assert (await worker.list_sessions()).sessions == ()


async def test_no_policy_comes_from_the_pool(scene: Scene) -> None:
    """Sandboxes are claimed in turn, with a policy and without."""
    worker = await scene.start(pool=PoolPolicy(size=2, min=2, max=2))
    for network, answer in ((["a.test"], b"502"), (None, b"403"), (["a.test"], b"502"), (None, b"403")):
        session_id, sandbox = await session_of(scene, worker, network)
        assert answer in (await ask(sandbox, "http://a.test")).split(b"\r\n")[0]  # 502: it does not resolve
        if network is None:
            assert (await worker.get_network(session_id)).policy == parse_policy("none")

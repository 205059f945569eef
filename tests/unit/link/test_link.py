"""One sandbox's link over its life: redialling, the files link, quarantine, and its socket."""

from __future__ import annotations

import asyncio
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot.domain.errors import LinkInterrupted, SandboxLost, SandboxQuarantined
from sandlot.providers.link import helper_link
from sandlot.providers.link.link import AgentLink
from sandlot.wire.frames import Kind, encode

ENTRY = {
    "path": "/workspace/a",
    "name": "a",
    "type": "file",
    "size": 3,
    "mode": 0o644,
    "mtime_ms": 1,
    "uid": 1000,
    "gid": 1000,
}


async def test_call_waits_for_the_redial(scene) -> None:
    (await scene.core()).close()
    await asyncio.sleep(0.01)
    asking = asyncio.create_task(scene.agent.kill("e1"))
    await asyncio.sleep(0.01)
    peer = await scene.core()
    number, _ = await peer.request()
    peer.answer(number, {"signalled": 1})
    assert await asking == 1


async def test_new_core_replaces_the_former(scene) -> None:
    former = await scene.core()
    asking = asyncio.create_task(scene.agent.kill("e1"))
    await former.request()
    newer = await (await scene.dial()).shake_hands()
    await former.eof()
    with pytest.raises(LinkInterrupted) as caught:
        await asking
    assert caught.value.may_have_executed
    asking = asyncio.create_task(scene.agent.kill("e1"))
    number, _ = await newer.request()
    newer.answer(number, {"signalled": 1})
    assert await asking == 1


async def test_files_link_is_asked_for_once(scene) -> None:
    core = await scene.core()
    asking = [asyncio.create_task(scene.agent.files.stat("a")) for _ in range(5)]
    helper = await scene.files(core)
    for _ in range(5):
        number, request = await helper.request()
        assert request["op"] == "file.stat"
        helper.answer(number, {"entry": ENTRY})
    assert [entry.name for entry in await asyncio.gather(*asking)] == ["a"] * 5


async def test_one_caller_that_gives_up_does_not_spoil_it_for_others(scene) -> None:
    core = await scene.core()
    first = asyncio.create_task(scene.agent.files.stat("a"))
    second = asyncio.create_task(scene.agent.files.stat("a"))
    await asyncio.sleep(0.01)
    first.cancel()
    helper = await scene.files(core)
    number, _ = await helper.request()
    helper.answer(number, {"entry": ENTRY})
    assert (await second).name == "a"


async def test_dead_helper_is_replaced(scene, monkeypatch) -> None:
    monkeypatch.setattr(helper_link, "OPEN_TIMEOUT_S", 1.0)  # for the one that nobody starts in its place
    core = await scene.core()
    for _ in range(2):
        asking = asyncio.create_task(scene.agent.files.stat("a"))
        helper = await scene.files(core)
        await helper.request()
        helper.close()
        with pytest.raises(LinkInterrupted):
            await asking


async def test_files_link_that_never_comes(scene, monkeypatch) -> None:
    monkeypatch.setattr(helper_link, "OPEN_TIMEOUT_S", 0.02)
    core = await scene.core()
    asking = asyncio.create_task(scene.agent.files.stat("a"))
    number, _ = await core.request()
    core.answer(number, {})
    with pytest.raises(LinkInterrupted):
        await asking


async def test_broken_rules_on_files_cost_the_link_then_the_sandbox(scene) -> None:
    core = await scene.core()
    for turn in range(helper_link.MAX_VIOLATIONS):
        asking = asyncio.create_task(scene.agent.files.stat("a"))
        helper = await scene.files(core)
        number, _ = await helper.request()
        helper.answer(number, {"entry": {**ENTRY, "size": -1}})
        last = turn == helper_link.MAX_VIOLATIONS - 1
        with pytest.raises(SandboxQuarantined if last else LinkInterrupted):
            await asking
    await core.eof()
    with pytest.raises(SandboxQuarantined):
        await scene.agent.health()


async def test_broken_rule_on_core_quarantines_every_call(scene) -> None:
    peer = await scene.core()
    losing = asyncio.create_task(scene.agent.wait_lost())
    calls = [
        asyncio.create_task(call)
        for call in (scene.agent.kill("e1"), scene.agent.attach("e2"), scene.agent.files.stat("a"))
    ]
    for _ in calls:
        await peer.request()
    peer.data(99, b"never opened")
    for call in calls:
        with pytest.raises(SandboxQuarantined):
            await call
    with pytest.raises(SandboxQuarantined):
        await scene.agent.list_execs()
    assert "never opened" in await losing
    with pytest.raises(OSError, match=r"No such file|refused"):
        await scene.dial()


@pytest.mark.parametrize("body", [{}, {"signalled": "2"}, {"signalled": -1}, {"signalled": 1.5}], ids=repr)
async def test_wrong_answer_on_core_quarantines(scene, body) -> None:
    peer = await scene.core()
    asking = asyncio.create_task(scene.agent.kill("e1"))
    number, _ = await peer.request()
    peer.answer(number, body)
    with pytest.raises(SandboxQuarantined):
        await asking


async def test_known_loss_is_told(scene) -> None:
    await scene.core()
    asking = asyncio.create_task(scene.agent.kill("e1"))
    await asyncio.sleep(0)
    scene.link.mark_lost("the container ended")
    with pytest.raises(SandboxLost, match="the container ended"):
        await asking
    assert await scene.agent.wait_lost() == "the container ended"


async def test_closing_interrupts_what_waits(scene) -> None:
    waiting = [asyncio.create_task(scene.link.core()), asyncio.create_task(scene.link.files())]
    await asyncio.sleep(0)
    await scene.link.close()
    for task in waiting:
        with pytest.raises(LinkInterrupted):
            await task


GARBAGE = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.builds(
        encode,
        st.sampled_from(list(Kind)),
        st.integers(0, 9),
        st.one_of(st.binary(max_size=40), st.just(b"{}"), st.just(b'{"op":"port.accepted","listener":1}')),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chunks=st.lists(GARBAGE, min_size=1, max_size=6))
async def test_garbage_quarantines_and_does_nothing_worse(make_scene, chunks) -> None:
    """Whatever follows the handshake, callers are told so and nothing else is disturbed."""
    scene = await make_scene()
    unexpected: list[dict] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    peer = await scene.core()
    asking = asyncio.create_task(scene.agent.kill("e1"))
    await peer.request()
    for chunk in chunks:
        peer.raw(chunk)
    peer.raw(b"\xff" * 70_000)  # more than any frame that the garbage may have begun
    await asyncio.wait_for(peer.eof(), 5)
    peer.close()
    with pytest.raises(SandboxQuarantined):
        await asyncio.wait_for(asking, 5)
    await scene.close()
    assert not unexpected


async def test_socket_is_open_to_all_in_a_folder_that_is_not(scene) -> None:
    path = scene.folder / "agent.sock"
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o666
    assert stat.S_IMODE(scene.folder.stat().st_mode) == 0o755
    await scene.link.close()
    assert not path.exists()


def a_link(folder) -> AgentLink:
    return AgentLink(folder, secret=bytes(32), epoch=1, setup={}, first_contact=True)


async def test_stale_socket_is_replaced_and_its_owner_leaves_ours_alone(tmp_path) -> None:
    former, newer = a_link(tmp_path), a_link(tmp_path)
    await former.open()
    await newer.open()
    await former.close()
    assert (tmp_path / "agent.sock").is_socket()
    await newer.close()
    assert not (tmp_path / "agent.sock").exists()


async def test_what_is_not_a_socket_is_left_alone(tmp_path) -> None:
    target = tmp_path / "precious"
    target.write_text("x")
    (tmp_path / "agent.sock").symlink_to(target)
    with pytest.raises(FileExistsError):
        await a_link(tmp_path).open()
    assert target.read_text() == "x"
    (tmp_path / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(OSError):  # noqa: PT011
        await a_link(tmp_path / "elsewhere").open()


async def test_long_path_works(tmp_path) -> None:
    folder = tmp_path / ("d" * 120)
    link = a_link(folder)
    await link.open()
    assert (folder / "agent.sock").is_socket()
    await link.close()


@pytest.mark.parametrize("how", ["cancelled", "lost"])
async def test_given_up_while_it_begins_to_listen(tmp_path, how: str) -> None:
    link = AgentLink(tmp_path / "l", secret=bytes(32), epoch=1, setup={}, first_contact=True)
    opening = asyncio.create_task(link.open())
    await asyncio.sleep(0)  # it listens, and has not returned
    assert not opening.done()
    if how == "cancelled":
        opening.cancel()
    link.mark_lost("gone")
    await asyncio.wait([opening])
    assert not (tmp_path / "l" / "agent.sock").exists()
    assert link._server is not None
    assert not link._server.is_serving()

"""S1: an agent that does what the protocol allows, but without end. Its neighbours are served; it is cut off."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.domain.errors import SandboxQuarantined
from sandlot.providers.link import link as link_module
from sandlot.providers.link.allowance import Allowance
from sandlot.providers.link.connection import MAX_FRAMES_PER_TURN
from sandlot.providers.link.mux import AGENT_STREAMS_BURST, NEEDLESS_BURST, STRAY_BYTES
from sandlot.providers.link.stream import WINDOW_BYTES
from sandlot.testing.eventually import eventually
from sandlot.wire.frames import MAX_DATA_BYTES, Kind, encode, encode_credit, encode_u64

PING = encode_u64(Kind.PING, 1)


async def quarantined(scene, why: str) -> None:
    assert await asyncio.wait_for(scene.link.wait_lost(), 5) == f"protocol abuse: {why}"
    with pytest.raises(SandboxQuarantined):
        await scene.link.core()


@given(
    st.floats(1, 1000),
    st.floats(1, 1000),
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 100)), min_size=1),
)
def test_allowance_is_a_burst_and_a_rate(per_s: float, burst: float, takes: list[tuple[float, int]]) -> None:
    allowance = Allowance(per_s=per_s, burst=burst, now=0)
    now, taken = 0.0, 0
    for pause, amount in takes:
        now += pause
        taken += amount
        overdrawn_s = allowance.take(amount, now)
        # Never overdrawn by more than what was taken beyond the burst, and whoever waits has something again.
        assert overdrawn_s <= max(0.0, (taken - burst) / per_s) + 1e-6
        if taken > burst + per_s * now + 1e-6:
            assert overdrawn_s > 0
    assert allowance.take(0, now + taken / per_s + 1) == 0


async def test_pings_without_end(scene) -> None:
    peer = await scene.core()
    peer.raw(PING * NEEDLESS_BURST)
    for _ in range(NEEDLESS_BURST):
        await peer.until(Kind.PONG)
    peer.raw(PING * 3)
    await quarantined(scene, f"more than {NEEDLESS_BURST} needless frames at once")


@pytest.mark.parametrize("amount", [0, 1], ids=["of nothing", "of a byte"])
async def test_credits_without_end(scene, amount: int) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    peer.raw(encode_credit(stream.id, amount) * (NEEDLESS_BURST + 3))
    await quarantined(scene, f"more than {NEEDLESS_BURST} needless frames at once")


async def test_pongs_without_end(scene) -> None:
    peer = await scene.core()
    peer.raw(encode_u64(Kind.PONG, 1) * (NEEDLESS_BURST + 3))
    await quarantined(scene, f"more than {NEEDLESS_BURST} needless frames at once")


async def test_credit_by_half_windows_is_no_abuse(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    peer.raw(encode_credit(stream.id, WINDOW_BYTES // 2) * (NEEDLESS_BURST + 3))
    peer.raw(PING)
    await peer.until(Kind.PONG)


async def test_streams_without_end(scene) -> None:
    peer = await scene.core()
    for number in range(1, AGENT_STREAMS_BURST + 500):
        peer.raw(encode(Kind.OPEN, 2 * number, b"{}"))
    await quarantined(scene, f"more than {AGENT_STREAMS_BURST} streams opened at once")


async def test_what_is_under_way_to_an_ended_stream_is_bounded_by_its_credit(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    stream = await mux.open({"op": "x"})
    stream.close()
    await peer.until(Kind.RESET)
    for _ in range(WINDOW_BYTES // (MAX_DATA_BYTES + 9)):
        peer.data(stream.id, b"x" * MAX_DATA_BYTES)
    peer.raw(PING)
    await peer.until(Kind.PONG)  # all of that could have been on its way
    for _ in range(STRAY_BYTES // 9 + 1):
        peer.raw(encode_credit(stream.id, 1))
    await quarantined(scene, "more data for ended streams than could be in flight")


async def test_abuse_of_the_files_link_costs_the_sandbox_at_once(scene) -> None:
    """A broken rule there costs the link: user code may get hold of the helper and end it. Abuse is no accident."""
    core = await scene.core()
    asking = asyncio.create_task(scene.link.files())
    files = await scene.files(core)
    await asking
    files.raw(PING * (NEEDLESS_BURST + 2))
    await quarantined(scene, f"more than {NEEDLESS_BURST} needless frames at once")


async def test_dialling_without_end(scene, monkeypatch) -> None:
    monkeypatch.setattr(scene.link, "_dials", Allowance(per_s=1, burst=10, now=link_module.monotonic()))
    await scene.core()
    for _ in range(15):
        with contextlib.suppress(OSError):
            peer = await scene.dial()
            await peer.closed()
            scene.peers.remove(peer)
    await quarantined(scene, f"more than {link_module.DIALS_BURST} connections at once")


async def test_flood_leaves_every_turn_to_others(scene) -> None:
    peer = await scene.core()
    stream = await (await scene.link.core()).open({"op": "x"})
    sent = 20 * MAX_FRAMES_PER_TURN
    peer.raw(encode(Kind.MESSAGE, stream.id, b"{}") * sent)
    await peer.drain()
    handled, most = 0, 0
    while handled < sent:
        await asyncio.sleep(0)  # one turn of the loop
        most = max(most, len(stream._queue) - handled)
        handled = len(stream._queue)
    assert 0 < most <= MAX_FRAMES_PER_TURN


async def test_flood_waits_for_its_allowance_and_is_delivered(scene) -> None:
    peer = await scene.core()
    mux = await scene.link.core()
    mux._connection._allowance = Allowance(per_s=1000, burst=0, now=mux.loop.time())
    stream = await mux.open({"op": "x"})
    began = mux.loop.time()
    peer.raw(encode(Kind.MESSAGE, stream.id, b"{}") * 400)
    peer.end(stream.id)
    got = 0
    while await stream.receive() is not None:
        got += 1
    assert got == 400
    assert mux.loop.time() - began > 0.25, "400 frames at 1,000 a second, less the last turn"
    await eventually(lambda: not mux._connection._resume_handle, what="reading goes on")

"""Who is let in: first contact, later ones, wrong proofs and other versions."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.domain.errors import LinkInterrupted, SandboxQuarantined, Unsupported
from sandlot.providers.link import link as link_module
from sandlot.providers.link.handshake import PROTOCOL, Role, agent_proof, worker_proof
from sandlot.wire.frames import Kind, encode

SECRET = bytes(range(32))


def test_proofs_are_as_specified() -> None:
    """Computed apart from this code: HMAC-SHA256(secret, side ‖ nonce ‖ u64 epoch ‖ role)."""
    secret = bytes.fromhex("33" * 32)
    assert worker_proof(secret, bytes.fromhex("11" * 32), 8, Role.CORE).hex() == WORKER_PROOF
    assert agent_proof(secret, bytes.fromhex("22" * 32), 8, Role.CORE).hex() == AGENT_PROOF


async def test_first_contact_hands_over_the_secret(make_scene) -> None:
    scene = await make_scene(first_contact=True)
    peer = await scene.dial()
    welcome = await peer.hello(known=False)
    assert welcome["kind"] is Kind.WELCOME
    assert welcome["secret"] == SECRET.hex()
    assert welcome["setup"]["uid"] == 1000
    assert "proof" not in welcome
    assert scene.link.first_contact
    peer.ready(welcome)
    await scene.link.wait_ready()
    assert not scene.link.first_contact
    assert scene.link.handshake_result.boot == "ab" * 16


async def test_secret_taken_over_but_never_confirmed(make_scene) -> None:
    """The agent has the secret; the link broke before READY. It comes back as one that knows."""
    scene = await make_scene(first_contact=True)
    peer = await scene.dial()
    await peer.hello(known=False)
    peer.close()
    await (await scene.dial()).shake_hands(known=True)
    await scene.link.wait_ready()


async def test_later_contact_proves_both_sides(scene) -> None:
    peer = await scene.dial()
    welcome = await peer.hello(known=True)
    assert "secret" not in welcome
    assert "setup" not in welcome
    assert welcome["epoch"] == 7
    assert welcome["proof"] == worker_proof(SECRET, peer.nonce, 7, Role.CORE).hex()
    peer.ready(welcome)
    await scene.link.wait_ready()


async def test_wrong_proof_refuses_that_peer_alone(scene) -> None:
    good = await scene.core()
    stranger = await scene.dial()
    stranger.ready(await stranger.hello(known=True), secret=bytes(32))
    assert (await stranger.frame()).kind is Kind.REFUSE
    await stranger.eof()
    asking = asyncio.create_task(scene.agent.kill("e1"))
    number, _ = await good.request()
    good.answer(number, {"signalled": 2})
    assert await asking == 2


async def test_proof_for_another_role_is_wrong(scene) -> None:
    peer = await scene.dial()
    welcome = await peer.hello(known=True)
    peer.role = Role.FILES
    peer.ready(welcome)
    assert (await peer.frame()).kind is Kind.REFUSE


async def test_wrong_proof_on_first_contact_quarantines(make_scene) -> None:
    scene = await make_scene(first_contact=True)
    peer = await scene.dial()
    peer.ready(await peer.hello(known=False), secret=bytes(32))
    with pytest.raises(SandboxQuarantined):
        await scene.link.wait_ready()


async def test_unknown_agent_is_refused_once_a_secret_is_held(scene) -> None:
    refusal = await (await scene.dial()).hello(known=False)
    assert (refusal["kind"], refusal["code"]) == (Kind.REFUSE, "unknown_agent")
    assert scene.link.failure is None


async def test_another_major_is_refused(scene) -> None:
    refusal = await (await scene.dial()).hello(known=True, protocol=[2, 0])
    assert (refusal["kind"], refusal["code"]) == (Kind.REFUSE, "incompatible")
    assert scene.link.failure is None


async def test_another_major_on_first_contact_is_told(make_scene) -> None:
    scene = await make_scene(first_contact=True)
    waiting = asyncio.create_task(scene.link.wait_ready())
    assert (await (await scene.dial()).hello(protocol=[2, 0]))["code"] == "incompatible"
    with pytest.raises(Unsupported):
        await waiting


@pytest.mark.parametrize(("minor", "used"), [(0, 0), (1, 1), (99, PROTOCOL[1])])
async def test_the_smaller_minor_is_used(scene, minor, used) -> None:
    peer = await scene.dial()
    peer.ready(await peer.hello(known=True, protocol=[1, minor]))
    await scene.link.wait_ready()
    assert scene.link.handshake_result.minor == used


async def test_unknown_role_is_refused(scene) -> None:
    assert (await (await scene.dial()).hello(known=True, role="root"))["kind"] is Kind.REFUSE


BAD_HELLOS = [
    {"protocol": [1]},
    {"protocol": "1.0"},
    {"protocol": [1, True]},
    {"protocol": [1, -1]},
    {"nonce": "00"},
    {"nonce": "zz" * 32},
    {"nonce": " " * 64},
    {"boot": 7},
    {"known": "false"},
    {"agent": None},
]


@pytest.mark.parametrize("spoiled", BAD_HELLOS, ids=repr)
async def test_broken_hello_is_dropped_later_and_quarantined_at_first(make_scene, spoiled) -> None:
    later = await make_scene()
    with pytest.raises(EOFError):
        await (await later.dial()).hello(**{"known": True, **spoiled})
    assert later.link.failure is None
    first = await make_scene(first_contact=True)
    with pytest.raises(EOFError):
        await (await first.dial()).hello(**spoiled)
    with pytest.raises(SandboxQuarantined):
        await first.link.wait_ready()


async def test_frames_before_the_handshake_are_dropped(scene) -> None:
    for frame in (encode(Kind.READY, 0, b"{}"), encode(Kind.OPEN, 2, b"{}"), b"GET / HTTP/1.1\r\n\r\n"):
        peer = await scene.dial()
        peer.raw(frame)
        await peer.eof()
    await scene.core()


async def test_silent_stranger_is_dropped(scene, monkeypatch) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_TIMEOUT_S", 0.01)
    await asyncio.wait_for((await scene.dial()).eof(), 5)
    assert scene.link.failure is None


async def test_strangers_are_few(scene) -> None:
    first = [await scene.dial() for _ in range(link_module.MAX_PENDING_PEERS)]
    await asyncio.wait_for((await scene.dial()).eof(), 5)
    first[0].close()
    await asyncio.sleep(0.01)
    await scene.core()


async def test_nobody_dials(scene) -> None:
    with pytest.raises(LinkInterrupted) as caught:
        await scene.link.wait_ready(0.01)
    assert not caught.value.may_have_executed


WORKER_PROOF = "4174dbb271727134187873c192b6962f9f122681330cb6086cffee8d5a3179d2"
AGENT_PROOF = "43291aca27d406f86c13547959b4a0536ecf8c7bf0ffc9e81f3381cb2f9be272"

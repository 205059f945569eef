"""Limits of tenants and keys on a worker that is a server of its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.worker.conftest import Scene

from sandlot.domain.callers.limits import Allowance, CallerLimits, Use, holders_of, key_holder, tenant_holder
from sandlot.domain.callers.principal import USER_SCOPES, Principal
from sandlot.domain.capacity.limits import LimitChange
from sandlot.domain.errors import Busy, Unavailable
from sandlot.domain.session import ENDED_MEANWHILE, Assignment, CreateSession

ACME = Principal("acme", USER_SCOPES, key_id="k1")
OTHER_KEY = Principal("acme", USER_SCOPES, key_id="k2")
STRANGER = Principal("stranger", USER_SCOPES, key_id="k3")


class Book:
    """Limits by holder, which a test may change."""

    def __init__(self, **limits: CallerLimits) -> None:
        self.limits = {name.replace("_", ":"): value for name, value in limits.items()}

    def __call__(self, principal: Principal) -> list[Allowance]:
        holders = holders_of(principal.tenant, principal.key_id)
        return [Allowance(holder, self.limits[holder]) for holder in holders if holder in self.limits]


async def test_a_crowd_of_creates(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(sessions=5)))
    scene.engine.creating.delay_s = 0.01
    services = [worker.acting_for(caller) for caller in (ACME, OTHER_KEY)]
    answers = await asyncio.gather(
        *(services[number % 2].create_session(CreateSession()) for number in range(100)),
        return_exceptions=True,
    )
    made = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(made) == 5
    assert all(isinstance(answer, Busy) for answer in answers if isinstance(answer, BaseException))
    assert await worker.use(tenant_holder("acme")) == Use(5, 2500, 2560)
    # One tenant at its limit leaves the other its own.
    assert (await worker.acting_for(STRANGER).create_session(CreateSession())).created
    await services[0].delete_session(made[0].session.id)
    assert (await services[1].create_session(CreateSession())).created
    with pytest.raises(Busy):
        await services[1].create_session(CreateSession())


async def test_a_create_that_fails_counts_no_longer(scene: Scene) -> None:
    book = Book(t_acme=CallerLimits(sessions=1), k_k1=CallerLimits(memory_mb=600))
    worker = await scene.start(allowances=book, queue_timeout_s=0.05)
    service = worker.acting_for(ACME)
    scene.engine.creating.hold()
    for _ in range(3):
        with pytest.raises(Unavailable):
            await service.create_session(CreateSession())
    scene.engine.creating.release()
    assert await worker.use(key_holder("k1")) == Use()
    assert (await service.create_session(CreateSession())).created


async def test_the_same_thread_and_key_need_no_more(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(sessions=1)))
    service = worker.acting_for(ACME)
    request = CreateSession(thread="t", idempotency_key="k")
    assert (await service.create_session(request)).created
    assert not (await service.create_session(request)).created
    assert not (await service.create_session(CreateSession(thread="t"))).created


async def test_a_fleet_has_reserved_nothing(scene: Scene) -> None:
    """The directory knew the thread's session here, and it has ended since: the create is placed anew."""
    worker = await scene.start()
    known = Assignment(opens=False)
    first = (await worker.create_assigned(ACME, CreateSession(thread="t"), Assignment())).session
    assert (await worker.create_assigned(ACME, CreateSession(thread="t"), known)).session.id == first.id
    await worker.acting_for(ACME).delete_session(first.id)
    with pytest.raises(Unavailable) as refused:
        await worker.create_assigned(ACME, CreateSession(thread="t"), known)
    assert refused.value.details["reason"] == ENDED_MEANWHILE
    assert refused.value.retryable
    assert not refused.value.may_have_executed


async def test_cores_and_memory(scene: Scene) -> None:
    worker = await scene.start(
        allowances=Book(k_k1=CallerLimits(cpus=1.0), t_acme=CallerLimits(memory_mb=1536))
    )
    first, second = worker.acting_for(ACME), worker.acting_for(OTHER_KEY)
    with pytest.raises(Busy) as refused:
        await first.create_session(CreateSession(limits=LimitChange(cpus=1.5)))
    assert refused.value.details["limit"] == "cpus"
    assert "this session alone exceeds that" in refused.value.message
    assert not refused.value.retryable
    for _ in range(2):
        await first.create_session(CreateSession())
    with pytest.raises(Busy, match="API key k1 has reached its limit of 1 core"):
        await first.create_session(CreateSession())
    await second.create_session(CreateSession())
    with pytest.raises(Busy, match="Tenant acme has reached its limit of 1536 MiB"):
        await second.create_session(CreateSession())


async def test_creates_per_second(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(creates_per_s=0.01)))
    service = worker.acting_for(ACME)
    first = await service.create_session(CreateSession(thread="t"))
    with pytest.raises(Busy) as refused:
        await service.create_session(CreateSession())
    assert refused.value.details["limit"] == "creates_per_s"
    assert refused.value.retry_after_s == pytest.approx(100, abs=5)
    # What exists is no create.
    assert (await service.create_session(CreateSession(thread="t"))).session.id == first.session.id
    assert (await worker.acting_for(STRANGER).create_session(CreateSession())).created


async def test_use_survives_a_restart(scene: Scene) -> None:
    book = Book(t_acme=CallerLimits(sessions=2), k_k1=CallerLimits(sessions=1))
    worker = await scene.start(allowances=book)
    opened = await worker.acting_for(ACME).create_session(CreateSession())
    assert opened.session.created_by == "k1"
    worker = await scene.restart(worker, allowances=book)
    assert await worker.use(key_holder("k1")) == Use(1, 500, 512)
    with pytest.raises(Busy):
        await worker.acting_for(ACME).create_session(CreateSession())
    assert (await worker.acting_for(OTHER_KEY).create_session(CreateSession())).created


async def test_a_lost_session_counts_until_it_is_deleted(scene: Scene) -> None:
    worker = await scene.start(allowances=Book(t_acme=CallerLimits(sessions=1)))
    service = worker.acting_for(ACME)
    session = (await service.create_session(CreateSession())).session
    live = worker._sessions.table.by_id(session.id)
    assert live is not None
    await worker._sessions.record_loss(live, live.sandbox, "a test")
    with pytest.raises(Busy):
        await service.create_session(CreateSession())
    await service.recreate_session(session.id)
    await service.delete_session(session.id)
    assert (await service.create_session(CreateSession())).created

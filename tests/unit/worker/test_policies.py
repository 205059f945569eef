"""A worker's command policies, of an environment and of a tenant: a sandbox never hears of a command that may not run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.owned import OwnWorker
from tests.unit.worker.conftest import Scene

from sandlot.config.registry.policies import shipped_policy
from sandlot.domain.errors import ApprovalRequired, PolicyDenied
from sandlot.domain.execution import ExecRequest
from sandlot.domain.policy.tenant_policies import TenantPolicies
from sandlot.domain.session import CreateSession

Start = Callable[[OwnWorker, str, ExecRequest], Awaitable[object]]


async def execute(worker: OwnWorker, session_id: str, request: ExecRequest) -> object:
    return await worker.execute(session_id, request)


async def start(worker: OwnWorker, session_id: str, request: ExecRequest) -> object:
    return await worker.start_exec(session_id, request)


async def in_thread(worker: OwnWorker, session_id: str, request: ExecRequest) -> object:
    return await worker.execute_in_thread(CreateSession(thread="t"), request)


@pytest.mark.parametrize("way", [execute, start, in_thread])
@pytest.mark.parametrize("shell", [None, "main"])
async def test_the_sandbox_hears_only_of_what_may_run(scene: Scene, way: Start, shell: str | None) -> None:
    worker = await scene.start(recipe={"policy": shipped_policy("validation")})
    session = (await worker.create_session(CreateSession(thread="t"))).session
    (sandbox,) = scene.engine.sandboxes.values()
    for approved in (False, True):
        with pytest.raises(PolicyDenied):
            await way(worker, session.id, ExecRequest("ls; rm -rf /", shell=shell, approved=approved))
    with pytest.raises(ApprovalRequired):
        await way(worker, session.id, ExecRequest("$X", shell=shell))
    assert sandbox.execs == {}
    await way(worker, session.id, ExecRequest("$X", shell=shell, approved=True))
    await way(worker, session.id, ExecRequest("ls", shell=shell))
    assert [known.request.command for known in sandbox.execs.values()] == ["$X", "ls"]


@pytest.mark.parametrize("way", [execute, start, in_thread])
async def test_a_tenants_policy_holds_in_an_environment_without_one(scene: Scene, way: Start) -> None:
    given: dict[str, str | None] = {}
    valid = shipped_policy("validation")
    worker = await scene.start(tenant_policies=TenantPolicies({valid.name: valid}, given.get))
    assert list(worker.policy_names) == ["validation"]
    session = (await worker.create_session(CreateSession(thread="t"))).session
    (sandbox,) = scene.engine.sandboxes.values()
    given[session.tenant] = "validation"  # while the session is there
    with pytest.raises(PolicyDenied):
        await way(worker, session.id, ExecRequest("rm -rf /"))
    given[session.tenant] = "gone"
    with pytest.raises(PolicyDenied, match="no such policy"):
        await way(worker, session.id, ExecRequest("ls"))
    assert sandbox.execs == {}
    given[session.tenant] = None
    await way(worker, session.id, ExecRequest("rm -rf /"))
    assert [known.request.command for known in sandbox.execs.values()] == ["rm -rf /"]

"""Recovery at start-up: sessions get their sandboxes back, and unfinished removals are finished.

``domain.recovery`` decides; this module acts. The worker accepts calls at once. A call on a session
waits while its sandbox is being adopted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from sandlot.domain.environment import proxy_port
from sandlot.domain.errors import NotFound, SandboxLost
from sandlot.domain.ids import first_workspace_of
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.recovery import Purpose, plan
from sandlot.domain.session import Session, SessionState
from sandlot.domain.session_states import reset_idle_clock
from sandlot.domain.workspaces.workspace import Workspace
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.options import WorkerOptions
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.sessions.opening import Opening
from sandlot.worker.store.database import Store
from sandlot.worker.store.sandboxes import Sandboxes

log = structlog.get_logger("sandlot.startup")

# How many sandboxes are adopted at once, and seconds before a failed adoption is tried again.
ADOPTIONS_AT_ONCE = 32
ADOPT_AGAIN_S = 1.0


async def recover(
    opening: Opening, sandboxes: Sandboxes, store: Store, options: WorkerOptions, now: float
) -> None:
    sessions = opening.sessions
    records = {record.session.id: record for record in await store.sessions()}
    sandbox_records = await store.sandboxes()
    for sandbox in sandbox_records:
        sandboxes.track(sandbox)
    recovery_plan = plan(
        (record.session for record in records.values()), sandbox_records, await sandboxes.engine_states()
    )
    for record in sorted(records.values(), key=lambda record: record.session.created_at):
        if record.session.state is SessionState.ENDED:
            sessions.table.add_ended(record)
        else:
            session = reset_idle_clock(record.session, now)
            if opening.keeps_files(session.environment):
                session = with_workspace(session)
            sessions.table.add(replace(record, session=session))
    live_sessions = {live_session.session.id: live_session for live_session in sessions.table}
    for session in (*recovery_plan.adopt, *(session for session, _ in recovery_plan.lose)):
        await sessions.history.resume(session)
    slots = asyncio.Semaphore(ADOPTIONS_AT_ONCE)
    for session in recovery_plan.adopt:
        live_session = live_sessions[session.id]
        live_session.preparing = asyncio.create_task(
            _adopt(live_session, opening, sandboxes, options, slots),
            name=f"adopt the sandbox of {session.id}",
        )
    for session, reason in recovery_plan.lose:
        await sessions.record_loss(live_sessions[session.id], None, reason)
    for sandbox_id in recovery_plan.remove:
        sessions.remove_in_background(sandbox_id)
    log.info(
        "recovered sessions",
        adopting=len(recovery_plan.adopt),
        lost=len(recovery_plan.lose),
        removing=len(recovery_plan.remove),
    )


def with_workspace(session: Session) -> Session:
    """The session with its workspace. Before version 0.4, sessions did not name the one that they had."""
    if session.workspace is not None or session.sandbox_id is None:
        return session
    return replace(session, workspace=Workspace(first_workspace_of(session.sandbox_id)))


async def _adopt(
    live_session: LiveSession,
    opening: Opening,
    sandboxes: Sandboxes,
    options: WorkerOptions,
    slots: asyncio.Semaphore,
) -> None:
    """Adopt a session's sandbox. Retries until the sandbox answers or is known to be lost: an agent
    that is slow to redial is no reason to give up its sandbox.
    """
    owned = live_session.sandbox_record(Purpose.SESSION)
    assert owned is not None
    while True:
        try:
            async with slots:
                # The worker may have died between the session's record and its files.
                await opening.workspaces.attach(owned.id, live_session.session.workspace)
                await opening.volumes.attach(owned.id, live_session.session)
                sandbox = await sandboxes.adopt(owned.id)
                # Bind again: the worker may have died after the record and before the binding.
                record = live_session.record
                variables = opening.networks.variables(record)
                env = with_proxy(record.env, variables, proxy_port(sandbox.tier))
                await sandbox.bind(env=env, max_execs=options.max_execs)
                await opening.starting.restore_limits(live_session, sandbox)
                await opening.networks.adopted(live_session, sandbox)
        except (SandboxLost, NotFound) as error:
            live_session.preparing = None
            await opening.sessions.record_loss(live_session, None, error.message)
            return
        except Exception as error:  # noqa: BLE001  # no error here proves that the sandbox is lost
            log.warning("cannot adopt a sandbox yet", session=live_session.session.id, error=str(error))
            await asyncio.sleep(ADOPT_AGAIN_S)
            continue
        reached(Step.ADOPTED)
        live_session.sandbox = sandbox
        live_session.preparing = None
        opening.sessions.watch(live_session)
        opening.sessions.history.adopted(live_session, sandbox)
        return

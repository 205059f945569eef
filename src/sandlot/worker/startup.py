"""Start-up is recovery: sessions get their sandboxes back, and what was being removed is removed.

``domain.recovery`` decides; this performs it. The worker takes calls at once: a call on a session whose
sandbox is still being adopted waits for that.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from sandlot.domain.errors import NotFound, SandboxLost
from sandlot.domain.recovery import Purpose, plan
from sandlot.domain.session import SessionState, rested
from sandlot.worker.failpoints import Step, reached
from sandlot.worker.live import Live
from sandlot.worker.opening import Opening
from sandlot.worker.options import WorkerOptions
from sandlot.worker.sandboxes import Sandboxes
from sandlot.worker.store import Store

log = structlog.get_logger("sandlot.startup")

# Sandboxes taken over at once, and the seconds until one that did not answer is asked again.
ADOPTIONS_AT_ONCE = 32
ADOPT_AGAIN_S = 1.0


async def recover(
    opening: Opening, sandboxes: Sandboxes, store: Store, options: WorkerOptions, now: float
) -> None:
    sessions = opening.sessions
    records = {record.session.id: record for record in await store.sessions()}
    made = await store.sandboxes()
    for sandbox in made:
        sandboxes.know(sandbox)
    what = plan((record.session for record in records.values()), made, await sandboxes.found())
    for record in sorted(records.values(), key=lambda record: record.session.created_at):
        if record.session.state is SessionState.ENDED:
            sessions.table.remember(record)
        else:
            sessions.table.add(replace(record, session=rested(record.session, now)))
    lives = {live.session.id: live for live in sessions.table}
    slots = asyncio.Semaphore(ADOPTIONS_AT_ONCE)
    for session in what.adopt:
        live = lives[session.id]
        live.preparing = asyncio.create_task(
            _adopt(live, opening, sandboxes, options, slots), name=f"adopt the sandbox of {session.id}"
        )
    for session, reason in what.lose:
        await sessions.lost(lives[session.id], None, reason)
    for sandbox_id in what.remove:
        sessions.remove_in_background(sandbox_id)
    log.info("recovered", adopting=len(what.adopt), lost=len(what.lose), removing=len(what.remove))


async def _adopt(
    live: Live, opening: Opening, sandboxes: Sandboxes, options: WorkerOptions, slots: asyncio.Semaphore
) -> None:
    """Until it answers or is known to be lost: an agent that is slow to redial is no reason to give it up."""
    owned = live.sandbox_record(Purpose.SESSION)
    assert owned is not None
    while True:
        try:
            async with slots:
                sandbox = await sandboxes.adopt(owned.id)
                # Again: the worker may have died between the record and the binding.
                await sandbox.bind(env=live.record.env, max_execs=options.max_execs)
                await opening.restore_limits(live, sandbox)
        except (SandboxLost, NotFound) as error:
            live.preparing = None
            await opening.sessions.lost(live, None, error.message)
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, the sandbox is not known to be lost
            log.warning("sandbox not adopted yet", session=live.session.id, error=str(error))
            await asyncio.sleep(ADOPT_AGAIN_S)
            continue
        reached(Step.ADOPTED)
        live.sandbox = sandbox
        live.preparing = None
        opening.sessions.watch(live)
        return

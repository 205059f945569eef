"""Runs the set-up scripts of environments, each in a sandbox that nobody else gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sandlot.domain.environment import Environment
from sandlot.domain.errors import EngineProblem, InvalidRequest, SandboxLost
from sandlot.domain.execution import ExecRequest, ExecResult, Verdict
from sandlot.domain.ids import new_session_id
from sandlot.domain.network.variables import with_proxy
from sandlot.domain.session import Session
from sandlot.domain.text.printable import escape_unprintable
from sandlot.domain.workspaces.setup import Setup
from sandlot.providers.base import Sandbox
from sandlot.worker.network.networks import Networks
from sandlot.worker.options import WorkerOptions
from sandlot.worker.sessions.executions import with_denials
from sandlot.worker.sessions.live_session import LiveSession
from sandlot.worker.store.database import SessionRecord
from sandlot.worker.store.sandboxes import Sandboxes

# How much of a script's output is kept, and how much of its end an error shows.
OUTPUT_BYTES: Final = 64 * 1024
SHOWN_LINES: Final = 15
SHOWN_CHARS: Final = 2000
SHOWN_DENIALS: Final = 5

_WHY: Final = {
    Verdict.OOM: "needed more memory than its sandbox has",
    Verdict.DISK_FULL: "filled its disk",
    Verdict.KILLED: "was killed",
}


class SetupScripts:
    """``networks``: looked up when a script runs."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        networks: Callable[[], Networks],
        options: WorkerOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sandboxes = sandboxes
        self._networks = networks
        self._options = options
        self._clock = clock

    @asynccontextmanager
    async def sandbox_after(self, environment: Environment, setup: Setup) -> AsyncIterator[Sandbox]:
        """A sandbox of the environment in which the script has succeeded. It is removed at the end.

        If the worker dies meanwhile, its next start removes it as it does a warm one.
        """
        async with self._sandboxes.slots:
            sandbox = await self._sandboxes.make(environment)
        live_session = self._session_of(sandbox, environment)
        try:
            await self._run(live_session, sandbox, environment, setup)
            yield sandbox
        finally:
            serving = live_session.stop_network()
            self._sandboxes.mark_for_removal(sandbox.id)
            await asyncio.shield(self._sandboxes.try_remove(sandbox.id))
            await asyncio.gather(*serving, return_exceptions=True)

    def _session_of(self, sandbox: Sandbox, environment: Environment) -> LiveSession:
        """What gives the sandbox its environment's network. No client sees it, and it is in no table."""
        now = self._clock()
        session = Session(
            new_session_id(), environment.name, created_at=now, last_active_at=now, sandbox_id=sandbox.id
        )
        return LiveSession(SessionRecord(session), self._clock)

    async def _run(
        self, live_session: LiveSession, sandbox: Sandbox, environment: Environment, setup: Setup
    ) -> None:
        networks, name = self._networks(), environment.name
        try:
            networks.claimed(live_session, sandbox)
            await sandbox.bind(env=with_proxy({}, networks.variables(live_session.record)))
            await networks.prepare(live_session, sandbox)
            request = ExecRequest(
                # A set-up that failed half-way must not be taken for a complete one.
                argv=("bash", "-e", "-o", "pipefail", "-c", setup.script),
                timeout_s=setup.timeout_s,
                output_limit=OUTPUT_BYTES,
                merge_output=True,
            )
            assert live_session.network is not None
            live_session.network.execs.started(request.exec_id)
            async with asyncio.timeout(setup.timeout_s + self._options.exec_grace_s):
                result = with_denials(await sandbox.run(request), live_session)
        except SandboxLost as error:
            raise EngineProblem(
                f"The sandbox of the set-up script of environment {name} was lost: {error.message}",
                retryable=True,
            ) from error
        except TimeoutError as error:
            raise EngineProblem(
                f"The sandbox of the set-up script of environment {name} no longer answers.", retryable=True
            ) from error
        if result.exit_code != 0 or result.verdict is not Verdict.OK:
            raise InvalidRequest(_failure(name, setup, result))


def _failure(name: str, setup: Setup, result: ExecResult) -> str:
    if result.timed_out:
        why = f"was not done after {setup.timeout_s:g} s"
    elif result.exited.reason == "start_failed":
        why = f"could not be started ({result.exited.error[:200]})"
    else:
        why = _WHY.get(result.verdict, f"failed with exit code {result.exit_code}")
    lines = result.output.decode("utf-8", "replace").split("\n")
    shown = "\n".join(escape_unprintable(line.rstrip("\r")) for line in lines if line.strip())
    end = "\n".join(shown.split("\n")[-SHOWN_LINES:])[-SHOWN_CHARS:]
    denied = ", ".join(sorted({each.target for each in result.denied})[:SHOWN_DENIALS])
    return (
        f"The set-up script of environment {name} {why}."
        + (f" The environment's network denied {denied}." if denied else "")
        + " Correct the environment's file and run `sandlot env reload`. "
        + (f"The output ends with:\n{end}" if end else "The script printed nothing.")
    )

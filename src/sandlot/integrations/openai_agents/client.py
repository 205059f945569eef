"""``SandlotSandboxClient``: creates sandboxes, finds existing ones and deletes them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Final

import anyio
from agents.sandbox import Manifest
from agents.sandbox.errors import ExecTransportError
from agents.sandbox.session import BaseSandboxClient, SandboxSession, SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from sandlot.client.async_client import AsyncClient
from sandlot.client.async_session import AsyncSession
from sandlot.client.sync.client import Client
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.domain.session import SessionState
from sandlot.integrations.foreground import KILL_TIMEOUT_S
from sandlot.integrations.openai_agents.failures import error_text, refuse_accounts, start_error
from sandlot.integrations.openai_agents.session import SandlotSandboxSession
from sandlot.integrations.openai_agents.state import (
    SandlotSandboxClientOptions,
    SandlotSandboxSessionState,
    sandlot_state,
)
from sandlot.integrations.sandboxes import run_on_client

# The longest delay for a caller that is cancelled during a create: as long as a busy engine takes.
UNDO_TIMEOUT_S: Final = 30.0


class SandlotSandboxClient(BaseSandboxClient[SandlotSandboxClientOptions | None]):
    """Provides sandboxes to the framework.

    An ``AsyncClient`` serves one event loop, a ``Client`` any number of them.
    """

    backend_id = "sandlot"
    supports_default_options = True

    def __init__(self, client: Client | AsyncClient | None = None) -> None:
        super().__init__()
        self._client = client if client is not None else Client()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandlotSandboxClientOptions | None = None,
    ) -> SandboxSession:
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        refuse_accounts(manifest)
        options = options if options is not None else SandlotSandboxClientOptions()
        session = await self._create_session(options, manifest)
        try:
            state = SandlotSandboxSessionState(
                manifest=manifest,
                snapshot=resolve_snapshot(snapshot, session.id),
                sandlot_session=session.id,
                options=options,
            )
            return self._wrap_session(SandlotSandboxSession(self._client, session, state))
        except BaseException:
            with anyio.move_on_after(KILL_TIMEOUT_S, shield=True), contextlib.suppress(SandlotError):
                await run_on_client(self._client, lambda _: session.delete())
            raise

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        state = sandlot_state(state)
        state.assert_path_grants_rebound()
        session = await self._find(state)
        reused = session is not None
        if session is None:
            session = await self._create_session(state.options, state.manifest)
            state.sandlot_session = session.id
            state.workspace_root_ready = False
        return self._wrap_session(SandlotSandboxSession(self._client, session, state, reused=reused))

    async def _find(self, state: SandlotSandboxSessionState) -> AsyncSession | None:
        """The state's session; None if it is gone and a snapshot can restore it."""
        try:
            session = await run_on_client(self._client, lambda client: client.get(state.sandlot_session))
            if session.state is SessionState.LOST:
                raise errors.SandboxLost(f"The sandbox of session {session.id} is lost.")
        except (errors.NotFound, errors.SandboxLost) as error:
            if await state.snapshot.restorable():
                return None
            raise start_error(state.manifest, error) from error
        except SandlotError as error:
            raise start_error(state.manifest, error) from error
        return session

    async def delete(self, session: SandboxSession) -> SandboxSession:
        state = sandlot_state(session.state)

        async def work(client: AsyncClient) -> None:
            with contextlib.suppress(errors.NotFound):
                await (await client.get(state.sandlot_session)).delete()

        try:
            await run_on_client(self._client, work)
        except SandlotError as error:
            raise ExecTransportError(
                command=("delete", state.sandlot_session), message=error_text(error), cause=error
            ) from error
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandlotSandboxSessionState)

    async def _create_session(self, options: SandlotSandboxClientOptions, manifest: Manifest) -> AsyncSession:
        env = await manifest.environment.resolve()

        key = secrets.token_hex(16)

        async def create_session(client: AsyncClient) -> AsyncSession:
            return await client.create(
                options.environment,
                idempotency_key=key,
                env=env,
                idle_timeout_s=options.idle_timeout_s,
                lifetime_s=options.lifetime_s,
            )

        async def undo_create(client: AsyncClient) -> None:
            await (await create_session(client)).delete()

        try:
            return await run_on_client(self._client, create_session)
        except asyncio.CancelledError:
            # The session may exist, with its id in transit from the client's own loop. Only this
            # call has the idempotency key, so only this call can delete it.
            with anyio.move_on_after(UNDO_TIMEOUT_S, shield=True), contextlib.suppress(SandlotError):
                await run_on_client(self._client, undo_create)
            raise
        except SandlotError as error:
            raise start_error(manifest, error) from error

"""``Lifecycle``: the interface of the system's second specification, built on the current SDK.

The environment names of that time (Python3, Node) mean a default environment, as they do on the HTTP
routes of that time. ``provider="e2b"`` means the server's environment at E2B. A server that has none takes
every provider's name for itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sandlot.client.sync.client import Client
from sandlot.client.sync.session import Session
from sandlot.domain.artifacts.artifact import MAX_FILES
from sandlot.domain.artifacts.generated import FOLDER, generated
from sandlot.domain.artifacts.patterns import path_inside
from sandlot.domain.environment import Tier
from sandlot.domain.errors import FileProblem, SandboxLost
from sandlot.domain.files import FileEntry
from sandlot.wire.former_names import provider_of, resolve_environment
from sandlot.wire.http_bodies import SessionBody


class SandboxManager:
    """Starts, uses and stops sandboxes by the caller's own ids."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._environments: dict[str, Tier] | None = None

    def start_sandbox(self, session_id: str, environment: str, provider: str | None = None) -> dict[str, Any]:
        """Return the caller's sandbox, and create it if there is none.

        ``session_id`` is used as the thread's id, so asking twice returns the same sandbox.
        """
        resolved = self._environment(environment, provider)
        session = self._client.thread(session_id, resolved, artifacts=[FOLDER])
        return self._description(session, session_id)

    def execute_code(self, session_id: str, code: str) -> dict[str, Any]:
        """Run Python code in the sandbox.

        Files that it leaves in ``/workspace/artifacts`` are kept, and stay after the sandbox. ``artifacts``
        in the result lists them; ``Client.artifacts`` downloads them.
        """
        session = self._session(session_id)
        before = _files_to_keep(session)
        result = session.run(["python3", "-c", code])
        new = generated(before, _files_to_keep(session))
        kept = session.artifacts.keep(*new).kept if new else ()
        return {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "exit_code": result.exit_code,
            "results": [],
            "artifacts": [
                {
                    "id": artifact.id,
                    "path": artifact.path,
                    "size": artifact.size,
                    "media_type": artifact.media_type,
                }
                for artifact in kept
            ],
        }

    def store(self, session_id: str, folder: Path) -> None:
        """Copy the sandbox's artifacts and a description of its session to a folder on this machine."""
        session = self._session(session_id)
        with contextlib.suppress(SandboxLost):  # what was kept before is there
            session.artifacts.keep(FOLDER)
        kept = folder / "artifacts" / session.id
        for artifact in session.artifacts.list():
            # The path was chosen in the sandbox, and may not lead out of the folder.
            path = path_inside(f"/workspace/{artifact.path}") or artifact.id
            try:
                session.artifacts.download(artifact, kept / path)
            except (FileExistsError, NotADirectoryError):  # a file was kept where later a folder was
                session.artifacts.download(artifact, kept / artifact.id)
        self.describe(session_id, folder)

    def describe(self, session_id: str, folder: Path) -> None:
        """Write what the server knows of the sandbox's session to a folder on this machine."""
        session = self._session(session_id)
        described = folder / "sessions" / f"{session.id}.json"
        described.parent.mkdir(parents=True, exist_ok=True)
        described.write_bytes(msgspec.json.format(msgspec.json.encode(SessionBody.of(session.info))) + b"\n")

    def stop_sandbox(self, session_id: str) -> None:
        """Delete the sandbox."""
        self._session(session_id).delete()

    def _session(self, session_id: str) -> Session:
        return next(iter(self._client.sessions(thread=session_id)), None) or self._client.get(session_id)

    def _known(self) -> Mapping[str, Tier]:
        if self._environments is None:
            known = self._client.catalogue().environments
            self._environments = {environment.name: environment.tier for environment in known}
        return self._environments

    def _environment(self, name: str | None, provider: str | None) -> str | None:
        return resolve_environment(name, self._known(), provider)

    def _description(self, session: Session, session_id: str) -> dict[str, Any]:
        return {
            "session_id": session_id,
            "sandbox_id": session.info.sandbox_id,
            "provider": str(provider_of(self._known().get(session.info.environment))),
            "url": None,
        }

    def create(
        self, environment: str | None, agent_config: Mapping[str, Any], provider: str | None = None
    ) -> dict[str, Any]:
        """Create a new sandbox. ``agent_config`` is kept as the session's metadata."""
        metadata = {f"agent.{name}": str(value) for name, value in agent_config.items()}
        resolved = self._environment(environment, provider)
        session = self._client.create(resolved, metadata=metadata, artifacts=[FOLDER])
        return self._description(session, session.id)


class Lifecycle:
    """Starts and stops sandboxes, with the interface of the system's second specification.

    ``storage_path``: a folder on this machine. ``start`` and ``stop`` write what the server knows of the
    session to ``sessions/<session id>.json`` in it. ``stop`` also copies what the sandbox has kept, and what
    is in its ``/workspace/artifacts``, to ``artifacts/<session id>``. ``runtime_path`` and ``e2b_api_key``
    are accepted and ignored: the server has E2B's key. ``Client`` is the current interface.
    """

    def __init__(
        self,
        storage_path: str | None = None,
        runtime_path: str | None = None,
        e2b_api_key: str | None = None,
        *,
        server_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self._client = Client(server_url, api_key=api_key)
        self._storage = None if storage_path is None else Path(storage_path)
        self.sandbox_mgr = SandboxManager(self._client)

    def start(
        self,
        agent_config: Mapping[str, Any] | None = None,
        environment: str | None = None,
        provider: str | None = None,
    ) -> dict[str, Any]:
        """Create a new sandbox and return its ids."""
        created = self.sandbox_mgr.create(environment, agent_config or {}, provider)
        if self._storage is not None:
            self.sandbox_mgr.describe(created["session_id"], self._storage)
        return created

    def stop(self, session_id: str, sandbox_id: str | None = None) -> None:
        """Delete a sandbox. What it has kept goes to ``storage_path``, if there is one."""
        if self._storage is not None:
            self.sandbox_mgr.store(session_id, self._storage)
        self.sandbox_mgr.stop_sandbox(session_id)

    def close(self) -> None:
        """Close the connection. Sandboxes stay."""
        self._client.close()


def _files_to_keep(session: Session) -> tuple[FileEntry, ...]:
    try:
        return session.files.walk(FOLDER, limit=MAX_FILES).entries
    except FileProblem:  # there is no such folder
        return ()

"""``Lifecycle``: the interface of the system's second specification, built on the current SDK.

Its providers and templates were names of other services. Here every session is a sandbox of the
server. The environment names of that time (Python3, Node) mean the default environment, as they do
on the HTTP routes of that time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.client.sync.client import Client
from sandlot.client.sync.session import Session
from sandlot.domain.environment import Tier
from sandlot.wire.former_names import resolve_environment

PROVIDER = "docker"


class SandboxManager:
    """Starts, uses and stops sandboxes by the caller's own ids."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._environments: dict[str, Tier] | None = None

    def start_sandbox(self, session_id: str, environment: str, provider: str = PROVIDER) -> dict[str, Any]:
        """Return the caller's sandbox, and create it if there is none.

        ``session_id`` is used as the thread's id, so asking twice returns the same sandbox.
        """
        session = self._client.thread(session_id, self._environment(environment))
        return _description(session, session_id)

    def execute_code(self, session_id: str, code: str) -> dict[str, Any]:
        """Run Python code in the sandbox."""
        result = self._session(session_id).run(["python3", "-c", code])
        return {
            "stdout": result.stdout,
            "stderr": result.stderr,
            "exit_code": result.exit_code,
            "results": [],
            "artifacts": [],
        }

    def stop_sandbox(self, session_id: str) -> None:
        """Delete the sandbox."""
        self._session(session_id).delete()

    def _session(self, session_id: str) -> Session:
        return next(iter(self._client.sessions(thread=session_id)), None) or self._client.get(session_id)

    def _environment(self, name: str | None) -> str | None:
        if self._environments is None:
            known = self._client.catalogue().environments
            self._environments = {environment.name: environment.tier for environment in known}
        return resolve_environment(name, self._environments)

    def create(self, environment: str | None, agent_config: Mapping[str, Any]) -> dict[str, Any]:
        """Create a new sandbox. ``agent_config`` is kept as the session's metadata."""
        metadata = {f"agent.{name}": str(value) for name, value in agent_config.items()}
        session = self._client.create(self._environment(environment), metadata=metadata)
        return _description(session, session.id)


class Lifecycle:
    """Starts and stops sandboxes, with the interface of the system's second specification.

    ``storage_path``, ``runtime_path`` and ``e2b_api_key`` are accepted and ignored: the server
    keeps its own records. ``Client`` is the current interface.
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
        self.sandbox_mgr = SandboxManager(self._client)

    def start(
        self,
        agent_config: Mapping[str, Any] | None = None,
        environment: str | None = None,
        provider: str = PROVIDER,
    ) -> dict[str, Any]:
        """Create a new sandbox and return its ids."""
        return self.sandbox_mgr.create(environment, agent_config or {})

    def stop(self, session_id: str, sandbox_id: str | None = None) -> None:
        """Delete a sandbox."""
        self.sandbox_mgr.stop_sandbox(session_id)

    def close(self) -> None:
        """Close the connection. Sandboxes stay."""
        self._client.close()


def _description(session: Session, session_id: str) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "sandbox_id": session.info.sandbox_id,
        "provider": PROVIDER,
        "url": None,
    }

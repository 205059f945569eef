"""What E2B's record of a sandbox says, and this worker's sandboxes among all of an account."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sandlot.domain.environment import Tier
from sandlot.domain.ids import is_sandbox_id
from sandlot.providers.base import FoundSandbox, SandboxSpec
from sandlot.providers.e2b.service import E2BService, RemoteRecord

OWNER: Final = "sandlot.owner"
SANDBOX: Final = "sandlot.sandbox"
ENVIRONMENT: Final = "sandlot.environment"
AGENT_FOLDER: Final = "sandlot.agent"
LABEL: Final = "sandlot.label."


def metadata_of(spec: SandboxSpec, owner: str, agent_folder: str) -> Mapping[str, str]:
    return {
        OWNER: owner,
        SANDBOX: spec.id,
        ENVIRONMENT: spec.environment.name,
        AGENT_FOLDER: agent_folder,
        **{f"{LABEL}{name}": value for name, value in spec.labels.items()},
    }


class Listing:
    def __init__(self, service: E2BService, owner: str) -> None:
        self._service = service
        self._owner = owner

    async def records(self, sandbox_id: str | None = None) -> Sequence[RemoteRecord]:
        """All of this owner's, or those of one id. The filter is E2B's, so what comes is checked."""
        wanted = {OWNER: self._owner} if sandbox_id is None else {OWNER: self._owner, SANDBOX: sandbox_id}
        return [
            record
            for record in await self._service.list(wanted)
            if record.metadata.items() >= wanted.items() and is_sandbox_id(record.metadata.get(SANDBOX, ""))
        ]

    async def remote_ids(self) -> Collection[str]:
        return {record.id for record in await self.records()}


def found(record: RemoteRecord) -> FoundSandbox:
    metadata = record.metadata
    return FoundSandbox(
        id=metadata[SANDBOX],
        state=record.state,
        environment=metadata.get(ENVIRONMENT, ""),
        tier=Tier.MICROVM,
        created_at=record.started_at,
        labels={key.removeprefix(LABEL): value for key, value in metadata.items() if key.startswith(LABEL)},
    )

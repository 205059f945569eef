"""``ControlCall``: one request of E2B's REST API, and the answers that show sandboxes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from sandlot.api.e2b.admission import query_of
from sandlot.api.e2b.control.bodies import Lifecycle, ListedSandbox, SandboxBody, VolumeMount
from sandlot.api.e2b.options import ENVD_VERSION, TokenHolders
from sandlot.api.e2b.sessions import ends_at, is_running, public_metadata, resumes_by_itself, timestamp
from sandlot.api.e2b.signed_links import LinkedSessions
from sandlot.domain.callers.principal import Principal
from sandlot.domain.e2b.names import sandbox_id_of, session_id_of
from sandlot.domain.e2b.tokens import TokenKind
from sandlot.domain.errors import Forbidden, InvalidRequest
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.paging import MAX_PAGE
from sandlot.domain.service import SandboxService
from sandlot.domain.session import OnIdle, Session
from sandlot.domain.templates.build import TemplateBuilds
from sandlot.domain.text.suggestions import did_you_mean
from sandlot.domain.workspaces.snapshots import Snapshot

_MIB = 1024 * 1024
# E2B names the client that has a sandbox. Its SDKs only want the field to be there.
_CLIENT = "sandlot"


@dataclass(frozen=True, slots=True)
class ControlCall:
    """``domain``: the hosts of ports, after the port and the id; None if the server has none.

    ``builds``: None if clients build no templates here.
    """

    request: Request
    service: SandboxService
    caller: Principal
    holders: TokenHolders
    links: LinkedSessions
    domain: str | None = None
    builds: TemplateBuilds | None = None

    @property
    def session_id(self) -> str:
        return session_id_of(self.request.path_params["sandbox_id"])

    @property
    def user_agent(self) -> str:
        return self.request.headers.get("user-agent", "")[:200]

    async def find_snapshot(self, snapshot_id: str) -> Snapshot | None:
        """The tenant's snapshot, if it is in its list."""
        after: str | None = None
        while True:
            page = await self.service.list_snapshots(after=after, limit=MAX_PAGE)
            for snapshot in page.snapshots:
                if snapshot.id == snapshot_id:
                    return snapshot
            after = page.next
            if after is None:
                return None

    def query(self, *known: str) -> dict[str, str]:
        fields = dict(query_of(self.request.scope))
        for name in fields:
            if name not in known:
                raise InvalidRequest(f"Unknown query field {name!r:.80}.{did_you_mean(name[:80], known)}")
        return fields

    def token_of(self, session: Session) -> str:
        if self.caller.subject and not self.caller.key_id:
            raise Forbidden("E2B's API needs an API key. Create one with `sandlot keys create`.")
        token = self.holders.tokens.issue(session.id, self.caller.key_id)
        self.links.add(session.id, token)
        return token

    def port_token_of(self, session: Session) -> str:
        return self.holders.tokens.issue(session.id, self.caller.key_id, TokenKind.PORT)

    def sandbox_body(self, session: Session) -> SandboxBody:
        return SandboxBody(
            template_id=session.environment,
            sandbox_id=sandbox_id_of(session.id),
            client_id=_CLIENT,
            envd_version=ENVD_VERSION,
            envd_access_token=self.token_of(session),
            traffic_access_token=self.port_token_of(session),
            domain=self.domain,
        )

    def listed(self, session: Session) -> ListedSandbox:
        quota = None if session.workspace is None else session.workspace.quota_bytes
        return ListedSandbox(
            template_id=session.environment,
            sandbox_id=sandbox_id_of(session.id),
            client_id=_CLIENT,
            started_at=timestamp(session.lifetime_from),
            end_at=timestamp(ends_at(session)),
            cpu_count=max(1, math.ceil(session.limits.cpus)),
            memory_mb=session.limits.memory_bytes // _MIB,
            disk_size_mb=0 if quota is None else quota // _MIB,
            state="running" if is_running(session) else "paused",
            envd_version=ENVD_VERSION,
            metadata=public_metadata(session),
            volume_mounts=[VolumeMount(each.name, f"/volumes/{each.name}") for each in session.volumes]
            or None,
        )

    def detail(self, session: Session, policy: EgressPolicy) -> ListedSandbox:
        listed = self.listed(session)
        return ListedSandbox(
            **{name: getattr(listed, name) for name in _LISTED},
            envd_access_token=self.token_of(session),
            domain=self.domain,
            allow_internet_access=bool(policy.allow),
            lifecycle=Lifecycle(
                resumes_by_itself(session), "pause" if session.on_idle is OnIdle.HIBERNATE else "kill"
            ),
            network={"allowOut": list(policy.allow), "denyOut": list(policy.deny)},
        )


_LISTED = (
    "template_id",
    "sandbox_id",
    "client_id",
    "started_at",
    "end_at",
    "cpu_count",
    "memory_mb",
    "disk_size_mb",
    "state",
    "envd_version",
    "metadata",
    "volume_mounts",
)

Handler = Callable[[ControlCall], Awaitable[Response]]

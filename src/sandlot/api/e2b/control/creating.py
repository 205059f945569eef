"""What E2B's SDK asks for when it creates a sandbox, as a request for a session."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from sandlot.api.e2b.control.bodies import CreateSandbox, Network
from sandlot.api.e2b.control.calls import ControlCall
from sandlot.api.e2b.control.volumes import volume_uses
from sandlot.api.e2b.options import DEFAULT_TIMEOUT_S
from sandlot.api.e2b.sessions import own_metadata
from sandlot.domain.e2b.network import egress_of
from sandlot.domain.errors import InvalidRequest, Unsupported
from sandlot.domain.ids import is_snapshot_id
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.session import MAX_IDEMPOTENCY_KEY, CreateSession, OnIdle
from sandlot.domain.text.suggestions import did_you_mean

_NO_MEMORY: Final = (
    "A paused sandbox keeps its files and not its memory. Leave out the mode, or use mode='filesystem'."
)
_VERSION: Final = re.compile(r"\be2b-(?:python|js)-sdk/(\d{1,4})\.(\d{1,4})\.")
# From this version on, SDKs say what becomes of the memory only if their caller does.
_MEMORY_IF_ASKED: Final = (2, 51)
_UNSUPPORTED: Final = {
    "mcp": "Sandboxes have no MCP gateway. Use a template whose image has the servers.",
    "iam": "Sandboxes have no workload identity. Use a gateway with a secret (docs/howto/secrets.md).",
}
# What the code interpreter's SDK asks for if nobody names a template.
CODE_TEMPLATE: Final = "code-interpreter-v1"
CODE_ENVIRONMENT: Final = "code"
_NETWORK_UNSUPPORTED: Final = {
    "rules": "network.rules is not supported. Use a gateway to add secrets (docs/howto/secrets.md).",
    "egress_proxy": "network.egressProxy is not supported: connections already pass the server's proxy.",
    "dns_servers": "network.dnsServers is not supported: the server looks names up, and sandboxes cannot.",
    "mask_request_host": "network.maskRequestHost is not supported.",
    "https_ports": "network.httpsPorts is not supported.",
}


async def session_request(
    call: ControlCall, body: CreateSandbox, idempotency_key: str | None
) -> CreateSession:
    for name, why in _UNSUPPORTED.items():
        if getattr(body, name):
            raise Unsupported(why)
    if body.auto_pause:
        check_memory(body.auto_pause_memory, call.user_agent)
    auto_resume = body.auto_resume is not None and body.auto_resume.enabled
    if auto_resume and not body.auto_pause:
        raise InvalidRequest("autoResume needs autoPause: a sandbox that ends cannot resume.")
    timeout_s = float(body.timeout or DEFAULT_TIMEOUT_S)
    environment, snapshot = await _source(call, body.template_id)
    return CreateSession(
        environment=environment,
        snapshot=snapshot,
        env=body.env_vars or {},
        metadata=own_metadata(body.metadata or {}, auto_resume=auto_resume),
        # It lives until its timeout, used or not. So it must never be idle before.
        lifetime_s=timeout_s,
        idle_timeout_s=timeout_s,
        on_idle=OnIdle.HIBERNATE if body.auto_pause else OnIdle.END,
        network=network_request(body.allow_internet_access, body.network),
        volumes=volume_uses(body.volume_mounts),
        idempotency_key=None if idempotency_key is None else _bounded(idempotency_key),
    )


def network_request(internet: bool | None, network: Network | None) -> EgressPolicy | None:
    """The policy that is asked for; None if none is."""
    if network is None:
        return egress_of(internet, None, None)
    for name, why in _NETWORK_UNSUPPORTED.items():
        if getattr(network, name):
            raise Unsupported(why)
    if network.allow_public_traffic:
        raise Unsupported(
            "network.allowPublicTraffic: ports are not open to everybody here. Leave it out, and expose "
            "single ports with a preview (docs/howto/previews.md)."
        )
    return egress_of(internet, network.allow_out, network.deny_out)


def check_memory(memory: bool | None, user_agent: str) -> None:
    """Refuse to keep a sandbox's memory, if the client asks for it.

    Earlier SDKs always send that they want it, whether their caller does or not.
    """
    version = _VERSION.search(user_agent)
    always_sent = version is not None and (int(version[1]), int(version[2])) < _MEMORY_IF_ASKED
    if memory and not always_sent:
        raise Unsupported(_NO_MEMORY)


async def _source(call: ControlCall, template: str) -> tuple[str | None, str | None]:
    """The environment that a template means, and the snapshot if it is one."""
    snapshot_id = snapshot_in(template)
    if snapshot_id is not None:
        # One that is in object storage only gets the default environment: nothing else is known of it yet.
        snapshot = await call.find_snapshot(snapshot_id)
        return None if snapshot is None else snapshot.environment, snapshot_id
    name = environment_in(template)
    known = [environment.name for environment in (await call.service.catalogue()).environments]
    if name not in known:
        hint = did_you_mean(name[:80], known)
        raise InvalidRequest(
            f"There is no template {template[:80]!r}.{hint} Templates are this server's environments: "
            f"{', '.join(known)}."
        )
    return name, None


def environment_in(template: str) -> str:
    """The environment that a template names, whether there is one or not."""
    name = without_tag(template)
    return CODE_ENVIRONMENT if name == CODE_TEMPLATE else name


def snapshot_in(template: str) -> str | None:
    """The snapshot's id; None if the template is none."""
    name = without_tag(template)
    return name if is_snapshot_id(name) else None


def without_tag(template: str) -> str:
    """Without the default tag after ``:``. There are no others."""
    name, colon, tag = template.rpartition(":")
    return name if colon and tag in ("default", "latest") else template


def _bounded(key: str) -> str:
    """E2B's keys may be longer than ours."""
    return key if len(key) <= MAX_IDEMPOTENCY_KEY else hashlib.sha256(key.encode()).hexdigest()

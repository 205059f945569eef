"""The bodies of E2B's REST API."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sandlot.api.e2b.bodies import Body

Seconds = Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600)]
Texts = Annotated[list[str], msgspec.Meta(max_length=500)]


class AutoResume(Body, frozen=True):
    enabled: bool = False


class Network(Body, frozen=True):
    allow_out: Texts | None = None
    deny_out: Texts | None = None
    allow_public_traffic: bool | None = None
    # What an egress policy cannot express.
    rules: dict[str, Any] | None = None
    egress_proxy: Any = None
    dns_servers: Texts | None = None
    mask_request_host: str | None = None
    https_ports: list[int] | None = None


class NetworkUpdate(Network, frozen=True):
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")


class VolumeMount(Body, frozen=True):
    name: Annotated[str, msgspec.Meta(max_length=200)]
    path: Annotated[str, msgspec.Meta(max_length=4096)]


class CreateSandbox(Body, frozen=True):
    """``secure`` comes from older SDKs: every sandbox has a token, whether it is asked for or not."""

    template_id: str = msgspec.field(name="templateID")
    timeout: Seconds | None = None
    auto_pause: bool = False
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = msgspec.field(default=None, name="allow_internet_access")
    network: Network | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: Annotated[list[VolumeMount], msgspec.Meta(max_length=16)] | None = None


class Connect(Body, frozen=True):
    """``autoPause`` comes from the SDKs' first versions."""

    timeout: Seconds | None = None
    memory: bool | None = None
    auto_pause: bool | None = None


class SetTimeout(Body, frozen=True):
    timeout: Seconds


class Pause(Body, frozen=True):
    memory: bool | None = None
    require_healthy_guest: bool | None = None


class TakeSnapshotBody(Body, frozen=True):
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    memory: bool | None = None


class Fork(Body, frozen=True):
    timeout: Seconds | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=20)] = 1


class SandboxBody(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A sandbox, for whoever is going to use it."""

    template_id: str = msgspec.field(name="templateID")
    sandbox_id: str = msgspec.field(name="sandboxID")
    client_id: str = msgspec.field(name="clientID")
    envd_version: str
    envd_access_token: str
    traffic_access_token: str
    domain: str | None = None


class Lifecycle(msgspec.Struct, rename="camel", frozen=True):
    auto_resume: bool
    on_timeout: str


class ListedSandbox(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A sandbox in a list; with the last fields, by itself."""

    template_id: str = msgspec.field(name="templateID")
    sandbox_id: str = msgspec.field(name="sandboxID")
    client_id: str = msgspec.field(name="clientID")
    started_at: str
    end_at: str
    cpu_count: int
    memory_mb: int = msgspec.field(name="memoryMB")
    disk_size_mb: int = msgspec.field(name="diskSizeMB")
    state: str
    envd_version: str
    metadata: dict[str, str]
    envd_access_token: str | None = None
    domain: str | None = None
    allow_internet_access: bool | None = None
    lifecycle: Lifecycle | None = None
    network: dict[str, Any] | None = None
    volume_mounts: list[VolumeMount] | None = None


class SnapshotBody(msgspec.Struct, frozen=True):
    snapshot_id: str = msgspec.field(name="snapshotID")
    names: list[str]


class NewVolume(Body, frozen=True):
    name: Annotated[str, msgspec.Meta(max_length=200)]


class VolumeBody(msgspec.Struct, frozen=True):
    volume_id: str = msgspec.field(name="volumeID")
    name: str
    token: str


class MetricBody(msgspec.Struct, rename="camel", frozen=True):
    timestamp: str
    timestamp_unix: int
    cpu_count: int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int

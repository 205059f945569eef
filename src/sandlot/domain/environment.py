"""An environment: a named recipe for sandboxes. Also what a reload changes, and unknown names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sandlot.domain.capacity.limits import DEFAULT_CEILINGS, Limits
from sandlot.domain.capacity.pool import PoolPolicy
from sandlot.domain.code.contexts import Language
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.network.policy import EgressPolicy
from sandlot.domain.network.variables import PROXY_PORT, REMOTE_PROXY_PORT
from sandlot.domain.policy.policy import CommandPolicy
from sandlot.domain.secrets.gateways import Gateway
from sandlot.domain.session import (
    DEFAULT_ENVIRONMENT,
    DEFAULT_IDLE_TIMEOUT_S,
    DEFAULT_LIFETIME_S,
    CreateSession,
)
from sandlot.domain.text.suggestions import closest_match, did_you_mean
from sandlot.domain.workspaces.setup import Setup
from sandlot.domain.workspaces.workspace import check_snapshot_id


class Tier(StrEnum):
    """How strongly a sandbox is isolated. A missing tier is an error, never replaced by a weaker one.

    runc: an ordinary container.
    runsc: under gVisor, which puts a kernel of its own between the sandbox and the machine.
    microvm: in a virtual machine of its own, on E2B's machines. The provider says so; no server checks it.
    """

    RUNC = "runc"
    RUNSC = "runsc"
    MICROVM = "microvm"


def proxy_port(tier: Tier) -> int:
    """Where programs in such a sandbox find the proxy, on 127.0.0.1."""
    return REMOTE_PROXY_PORT if tier is Tier.MICROVM else PROXY_PORT


class ProviderName(StrEnum):
    """What makes an environment's sandboxes.

    docker: this machine's Docker engine.
    e2b: E2B's cloud, or another server that speaks its API.
    """

    DOCKER = "docker"
    E2B = "e2b"


@dataclass(frozen=True, slots=True)
class Environment:
    """What its sandboxes are made from.

    New workspaces have the image's files, or what the script ``setup`` left, or the files of the snapshot
    ``seed``. At E2B, ``image`` is the name of a template.
    """

    name: str
    image: str
    tier: Tier = Tier.RUNC
    limits: Limits = field(default_factory=Limits)
    setup: Setup | None = None
    seed: str | None = None
    provider: ProviderName = ProviderName.DOCKER

    @property
    def keeps_files(self) -> bool:
        """Whether the files of its sessions outlive their sandboxes."""
        return self.provider is ProviderName.DOCKER

    def __post_init__(self) -> None:
        if self.setup is not None and self.seed is not None:
            raise InvalidRequest(
                "setup and seed cannot both be given: new workspaces start from one of them."
            )
        if self.seed is not None:
            check_snapshot_id(self.seed)
        if (self.provider is ProviderName.E2B) != (self.tier is Tier.MICROVM):
            has = "microvm" if self.provider is ProviderName.E2B else "runc and runsc"
            raise InvalidRequest(
                f"Environment {self.name}: provider {self.provider} has no tier {self.tier}. It has {has}."
            )
        if not self.keeps_files and (self.setup is not None or self.seed is not None):
            raise InvalidRequest(
                f"Environment {self.name}: setup and seed need snapshots, which the provider "
                f"{self.provider} does not have. Put the files into the template."
            )


@dataclass(frozen=True, slots=True)
class Recipe:
    """An environment as the registry declares it: how to make its sandboxes and keep its sessions.

    A timeout of None means never. ``ceilings``: the most that a session may ask for instead of the
    environment's own limits. ``policy``: what commands must pass before they run. ``record``: whether all
    its sessions are recorded. ``network``: what its sandboxes may connect to. ``gateways``: upstreams to
    which the worker adds secrets. ``inject``: secrets that it adds by reading TLS. ``artifacts``: the files
    that are kept when a session ends. ``contexts``: the languages whose kernels run already in its warm
    sandboxes.
    """

    environment: Environment
    description: str = ""
    languages: tuple[str, ...] = ()
    ceilings: Limits = DEFAULT_CEILINGS
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    idle_timeout_s: float | None = DEFAULT_IDLE_TIMEOUT_S
    lifetime_s: float | None = DEFAULT_LIFETIME_S
    policy: CommandPolicy | None = None
    record: bool = False
    network: EgressPolicy = field(default_factory=EgressPolicy)
    gateways: tuple[Gateway, ...] = ()
    inject: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    contexts: tuple[Language, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvironmentChanges:
    """What a new reading of the registry did to the environments of a server, by name.

    added: environments that the server did not have.
    changed: environments with another recipe, or whose image was rebuilt under the same name.
    removed: environments that the server had.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerReload:
    """One server that was told to read its registry again.

    server: its id.
    changes: what that changed.
    problem: why it still has its old environments; null if it has the new ones.
    """

    server: str
    changes: EnvironmentChanges = EnvironmentChanges()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Reload:
    """The outcome of a reload.

    servers: the server that was asked, and in a fleet all workers.
    """

    servers: tuple[ServerReload, ...]


def environment_changes(
    before: Mapping[str, Recipe], after: Mapping[str, Recipe], rebuilt_images: Collection[str] = ()
) -> EnvironmentChanges:
    def differs(name: str) -> bool:
        return before[name] != after[name] or after[name].environment.image in rebuilt_images

    return EnvironmentChanges(
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(name for name in after.keys() & before.keys() if differs(name))),
        removed=tuple(sorted(before.keys() - after.keys())),
    )


def provider_named(name: str) -> ProviderName:
    if name not in ProviderName.__members__.values():
        hint = did_you_mean(name[:80], [provider.value for provider in ProviderName])
        raise InvalidRequest(
            f"Unknown provider {name!r:.80}.{hint} Providers are: {', '.join(ProviderName)}."
        )
    return ProviderName(name)


def with_provider(request: CreateSession, known: Mapping[str, ProviderName]) -> CreateSession:
    """The request with the environment that its provider means. ``known``: the server's environments.

    Without a name, that is the default environment if the provider is right, and else its first one. A name
    of another provider is an error: where a sandbox runs is not for the server to choose.
    """
    wanted, name = request.provider, request.environment
    if wanted is None or (name is not None and name not in known):
        return request  # an unknown environment has an error of its own
    provider_named(wanted)
    fitting = sorted(found for found, provider in known.items() if provider == wanted)
    if name is None and fitting:
        name = DEFAULT_ENVIRONMENT if DEFAULT_ENVIRONMENT in fitting else fitting[0]
    if name not in fitting:
        what = f"Environment {name} has another provider than {wanted}. " if name else ""
        there = f"Those of {wanted} are: {', '.join(fitting)}."
        if not fitting:
            there = f"This server has no environment of {wanted}. `sandlot env list` shows what it has."
        raise InvalidRequest(f"{what}{there}")
    return replace(request, environment=name, provider=None)


def unknown_environment_error(name: str, known: Mapping[str, Tier]) -> InvalidRequest:
    """The error for an environment that this server does not have. ``known``: its environments, by
    name.

    An unknown name never falls back to the default: the caller may have wanted stronger isolation.
    """
    of_tier = sorted(known_name for known_name, tier in known.items() if tier == name.lower())
    hint = ""
    if of_tier:
        hint = f" {name.lower()} is the tier of {', '.join(of_tier)}."
    elif (match := closest_match(name, known)) is not None:
        hint = f" Did you mean {match!r}?"
    return InvalidRequest(f"Unknown environment {name!r:.80}.{hint} Available: {', '.join(sorted(known))}.")

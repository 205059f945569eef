"""Builds a worker from settings."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sandlot.config.data_folder import provider_dir
from sandlot.config.registry.built import built_folder
from sandlot.config.registry.loading import load_registry
from sandlot.config.settings import ServerSettings
from sandlot.domain.capacity.machine import Overcommit
from sandlot.domain.environment import ProviderName, Recipe
from sandlot.domain.errors import EngineProblem, InvalidRequest, SandlotError, StorageFull
from sandlot.domain.metrics.figures import Figures
from sandlot.domain.metrics.table import LINK_REDIALS
from sandlot.domain.policy.tenant_policies import PolicyOf, TenantPolicies, no_policy
from sandlot.domain.workspaces.workspace import StoreKind
from sandlot.providers.base import Provider
from sandlot.providers.docker import DockerProvider
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.host.users import UserRange
from sandlot.providers.docker.workspaces.choosing import choose_store
from sandlot.providers.side_by_side import Providers
from sandlot.wiring.brokers import build_brokers, build_vault
from sandlot.wiring.machine import this_machine
from sandlot.wiring.object_storage import build_object_storage
from sandlot.worker.artifacts.options import ArtifactOptions
from sandlot.worker.history.options import HistoryOptions
from sandlot.worker.host import WorkerHost
from sandlot.worker.network.options import NetworkOptions, ProxyOptions
from sandlot.worker.options import WorkerOptions
from sandlot.worker.recordings.options import RecordingOptions
from sandlot.worker.store.database import owner_of
from sandlot.worker.volumes.options import VolumeOptions
from sandlot.worker.workspaces.options import WorkspaceOptions

NO_SDK = "Environments with provider: e2b need E2B's SDK. In your clone, run: pip install '.[e2b]'"
# Seconds to wait for the engine to say where it stores its sandboxes.
ENGINE_WITHIN_S = 5.0


def named_by_folder(settings: ServerSettings) -> ServerSettings:
    """Name an unnamed worker after its data folder.

    The name marks its containers, and a worker removes marked containers that it does not know. So two
    workers on one engine, such as those of two users, must never have the same name by default.
    """
    if "worker_id" in settings.model_fields_set:
        return settings
    folder = settings.data_dir.absolute()
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    worker_id = owner_of(database_in(folder)) or f"{settings.worker_id}-{digest}"
    return settings.model_copy(update={"worker_id": worker_id})


def database_in(data_dir: Path) -> Path:
    return data_dir / "worker.db"


async def build_worker(
    settings: ServerSettings,
    *,
    policy_of: PolicyOf = no_policy,
    figures: Figures | None = None,
    **extra: Any,
) -> WorkerHost:
    """Return a worker that is not open yet. ``figures``: where it counts."""
    return WorkerHost(**await worker_parts(settings, policy_of, figures), **extra)


async def worker_parts(
    settings: ServerSettings, policy_of: PolicyOf = no_policy, figures: Figures | None = None
) -> dict[str, Any]:
    figures = figures or Figures()
    data_dir = settings.data_dir.absolute()
    registry = load_registry(
        settings.registry_dir, defaults=settings.recipe_defaults, built=built_folder(data_dir)
    )
    engine = Engine(settings.docker_host)
    users = None if settings.sandbox_users is None else UserRange.parse(settings.sandbox_users)
    vault = build_vault(settings)
    objects = build_object_storage(settings)
    try:
        workspaces = await choose_store(
            settings.workspace_store,
            settings.storage_dir,
            engine=engine,
            owner=settings.worker_id,
            quota_bytes=settings.workspace_quota,
            data_dir=data_dir,
            users=users,
            min_free_bytes=settings.min_free_bytes,
        )
        provider = with_e2b(
            DockerProvider(
                owner=settings.worker_id,
                data_dir=provider_dir(data_dir),
                engine=engine,
                workspaces=workspaces,
                users=users,
                on_redial=partial(figures.count, LINK_REDIALS),
            ),
            settings,
            data_dir,
            registry.recipes.values(),
        )
    except BaseException:
        await engine.close()
        raise
    return {
        "provider": provider,
        "figures": figures,
        "database": database_in(data_dir),
        "recipes": registry.recipes,
        "catalogue": registry.catalogue,
        "tenant_policies": TenantPolicies(dict(registry.policies), policy_of),
        "options": replace(
            worker_options(settings, await _engine_folder(engine), vault.masked),
            storage_folder=settings.storage_dir if workspaces.abilities.kind is StoreKind.BTRFS else None,
        ),
        "brokers": build_brokers(settings, vault),
        "objects": objects,
    }


def with_e2b(here: Provider, settings: ServerSettings, data_dir: Path, recipes: Iterable[Recipe]) -> Provider:
    key = settings.e2b_key
    if key is None:
        check_no_e2b(recipes)
        return here
    try:
        from sandlot.providers.e2b import E2BAccount, E2BProvider
    except ModuleNotFoundError as error:
        raise InvalidRequest(NO_SDK) from error
    account = E2BAccount(
        api_key=key,
        api_url=settings.e2b_api_url,
        sandbox_url=settings.e2b_sandbox_url,
        timeout_s=settings.e2b_timeout_s,
        user=settings.e2b_user,
    )
    remote = E2BProvider(owner=settings.worker_id, data_dir=data_dir / "e2b", account=account)
    return Providers(here, remote)


def check_no_e2b(recipes: Iterable[Recipe]) -> None:
    """Raises ``InvalidRequest`` if a worker without a key has an environment that needs one."""
    for recipe in recipes:
        if recipe.environment.provider is ProviderName.E2B:
            raise InvalidRequest(
                f"Environment {recipe.environment.name} has the provider e2b, but there is no key for it. "
                "Set SANDLOT_E2B_API_KEY or SANDLOT_E2B_API_KEY_FILE, or remove the environment."
            )


@contextlib.contextmanager
def starting(settings: ServerSettings) -> Iterator[None]:
    """Wrap the start of a worker, so that disk errors name the folder. An ``OSError`` does not."""
    try:
        yield
    except (OSError, StorageFull) as error:
        folder = settings.data_dir.absolute()
        what = error.message if isinstance(error, SandlotError) else error.strerror or str(error)
        what = what.removesuffix(".")
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise EngineProblem(
                f"The worker cannot start in {folder}: {what}. Make the folder writable for this user, or "
                "choose another with SANDLOT_DATA_DIR."
            ) from error
        raise StorageFull(
            f"The worker cannot start, because the disk of {folder} is full: {what}. Free some space "
            "there, or choose another folder with SANDLOT_DATA_DIR."
        ) from error


async def _engine_folder(engine: Engine) -> Path | None:
    """Return where the engine stores its sandboxes.

    Returns None if the engine does not answer. The start of the worker reports that error.
    """
    try:
        async with asyncio.timeout(ENGINE_WITHIN_S):
            root = str((await engine.info()).get("DockerRootDir") or "")
    except (SandlotError, TimeoutError):
        root = ""
    return Path(root) if root else None


def worker_options(
    settings: ServerSettings, engine_folder: Path | None = None, masked: Collection[str] = ()
) -> WorkerOptions:
    """``masked``: values that no history and no recording shows."""
    return WorkerOptions(
        worker_id=settings.worker_id,
        create_concurrency=settings.create_concurrency,
        queue_timeout_s=settings.queue_timeout_s,
        max_sessions=settings.max_sessions,
        engine_folder=engine_folder,
        min_free_bytes=settings.min_free_bytes,
        machine=this_machine(),
        overcommit=Overcommit(settings.overcommit_memory, settings.overcommit_cpus),
        default_exec_timeout_s=settings.exec_timeout_s,
        max_exec_timeout_s=settings.max_exec_timeout_s,
        exec_grace_s=settings.exec_grace_s,
        max_execs=settings.max_execs,
        allow_never=settings.allow_never,
        orphan_grace_s=settings.orphan_grace_s,
        drain_timeout_s=settings.drain_timeout_s,
        history=history_options(settings, masked),
        recordings=recording_options(settings, masked),
        network=NetworkOptions(
            ceiling=settings.egress_ceiling_policy, proxy=ProxyOptions(allowed=settings.egress_networks)
        ),
        workspaces=workspace_options(settings),
        artifacts=artifact_options(settings),
        volumes=VolumeOptions(
            quota_bytes=settings.volume_quota,
            max_count=settings.volumes_per_tenant,
            max_tenant_bytes=settings.volume_bytes_per_tenant,
        ),
    )


def history_options(settings: ServerSettings, masked: Collection[str] = ()) -> HistoryOptions:
    return HistoryOptions(
        enabled=settings.history,
        max_age_s=settings.history_max_age_s,
        max_bytes=settings.history_max_bytes,
        commands=settings.history_commands,
        export=settings.history_export,
        export_max_bytes=settings.history_export_max_bytes,
        export_files=settings.history_export_files,
        secrets=masked,
    )


def workspace_options(settings: ServerSettings) -> WorkspaceOptions:
    return WorkspaceOptions(
        quota_bytes=settings.workspace_quota,
        max_snapshots=settings.snapshots_per_session,
        max_age_s=settings.snapshot_max_age,
        on_idle=settings.on_idle,
        hibernation_s=settings.hibernated_max_age,
        snapshot_every_s=settings.snapshot_every,
    )


def artifact_options(settings: ServerSettings) -> ArtifactOptions:
    return ArtifactOptions(
        max_file_bytes=settings.artifact_max_bytes,
        max_session_bytes=settings.artifact_max_session_bytes,
        max_tenant_bytes=settings.artifact_max_tenant_bytes,
        max_count=settings.artifact_max_count,
        max_age_s=settings.artifact_max_age,
    )


def recording_options(settings: ServerSettings, masked: Collection[str] = ()) -> RecordingOptions:
    return RecordingOptions(
        enabled=settings.recordings,
        max_session_bytes=settings.recordings_max_session_bytes,
        max_bytes=settings.recordings_max_bytes,
        max_age_s=settings.recordings_max_age_s,
        commands=settings.history_commands,
        secrets=masked,
    )

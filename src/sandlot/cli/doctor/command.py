"""``doctor``: examines this machine and reports whether it can serve sandboxes.

It changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import getpass
import json
import os
import shutil
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.connection import server_module
from sandlot.domain.errors import EngineProblem, ImageMissing, InvalidRequest, NotFound, SandlotError

if TYPE_CHECKING:
    from sandlot.cli.doctor.checks import Check
    from sandlot.config.registry.loading import Registry
    from sandlot.config.settings import ServerSettings
    from sandlot.providers.docker.engine import Engine

_HEALTH_TIMEOUT_S = 2.0
_MAX_HEALTH_BYTES = 64 * 1024


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check that this machine can run sandboxes.

    Says how to fix what is wrong. Changes nothing.
    """
    found = asyncio.run(examine())
    failed = any(check.status == "fail" for check in found)
    if as_json:
        from sandlot.cli.terminal.display import print_json

        print_json({"ok": not failed, "checks": found})
    else:
        _print(found)
    raise typer.Exit(1 if failed else 0)


def _print(found: list[Check]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    for check in found:
        line = Text.assemble((f"{check.status:<4}", styles[check.status]), f"  {check.name}: {check.message}")
        console.print(line)
        if check.fix:
            console.print(Text(f"      {check.fix}"))


async def examine() -> list[Check]:
    """Run all checks. Invalid settings or an invalid registry end them early."""
    from sandlot.cli.doctor import checks

    try:
        settings = _settings()
    except InvalidRequest as error:
        return [checks.fail("settings", error.message, "See docs/reference/settings.md.")]
    try:
        registry = server_module("sandlot.config.registry.loading").load_registry(
            settings.registry_dir, defaults=settings.recipe_defaults
        )
    except InvalidRequest as error:
        folder = settings.registry_dir
        check = "sandlot doctor" if folder is None else f"sandlot registry check {folder}"
        return [checks.fail("registry", error.message, f"Fix it, then run `{check}`.")]
    found = [
        checks.ok("settings", "valid"),
        checks.ok("registry", f"{len(registry.recipes)} environments: {', '.join(registry.recipes)}"),
        _check_agent(),
        checks.check_data_dir(str(settings.data_dir), _data_dir_problem(settings.data_dir)),
        _check_port(settings.host, settings.port),
    ]
    return found + await _examine_engine(settings, registry)


def _settings() -> ServerSettings:
    """Read the settings as the server on this machine does: a fleet's worker needs no API key."""
    settings: ServerSettings
    if any(os.environ.get(f"SANDLOT_FLEET_PUBLIC_KEYS{suffix}") for suffix in ("", "_FILE")):
        settings = server_module("sandlot.config.reading").member_settings()
    else:
        settings = server_module("sandlot.config.reading").server_settings()
    return settings


async def _check_workspaces(settings: ServerSettings, engine: Engine) -> list[Check]:
    from sandlot.cli.doctor import checks
    from sandlot.providers.docker.workspaces import choosing
    from sandlot.providers.docker.workspaces.storage.status import examine

    findings = await choosing.look_with(engine, settings.storage_dir)
    used_before = choosing.StoreMemory(settings.data_dir.absolute()).folder
    try:
        choice = choosing.decide(settings.workspace_store, findings, used_before)
    except EngineProblem as error:
        what, _, fix = error.message.partition(". ")
        return [checks.fail("workspaces", what, fix)]
    storage = examine(findings.folder)
    return checks.check_workspaces(
        choice.kind, choice.why, choice.fix, storage.problems, storage.free, settings.workspace_quota
    )


def _check_users(settings: ServerSettings, info: Mapping[str, Any]) -> Check:
    from sandlot.cli.doctor import checks
    from sandlot.providers.docker.host import users

    if users.uses_user_namespaces(info):
        return checks.ok("users", "Docker maps the users of containers to other users on this machine")
    chosen = users.DEFAULT_USERS
    if settings.sandbox_users is not None:
        chosen = users.UserRange.parse(settings.sandbox_users)
    return checks.check_users(str(chosen), users.find_overlap(chosen))


async def _examine_engine(settings: ServerSettings, registry: Registry) -> list[Check]:
    from sandlot.cli.doctor import checks
    from sandlot.domain.capacity.machine import Overcommit
    from sandlot.domain.session import DEFAULT_ENVIRONMENT
    from sandlot.providers.docker import engine_requirements
    from sandlot.providers.docker.engine import Engine
    from sandlot.wiring.machine import this_machine

    engine = Engine(settings.docker_host)
    try:
        found = [checks.check_local(engine.host)]
        try:
            version, info = await engine.version(), await engine.info()
        except SandlotError as error:
            denied = _is_denied(engine.host)
            access = checks.check_access(engine.host, error.message, denied=denied, user=getpass.getuser())
            return [*found, access]
        found.append(checks.check_access(engine.host, None, denied=False, user=getpass.getuser()))
        runsc = await engine_requirements.runsc_version(info)
        found += checks.check_versions(version, engine_requirements.warnings(version, runsc))
        found += checks.check_runtimes(info, [r.environment.tier for r in registry.recipes.values()])
        found += checks.check_kernel(info)
        root = str(info.get("DockerRootDir") or "/var/lib/docker")
        found.append(checks.check_disk(root, _free(root)))
        recipe = registry.recipes[DEFAULT_ENVIRONMENT]
        overcommit = Overcommit(settings.overcommit_memory, settings.overcommit_cpus)
        found.append(checks.check_capacity(this_machine(), overcommit, recipe, settings.max_sessions))
        found.append(_check_users(settings, info))
        found += await _check_workspaces(settings, engine)
        images = sorted({r.environment.image for r in registry.recipes.values()})
        present = {image: await _image_id(engine, image) for image in images}
        return found + checks.check_images(present, registry.recipes)
    finally:
        await engine.close()


async def _image_id(engine: Engine, image: str) -> str | None:
    """Return an image's id; None if it is missing or its digest is not the environment's."""
    from sandlot.providers.docker.images.pinned import find_image

    try:
        return str((await find_image(engine, image))["Id"])
    except (ImageMissing, NotFound):
        return None


def _is_denied(host: str) -> bool:
    path = host.removeprefix("unix://")
    return path != host and os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK)


def _check_agent() -> Check:
    from sandlot.cli.doctor import checks
    from sandlot.providers.docker.agent_setup import packaged_agent

    agent = packaged_agent()
    if agent.exists():
        return checks.ok("agent", agent.name)
    fix = "Reinstall Sandlot. In a source checkout, run: make agent"
    return checks.fail("agent", f"{agent.name} is missing from this installation", fix)


def _data_dir_problem(folder: Path) -> str | None:
    from sandlot.config.data_folder import provider_dir
    from sandlot.providers.docker.host.folder import HostFolder

    try:
        HostFolder(provider_dir(folder))
    except InvalidRequest as error:
        return error.message
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        return f"{nearest} is not a folder"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{getpass.getuser()} cannot write to {nearest}"
    return None


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _check_port(host: str, port: int) -> Check:
    from sandlot.cli.doctor import checks

    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno != errno.EADDRINUSE:
            fix = "Set SANDLOT_HOST and SANDLOT_PORT to an address and port that you are allowed to use."
            return checks.fail("port", f"cannot listen on {address}: {error.strerror}", fix)
        return checks.check_port(address, free=False, worker=_worker_at(address))
    return checks.check_port(address, free=True, worker=None)


def _worker_at(address: str) -> str | None:
    """Return the name of the Sandlot server that answers at this address, if any."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=_HEALTH_TIMEOUT_S) as answer:
            return str(json.loads(answer.read(_MAX_HEALTH_BYTES))["worker_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

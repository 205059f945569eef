"""``env list|show|reload``, ``registry list|check``: what a server offers; checks a registry folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.connection import server_module, with_client
from sandlot.cli.operators.administration import with_administrator

if TYPE_CHECKING:
    from sandlot.domain.capacity.readiness import Readiness
    from sandlot.domain.service import Catalogue, EnvironmentInfo

env_app = typer.Typer(
    help="Show and reload the environments of a server.", no_args_is_help=True, rich_markup_mode=None
)
registry_app = typer.Typer(
    help="Show or check a registry.\n\nA registry contains environments, tools, prompts and agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@env_app.command("list")
def list_environments(ctx: typer.Context, as_json: Json = False) -> None:
    """List the environments that the server offers.

    STATE says whether sandboxes can be made from each; a key needs the scope metrics:read to see it.
    `sandlot env show` also says why not.
    """
    from sandlot.cli.terminal import display
    from sandlot.domain.capacity.readiness import summarize

    environments = with_client(ctx, lambda client: client.catalogue()).environments
    if as_json:
        display.print_json(environments)
        return
    display.print_table(
        ("NAME", "STATE", "TIER", "IMAGE", "MEMORY", "CPUS", "CONTEXTS", "DESCRIPTION"),
        [
            (
                e.name,
                summarize(e.readiness),
                e.tier,
                e.image,
                display.size(e.limits.memory_bytes),
                f"{e.limits.cpus:g}",
                ", ".join(e.contexts) or "-",
                e.description,
            )
            for e in environments
        ],
    )


@env_app.command("show")
def show_environment(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The environment.")],
    as_json: Json = False,
) -> None:
    """Show one environment."""
    from sandlot.cli.terminal import display

    found = environment_of(with_client(ctx, lambda client: client.catalogue()), name)
    if as_json:
        display.print_json(found)
        return
    limits = found.limits
    display.print_fields(
        [
            ("environment", found.name),
            ("description", found.description),
            ("image", found.image),
            ("tier", found.tier),
            ("languages", ", ".join(found.languages) or "-"),
            ("contexts", ", ".join(found.contexts) or "-"),
            ("memory", display.size(limits.memory_bytes)),
            ("cpus", f"{limits.cpus:g}"),
            ("processes", str(limits.pids)),
            ("/tmp", display.size(limits.tmp_bytes)),  # noqa: S108 (a label)
            ("shared memory", display.size(limits.shm_bytes)),
            ("open files", str(limits.open_files)),
            ("idle timeout", display.duration(found.idle_timeout_s)),
            ("lifetime", display.duration(found.lifetime_s)),
            ("network", ", ".join(found.network.allow) or "none"),
            *((f"state on {one.server}", _readiness(one)) for one in found.readiness),
        ]
    )


def _readiness(server: Readiness) -> str:
    from sandlot.cli.terminal import display

    since = "" if server.since is None else f" since {display.timestamp(server.since)}"
    warm = f", {server.warm} warm" if server.warm else ""
    return f"{server.state}{since}{warm}{f': {server.reason}' if server.reason else ''}"


@env_app.command("reload")
def reload_environments(ctx: typer.Context, as_json: Json = False) -> None:
    """Make a running server read its registry again.

    Sessions go on. If a file has an error, the server keeps what it has. A coordinator tells all workers of
    its fleet. Exits with 1 if one of them keeps its old environments.
    """
    from sandlot.cli.terminal import display

    reload = with_administrator(ctx, lambda server: server.reload_environments())
    if as_json:
        display.print_json(reload)
    else:
        display.print_table(
            ("SERVER", "ADDED", "CHANGED", "REMOVED", "PROBLEM"),
            [
                (
                    server.server,
                    ", ".join(server.changes.added) or "-",
                    ", ".join(server.changes.changed) or "-",
                    ", ".join(server.changes.removed) or "-",
                    server.problem or "-",
                )
                for server in reload.servers
            ],
        )
    if any(server.problem is not None for server in reload.servers):
        raise typer.Exit(1)


def environment_of(catalogue: Catalogue, name: str) -> EnvironmentInfo:
    from sandlot.domain.environment import unknown_environment_error

    found = next((known for known in catalogue.environments if known.name == name), None)
    if found is None:
        raise unknown_environment_error(name, {known.name: known.tier for known in catalogue.environments})
    return found


@registry_app.command("list")
def list_registry(ctx: typer.Context, as_json: Json = False) -> None:
    """List everything in the server's registry."""
    _print_catalogue(with_client(ctx, lambda client: client.catalogue()), as_json)


@registry_app.command("check")
def check_registry(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Your registry folder.")],
    as_json: Json = False,
) -> None:
    """Check a registry folder.

    Reports what is wrong with it.
    """
    registry = server_module("sandlot.config.registry.loading")
    # The settings of a fleet member need no API key, and this command serves nothing.
    settings = server_module("sandlot.config.reading").member_settings()
    _print_catalogue(registry.load_registry(folder, defaults=settings.recipe_defaults).catalogue, as_json)


def _print_catalogue(catalogue: Catalogue, as_json: bool) -> None:
    from sandlot.cli.terminal import display

    if as_json:
        display.print_json(catalogue)
        return
    rows = [("environment", e.name, e.description) for e in catalogue.environments]
    rows += [
        (e.kind, e.name, e.description) for e in (*catalogue.tools, *catalogue.prompts, *catalogue.agents)
    ]
    display.print_table(("KIND", "NAME", "DESCRIPTION"), rows)

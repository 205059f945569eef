"""``secrets set|list|remove``: the secrets of the worker on this machine.

They change the worker's file and speak to no server, so that no value crosses a network.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from sandlot.cli.connection import server_module
from sandlot.cli.serve import DataDir
from sandlot.domain.errors import Conflict, InvalidRequest, NotFound
from sandlot.domain.text.suggestions import did_you_mean

if TYPE_CHECKING:
    from sandlot.domain.secrets.secret import Secret
    from sandlot.worker.secrets.store import SecretStore

T = TypeVar("T")
BEARER: Final = "Authorization: Bearer {secret}"

app = typer.Typer(
    help="Manage secrets that sandboxes use but never see.\n\nRun these commands on the worker's "
    "machine, as the worker's user. In a fleet, run them for each worker: secrets are shared with nobody.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="A host that may get it, on port 443 unless you write HOST:PORT. Can be repeated.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="FIELD",
            help="Where it goes: a header, or a field of the query such as '?key={secret}'.",
            show_default=BEARER,
        ),
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant",
            metavar="TENANT",
            help="Whose sessions may use it; '*' for all. Can be repeated.",
            show_default="default",
        ),
    ] = None,
    environments: Annotated[
        list[str] | None,
        typer.Option(
            "--environment",
            metavar="ENVIRONMENT",
            help="In which environments; '*' for all. Can be repeated.",
            show_default="*",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Set a secret, by prompt or from stdin.

    For a secret that exists, what you do not name stays as it is. So `sandlot secrets set NAME` alone
    replaces the value.
    """
    from sandlot.cli.terminal import display

    value = _read_value(name)

    async def work(store: SecretStore) -> Secret:
        known = {secret.name: secret for secret in await store.all()}
        secret = _changed(known.get(name), name, value, hosts, form, tenants, environments)
        await store.set(secret)
        return secret

    secret = _with_store(data_dir, work)
    display.note(
        f"Secret {secret.name} is set in {_folder(data_dir)}. It goes to {', '.join(secret.hosts)} as "
        f"{str(secret.placement)!r}. The worker of this folder applies it within a second."
    )


@app.command("list")
def list_secrets(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List secrets and their rules, without values."""
    from sandlot.cli.terminal import display

    secrets = _with_store(data_dir, lambda store: store.all())
    if as_json:
        display.print_json(
            [
                {
                    "name": secret.name,
                    "hosts": secret.hosts,
                    "as": str(secret.placement),
                    "tenants": secret.tenants,
                    "environments": secret.environments,
                }
                for secret in secrets
            ]
        )
        return
    display.print_table(
        ("NAME", "HOSTS", "AS", "TENANTS", "ENVIRONMENTS"),
        [
            (
                secret.name,
                " ".join(secret.hosts),
                str(secret.placement),
                " ".join(secret.tenants),
                " ".join(secret.environments),
            )
            for secret in secrets
        ],
        unwrapped="NAME",
    )


@app.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The secrets' names.")],
    data_dir: DataDir = None,
) -> None:
    """Remove secrets. Sandboxes can no longer use them."""

    async def work(store: SecretStore) -> None:
        known = [secret.name for secret in await store.all()]
        for name in names:
            if not await store.remove(name):
                raise NotFound(f"There is no secret {name!r:.80}.{did_you_mean(name[:80], known)}")
            print(f"{name} is removed")

    _with_store(data_dir, work)


def _read_value(name: str) -> str:
    """Never an argument of the command: others on the machine see those, and shells keep them."""
    from sandlot.domain.secrets.secret import MAX_VALUE_CHARS

    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"Value of {name}: ")
    text = sys.stdin.read(MAX_VALUE_CHARS + 2)
    return text.removesuffix("\n").removesuffix("\r")


def _changed(
    known: Secret | None,
    name: str,
    value: str,
    hosts: list[str] | None,
    form: str | None,
    tenants: list[str] | None,
    environments: list[str] | None,
) -> Secret:
    from sandlot.domain.secrets.placement import parse_placement
    from sandlot.domain.secrets.secret import Secret

    if known is None:
        if not hosts:
            raise InvalidRequest(f"Name the hosts that may get {name!r:.80}: --host api.example.com.")
        known = Secret(name, value, tuple(hosts), parse_placement(form or BEARER))
    return replace(
        known,
        value=value,
        hosts=tuple(hosts) if hosts else known.hosts,
        placement=parse_placement(form) if form else known.placement,
        tenants=tuple(tenants) if tenants else known.tenants,
        environments=tuple(environments) if environments else known.environments,
    )


def _with_store(data_dir: Path | None, work: Callable[[SecretStore], Awaitable[T]]) -> T:
    folder = _folder(data_dir)
    if folder.exists() and folder.stat().st_uid != os.geteuid():
        raise Conflict(
            f"{folder} belongs to another user, who must be able to read its secrets. Run this command as "
            "that user, or choose another folder with --data-dir."
        )
    stores = server_module("sandlot.worker.secrets.store")

    async def run() -> T:
        store: SecretStore = stores.SecretStore(folder)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _folder(chosen: Path | None) -> Path:
    from sandlot.config.data_folder import data_dir

    return data_dir() if chosen is None else chosen.expanduser().absolute()

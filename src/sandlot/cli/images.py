"""``images build``: the shipped sandbox images, built by this machine's own engine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Sandbox images.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """A group although it has one command: `sandlot images build`."""


@app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Which; all of them by default.")] = None,
    repository: Annotated[str, typer.Option(help="What the images' names begin with.")] = "sandlot",
) -> None:
    """Build the shipped images; docker shows how far it is."""
    from sandlot.cli.display import note
    from sandlot.config.packaged import packaged_folder
    from sandlot.domain.errors import EngineProblem

    found = {path.parent.name: path.parent for path in sorted(packaged_folder("images").glob("*/Dockerfile"))}
    wanted = names or list(found)
    if unknown := [name for name in wanted if name not in found]:
        raise typer.BadParameter(f"there is no image {unknown[0]}; there are {', '.join(found)}")
    for number, name in enumerate(wanted, start=1):
        tag = f"{repository}/{name}"
        note(f"building {tag} ({number} of {len(wanted)})")
        command = [docker_command(), "build", "--tag", tag, str(found[name])]
        try:
            code = subprocess.run(command, check=False).returncode
        except FileNotFoundError as error:
            raise EngineProblem("the docker command is not installed, and a build needs it") from error
        if code != 0:
            raise EngineProblem(f"docker could not build {tag}; what it printed above says why")


def docker_command() -> str:
    # Where a second, older client stands first on the PATH, the engine's own package is the one that fits it.
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"

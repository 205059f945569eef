"""``images build``: builds the shipped sandbox images with this machine's engine."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Build sandbox images.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """A group although it has one command: `sandlot images build`."""


@app.command()
def build(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Images to build; all by default.")
    ] = None,
    repository: Annotated[
        str, typer.Option(metavar="PREFIX", help="Prefix of the image names, as in sandlot/base.")
    ] = "sandlot",
) -> None:
    """Build the shipped images with Docker."""
    from sandlot.cli.terminal.display import duration, note
    from sandlot.config.packaged import packaged_folder
    from sandlot.domain.errors import EngineProblem

    found = {path.parent.name: path.parent for path in sorted(packaged_folder("images").glob("*/Dockerfile"))}
    wanted = names or list(found)
    if unknown := [name for name in wanted if name not in found]:
        raise typer.BadParameter(f"Unknown image {unknown[0]}. Available: {', '.join(found)}.")
    for number, name in enumerate(wanted, start=1):
        tag = f"{repository}/{name}"
        note(f"Building {tag} ({number} of {len(wanted)}).")
        began = time.monotonic()
        command = [docker_command(), "build", "--tag", tag, str(found[name])]
        try:
            code = subprocess.run(command, check=False).returncode
        except FileNotFoundError as error:
            raise EngineProblem(
                "Building images needs the docker command, which is not installed. Install it: "
                "https://docs.docker.com/engine/install/"
            ) from error
        if code != 0:
            raise EngineProblem(f"docker could not build {tag}. See its output above.")
        note(f"Built {tag} in {duration(time.monotonic() - began)}.")


def docker_command() -> str:
    # An older client may come first on the PATH. Prefer the one from the engine's own package.
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"

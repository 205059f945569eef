"""``images build``: builds the shipped sandbox images with this machine's engine."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Annotated

import typer

BASE = "base"
# What the environments need that every server is used with. The others take minutes and a gigabyte.
DEFAULT_IMAGES = (BASE, "slim")
# Those that are built on more than base.
BUILT_ON = {"code": (BASE, "data-science")}

app = typer.Typer(help="Build sandbox images.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """A group although it has one command: `sandlot images build`."""


@app.command()
def build(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Images to build: base, slim, python, data-science, code or node. Default: base and slim.",
        ),
    ] = None,
    repository: Annotated[
        str, typer.Option(metavar="PREFIX", help="Prefix of the image names, as in sandlot/base.")
    ] = "sandlot",
) -> None:
    """Build the shipped images with Docker.

    The others are built on base, and code on data-science; these are built first. If SSL_CERT_FILE is set,
    its authorities are trusted while a build downloads from PyPI or npm.
    """
    from sandlot.cli.terminal.display import duration, note
    from sandlot.config.packaged import packaged_folder
    from sandlot.domain.text.suggestions import did_you_mean

    found = {path.parent.name: path.parent for path in sorted(packaged_folder("images").glob("*/Dockerfile"))}
    wanted = names or list(DEFAULT_IMAGES)
    if unknown := [name for name in wanted if name not in found]:
        hint = did_you_mean(unknown[0], found)
        raise typer.BadParameter(f"Unknown image {unknown[0]}.{hint} Available: {', '.join(found)}.")
    first = [start for name in wanted for start in _starts_of(name)]
    wanted = list(dict.fromkeys([*first, *wanted]))
    for number, name in enumerate(wanted, start=1):
        tag = f"{repository}/{name}"
        note(f"Building {tag} ({number} of {len(wanted)}).")
        began = time.monotonic()
        starts = _starts_of(name)
        arguments = _arguments(f"{repository}/{starts[-1]}") if starts else []
        _build(["build", "--tag", tag, *arguments, str(found[name])], tag)
        note(f"Built {tag} in {duration(time.monotonic() - began)}.")


def _starts_of(name: str) -> tuple[str, ...]:
    """The images that this one is built on, in the order in which they are built."""
    return () if name in DEFAULT_IMAGES else BUILT_ON.get(name, (BASE,))


def _arguments(base: str) -> list[str]:
    """What a build on another image needs."""
    authorities = os.environ.get("SSL_CERT_FILE")
    return [f"--build-arg=BASE={base}", *([f"--secret=id=ca,src={authorities}"] if authorities else ())]


def _build(arguments: list[str], tag: str) -> None:
    from sandlot.domain.errors import EngineProblem

    try:
        code = subprocess.run([docker_command(), *arguments], check=False).returncode
    except FileNotFoundError as error:
        raise EngineProblem(
            "Building images needs the docker command, which is not installed. Install it: "
            "https://docs.docker.com/engine/install/"
        ) from error
    if code != 0:
        raise EngineProblem(f"docker could not build {tag}. See its output above.")


def docker_command() -> str:
    # An older client may come first on the PATH. Prefer the one from the engine's own package.
    return "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"

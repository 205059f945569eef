"""Writes a build's steps as a Dockerfile. Pure.

Clients choose every argument, so nothing of theirs is written as it is: commands and paths are JSON, and
what the engine would expand in them is escaped. All steps run as root. Where a file shall belong to the
sandbox's user, COPY says so.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass
from typing import Final

from sandlot.domain.templates.build import ROOT, Step, StepKind
from sandlot.providers.docker.host.users import IMAGE_UID
from sandlot.providers.docker.spec import WORKSPACE_LINK

# The folder of the build that has the uploaded archives, each unpacked under its hash.
FILES: Final = "files"
LABEL_TEMPLATE: Final = "sandlot.template"
# Bash if the image has one, as E2B runs commands. Other images have at least sh.
_RUN: Final = 'command -v bash >/dev/null && exec bash -c "$0"; exec sh -c "$0"'


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """``step_of``: which step an instruction belongs to, by its number. Both are counted from 1."""

    text: str
    step_of: dict[int, int]


def dockerfile(image: str, steps: tuple[Step, ...]) -> Dockerfile:
    lines = [f"FROM {image}", "USER root", f"WORKDIR {WORKSPACE_LINK}"]
    step_of = {}
    for number, step in enumerate(steps, start=1):
        line = _instruction(step)
        if line is not None:
            lines.append(line)
            step_of[len(lines)] = number
    return Dockerfile("\n".join(lines) + "\n", step_of)


def _instruction(step: Step) -> str | None:
    match step.kind:
        case StepKind.RUN:
            return "RUN " + json.dumps(["/bin/sh", "-c", _RUN, step.arguments[0]])
        case StepKind.WORKDIR:
            return f"WORKDIR {_quoted(step.arguments[0])}"
        case StepKind.ENV:
            pairs = zip(step.arguments[::2], step.arguments[1::2], strict=True)
            return "ENV " + " ".join(f"{name}={_quoted(value)}" for name, value in pairs)
        case StepKind.COPY:
            source, target, user = (*step.arguments, "")[:3]
            owner = "0:0" if user == ROOT else f"{IMAGE_UID}:{IMAGE_UID}"
            folder = posixpath.join(FILES, str(step.files))
            paths = [_escaped(posixpath.join(folder, posixpath.normpath(source))), _escaped(target)]
            return f"COPY --chown={owner} {json.dumps(paths)}"
        case StepKind.USER:
            return None


def _quoted(text: str) -> str:
    """Text in double quotes, in which nothing is expanded."""
    return '"' + _escaped(text).replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("$", "\\$")

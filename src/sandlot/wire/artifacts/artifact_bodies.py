"""HTTP bodies of artifacts. ``Artifact``, ``ArtifactPage`` and ``KeptArtifacts`` are JSON already, and cross
the wire unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from sandlot.wire.http_bodies import STRICT


@dataclass(frozen=True, slots=True)
class KeepArtifactsBody:
    """The files to keep.

    paths: paths and patterns such as ``out/*.png``, relative to ``/workspace``. A folder's path means all
        files below it.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    paths: list[str]

"""Finds the package's data files: the registry and the images' Dockerfiles.

In the wheel they are next to the code (``registry_data``, ``images_data``). In a checkout they are
folders at its root.
"""

from __future__ import annotations

from pathlib import Path

from sandlot.domain.errors import NotFound

_PACKAGE = Path(__file__).resolve().parent.parent


def packaged_folder(name: str) -> Path:
    for folder in (_PACKAGE / f"{name}_data", _PACKAGE.parent.parent / name):
        if folder.is_dir():
            return folder
    raise NotFound(f"The {name} folder is missing from this installation. Reinstall Sandlot.")

"""The environments that clients have built: files of the registry, in a folder of the worker's data.

They are read before all others. So a name that is shipped, or that the operator's own folder has, never
means a built one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from sandlot.config.registry.loading import Registry
from sandlot.domain.environment import ProviderName
from sandlot.domain.errors import Conflict, InvalidRequest
from sandlot.domain.templates.build import NewTemplate
from sandlot.domain.text.suggestions import did_you_mean

# What a template that is built on an image takes everything else from.
BASE: Final = "base"
_NOT_INHERITED: Final = ("name", "description", "image", "pool", "contexts")
# None is held warm until somebody asks.
_POOL: Final = {"size": 0, "min": 0, "max": 10}


def built_folder(data_dir: Path) -> Path:
    return data_dir / "templates"


class BuiltEnvironments:
    """``registry``: what the server offers now, with what was built."""

    def __init__(self, data_dir: Path, registry: Registry) -> None:
        self._folder = built_folder(data_dir) / "environments"
        self._registry = registry

    def use(self, registry: Registry) -> None:
        self._registry = registry

    def names(self) -> frozenset[str]:
        return frozenset(path.stem for path in self._folder.glob("*.yaml"))

    def check_free(self, name: str) -> None:
        """Raise ``Conflict`` if the operator has an environment of this name."""
        if name in self._registry.environments and name not in self.names():
            raise Conflict(f"{name} is an environment of the operator. Choose another name for the template.")

    def source(self, name: str | None) -> Mapping[str, Any]:
        """The declaration of the environment that a template is built on. None: on an image."""
        known = self._registry.environments
        declared = known.get(name or BASE)
        if declared is None:
            hint = did_you_mean((name or BASE)[:80], known)
            raise InvalidRequest(
                f"There is no template {name or BASE!r:.80} to build on.{hint} Templates are: "
                f"{', '.join(sorted(known))}."
            )
        if declared.get("provider", ProviderName.DOCKER) != ProviderName.DOCKER:
            raise InvalidRequest(f"{name} is not an image of this machine: its sandboxes run elsewhere.")
        return declared

    def declare(self, new: NewTemplate, image: str, source: Mapping[str, Any], *, from_image: bool) -> None:
        """Write the environment's file. It counts from the next reload on."""
        document: dict[str, Any] = {
            "name": new.name,
            "description": f"Built by a client on {'an image' if from_image else source['name']}.",
            "image": image,
            **{key: value for key, value in source.items() if key not in _NOT_INHERITED},
            "pool": _POOL,
        }
        if from_image:
            document.pop("languages", None)
        limits = dict(document.get("limits") or {})
        if new.cpus is not None:
            limits["cpus"] = new.cpus
        if new.memory_bytes is not None:
            limits["memory"] = new.memory_bytes
        if limits:
            document["limits"] = limits
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._file(new.name)
        # Files that do not end in .yaml are not read.
        written = file.with_suffix(f".{secrets.token_hex(8)}")
        with written.open("x") as out:
            yaml.safe_dump(document, out, sort_keys=False, allow_unicode=True)
            out.flush()
            os.fsync(out.fileno())
        written.replace(file)

    def declared(self, name: str) -> bytes | None:
        file = self._file(name)
        return file.read_bytes() if file.exists() else None

    def restore(self, name: str, content: bytes | None) -> None:
        """Go back to an earlier declaration; None: to none."""
        if content is None:
            self._file(name).unlink(missing_ok=True)
        else:
            self._file(name).write_bytes(content)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.yaml"

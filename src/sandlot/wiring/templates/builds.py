"""Builds of templates, where the operator switched them on."""

from __future__ import annotations

import asyncio
from typing import Final

from sandlot.config.registry.built import BuiltEnvironments, built_folder
from sandlot.config.registry.loading import load_registry
from sandlot.config.settings import ServerSettings
from sandlot.providers.docker.builds.image_builds import ImageBuilds
from sandlot.providers.docker.engine import Engine
from sandlot.wiring.reloading import Reloader
from sandlot.worker.templates.builds import WorkerBuilds
from sandlot.worker.templates.uploads import Uploads

# The files of one build may be this many times as large as the largest upload, once unpacked.
UNPACKED: Final = 4


async def built_environments(settings: ServerSettings) -> BuiltEnvironments | None:
    """None if clients build no templates here."""
    if not (settings.e2b and settings.e2b_builds):
        return None
    data_dir = settings.data_dir.absolute()
    registry = await asyncio.to_thread(
        load_registry,
        settings.registry_dir,
        defaults=settings.recipe_defaults,
        built=built_folder(data_dir),
    )
    return BuiltEnvironments(data_dir, registry)


def template_builds(
    settings: ServerSettings, built: BuiltEnvironments | None, reloader: Reloader
) -> WorkerBuilds | None:
    """Not open yet."""
    if built is None:
        return None
    folder = built_folder(settings.data_dir.absolute())
    images = ImageBuilds(Engine(settings.docker_host), folder, UNPACKED * settings.max_upload_bytes)
    return WorkerBuilds(images, built, Uploads(folder / "uploads", settings.max_upload_bytes), reloader)

"""A server as `sandlot serve` runs it, on the shipped fake: started by test_discovery.py as a process.

Arguments: the data folder, the API key or an empty word, the worker's name in the announcement.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sandlot.api import create_app
from sandlot.config.registry.loading import load_registry
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.config.settings import ServerSettings
from sandlot.testing.fake import FakeService
from sandlot.wiring.announcing import announced
from sandlot.wiring.http import listen, serve_app


async def main(folder: str, key: str, worker_id: str) -> None:
    settings = ServerSettings(
        host="127.0.0.1", data_dir=Path(folder), worker_id=worker_id, drain_timeout_s=1
    ).model_copy(update={"port": 0})
    recipes = load_registry(defaults=RecipeDefaults()).recipes
    service = FakeService(recipes=[recipe for name, recipe in recipes.items() if name != "gvisor"])
    listener = listen(settings)
    with announced(listener, settings) as withdraw:
        print("announced", flush=True)

        async def stop() -> None:
            withdraw()

        await serve_app(create_app(service, api_key=key or None), listener, stop, settings)
    listener.close()


asyncio.run(main(*sys.argv[1:]))

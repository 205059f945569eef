"""A real server on a real port, and the command line as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn

from sandlot.api import create_app
from sandlot.api.previews.options import PreviewOptions
from sandlot.config.registry.loading import load_registry
from sandlot.config.registry.recipes import RecipeDefaults
from sandlot.domain.network.preview_links import LinkTokens
from sandlot.testing.fake import FakeService

KEY = "a-key-for-the-tests"
SANDLOT = [sys.executable, "-c", "from sandlot.cli.main import main; main()"]
SECONDS = 60


def environment(**variables: str) -> dict[str, str]:
    """Ours without the variables that would point a client elsewhere."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_")}
    return {**bare, "PYTHONWARNINGS": "error", "COLUMNS": "200", **variables}


@dataclass
class Served:
    url: str
    service: FakeService

    def environment(self, **variables: str) -> dict[str, str]:
        return environment(**{"SANDLOT_URL": self.url, "SANDLOT_API_KEY": KEY, **variables})

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*SANDLOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(**variables),
        )

    def sandlot(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> bytes:
        """Its stdout, once it has ended with the code that is expected."""
        process = self.start(*arguments)
        out, err = process.communicate(stdin, timeout=SECONDS)
        assert process.returncode == code, (process.returncode, out, err)
        return out

    def create(self, **options: str) -> str:
        out = self.sandlot("run", "--keep", "--json", *(f"--{k}={v}" for k, v in options.items()), "true")
        return str(json.loads(out)["session_id"])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    registry = load_registry(defaults=RecipeDefaults())
    service = FakeService(recipes=registry.recipes.values())
    previews = PreviewOptions(LinkTokens(b"s" * 32))
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(service, api_key=KEY, previews=previews), log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", service)
    server.should_exit = True
    thread.join(SECONDS)
    listening.close()
    assert not thread.is_alive()


@pytest.fixture
def root() -> Path:
    return Path(__file__).parents[3]


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.fronted import ROOT, fleet_image


@pytest.fixture(scope="session")
def made() -> Iterator[Path]:
    """What `deploy/compose/setup` makes: .env, keys, a certificate."""
    with tempfile.TemporaryDirectory(prefix="sandlot-test-setup-") as folder:
        subprocess.run([ROOT / "deploy/compose/setup", folder], check=True, capture_output=True)
        yield Path(folder)


@pytest.fixture(scope="session")
def nginx_image() -> str:
    return fleet_image("nginx")

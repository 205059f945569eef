"""``sandlot worker drain`` on the worker's machine: by a secret in its data folder, which others cannot read."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot.api.fleet.worker import worker_routes
from sandlot.domain.errors import Conflict
from sandlot.fleet.access import TokenGate
from sandlot.fleet.membership.control_token import NAME, ControlToken, read_control_token
from tests.fleet.fakes import SIGNING_KEY, FleetFake, Scene
from tests.fleet.test_cli import sandlot
from tests.service.served import served


@contextlib.asynccontextmanager
async def worker(scene: Scene, control: ControlToken) -> AsyncIterator[tuple[FleetFake, list[str]]]:
    """A worker, and the options by which a command finds it."""
    fake = scene.workers["w1"]
    gate = TokenGate(SIGNING_KEY.public, worker_id="w1", generation_of=lambda _: None, control=control.secret)
    async with served(fake, tokens=gate, worker_id="w1", routers=[worker_routes(fake)]) as url:
        address = urlsplit(url)
        yield fake, ["worker", "--host", str(address.hostname), "--port", str(address.port)]


async def test_the_machines_operator_drains_its_worker(scene: Scene, tmp_path: Path) -> None:
    control = ControlToken(tmp_path)
    control.save()
    async with worker(scene, control) as (fake, options):
        at = [*options, "--data-dir", str(tmp_path)]
        assert (await sandlot(*at, "drain"))[0] == "draining\n"
        assert fake.draining
        assert (await sandlot(*at, "undrain"))[0] == "accepting new sessions\n"
        assert not fake.draining


async def test_of_another_worker_it_is_of_no_use(scene: Scene, tmp_path: Path) -> None:
    ControlToken(tmp_path).save()
    async with worker(scene, ControlToken(tmp_path)) as (fake, options):
        _, told = await sandlot(*options, "--data-dir", str(tmp_path), "drain", code=1)
        assert "it uses another data folder than" in told
        assert not fake.draining


def test_only_the_workers_user_can_read_it(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        ControlToken(tmp_path).save()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_each_start_makes_a_new_one_and_removes_only_its_own(tmp_path: Path) -> None:
    first, second = ControlToken(tmp_path), ControlToken(tmp_path)
    first.save()
    second.save()
    assert read_control_token(tmp_path) == second.secret.decode() != first.secret.decode()
    first.remove()
    assert read_control_token(tmp_path) == second.secret.decode()
    second.remove()
    second.remove()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Conflict, match="No worker runs with the data folder"):
        read_control_token(tmp_path)


def test_a_link_at_its_place_is_not_followed(tmp_path: Path) -> None:
    """The data folder is the worker's own, but what a mistake has put there must not be overwritten."""
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "control.new").symlink_to(other)
    ControlToken(tmp_path).save()
    assert other.read_text() == "mine"

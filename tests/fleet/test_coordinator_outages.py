"""What a coordinator does while the directory is away, or a worker is cut off from it."""

from __future__ import annotations

import pytest

from sandlot.domain.callers.principal import OWNER
from sandlot.domain.errors import Unavailable
from sandlot.domain.execution import ExecRequest
from sandlot.domain.session import CreateSession
from tests.fleet.fakes import TIMINGS, Scene


async def test_a_worker_that_is_cut_off_from_the_directory_alone_goes_on(scene: Scene) -> None:
    opened = await scene.coordinator.create_session(CreateSession())
    await scene.pass_time(TIMINGS.lease_s + 1, silent=("w1",))
    result = await scene.another().execute(opened.session.id, ExecRequest("echo here"))
    assert result.stdout == b"here\n"


async def away(*_: object, **__: object) -> None:
    raise Unavailable("Redis cannot be reached", retry_after_s=1.0)


async def test_an_outage_of_the_directory_stops_creates_only(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await scene.coordinator.create_session(CreateSession())

    for name in ("find", "place", "page", "workers", "status"):
        monkeypatch.setattr(scene.directory, name, away)
    monkeypatch.setattr(scene.coordinator._locations, "_fresh_s", 0.0)
    result = await scene.coordinator.execute(opened.session.id, ExecRequest("echo on"))
    assert result.stdout == b"on\n"
    with pytest.raises(Unavailable, match="Redis"):
        await scene.coordinator.create_session(CreateSession())
    health = await scene.coordinator.health()
    assert not health.creates


@pytest.mark.parametrize("known_for_s", [0.0, 45.0], ids=["fresh", "old"])
async def test_what_was_old_when_the_directory_went_away_does_not_become_new(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, known_for_s: float
) -> None:
    """One call that failed is no outage in which nobody could take over."""
    session = (await scene.coordinator.create_session(CreateSession())).session
    locations = scene.coordinator._locations

    monkeypatch.setattr(scene.directory, "find", away)
    since = locations._clock()
    for later_s in (known_for_s, known_for_s + 500):
        locations._clock = lambda later_s=later_s: since + locations._fresh_s + later_s
        assert (await scene.coordinator.get_session(session.id)).id == session.id
        access = scene.coordinator.access(OWNER, session)
        assert (access is None) == (known_for_s > 0), "nothing ages while the directory is away"


async def test_an_outage_is_over_once_something_was_placed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = (await scene.coordinator.create_session(CreateSession())).session
    locations = scene.coordinator._locations
    since = locations._clock()

    monkeypatch.setattr(scene.directory, "find", away)
    locations._clock = lambda: since + 10
    await scene.coordinator.get_session(old.id)
    locations._clock = lambda: since + 100
    session = (await scene.coordinator.create_session(CreateSession())).session
    locations._clock = lambda: since + 150
    known = locations.known(session.id)
    assert known is not None
    assert known[1] == pytest.approx(50 - locations._fresh_s)

"""What a volume may be called, how many a tenant may have, and what reports say of volumes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.domain.errors import Busy, InvalidRequest
from sandlot.domain.session import CreateSession, EndReason, Session
from sandlot.domain.session_states import (
    end,
    hibernation_report,
    loss_report,
    mark_worker_lost,
    restore_report,
)
from sandlot.domain.thread_options import differences
from sandlot.domain.volumes.volume import (
    CreateVolume,
    SessionVolume,
    VolumeMode,
    VolumeUse,
    check_room,
    parse_mode,
)

DATA = SessionVolume("vol_" + "1" * 32, "data", VolumeMode.RW)
MORE = SessionVolume("vol_" + "2" * 32, "more", VolumeMode.RO)
SESSION = Session("ses_" + "a" * 32, "base", 1.0, 1.0, volumes=(DATA, MORE))
NAMES = ("volume data", "volume more")


@pytest.mark.parametrize("name", ["data", "a", "0", "my-data_1.2", "x" * 63, "volume"])
def test_names(name: str) -> None:
    assert CreateVolume(name).name == name


@pytest.mark.parametrize("name", ["vol_1", "vol_" + "1" * 32, "A", "-a", ".a", "a/b", "", "x" * 64, "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InvalidRequest):
        CreateVolume(name)


@pytest.mark.parametrize("mode", ["w", "RW", "", None, 1, True, "read"])
def test_modes_that_are_none(mode: object) -> None:
    with pytest.raises(InvalidRequest, match="'rw'"):
        parse_mode(mode)


def test_room() -> None:
    check_room(1, 50, 50, max_count=2, max_bytes=100)
    for count, size, wanted in ((2, 0, 1), (3, 0, 1), (1, 51, 50), (0, 0, 101)):
        with pytest.raises(Busy) as refused:
            check_room(count, size, wanted, max_count=2, max_bytes=100)
        assert not refused.value.retryable


def test_reports_name_what_is_kept() -> None:
    reports = (
        loss_report(SESSION, "it died", 2.0),
        hibernation_report(SESSION, EndReason.IDLE, 2.0),
        restore_report(SESSION, "snp_" + "0" * 32, 2.0),
    )
    for report in reports:
        assert report.kept[-2:] == NAMES
        assert not set(NAMES) & set(report.lost)


def test_a_lost_machine_takes_them_along() -> None:
    lost = mark_worker_lost(SESSION, 2.0)
    assert lost.volumes == ()
    assert lost.loss is not None
    assert lost.loss.lost[-2:] == NAMES
    # A second look changes nothing.
    assert mark_worker_lost(lost, 3.0).loss == lost.loss


def test_an_ended_session_has_none() -> None:
    assert end(SESSION, EndReason.DELETED, 2.0).volumes == ()


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ((), False),
        ((VolumeUse("data", VolumeMode.RW), VolumeUse("more", VolumeMode.RO)), False),
        ((VolumeUse(MORE.id, VolumeMode.RO), VolumeUse("data", VolumeMode.RW)), False),
        ((VolumeUse("data", VolumeMode.RW),), True),
        ((VolumeUse("data", VolumeMode.RO), VolumeUse("more", VolumeMode.RO)), True),
        ((VolumeUse("data", VolumeMode.RW), VolumeUse("other", VolumeMode.RO)), True),
    ],
)
def test_a_threads_volumes(asked: tuple[VolumeUse, ...], differs: bool) -> None:
    different = differences(CreateSession(thread="t", volumes=asked), SESSION, {})
    assert ("volumes" in different) is differs
    if differs:
        assert "data (rw), more (ro)" in different["volumes"]
        assert (
            "no volumes"
            in differences(CreateSession(thread="t", volumes=asked), replace(SESSION, volumes=()), {})[
                "volumes"
            ]
        )

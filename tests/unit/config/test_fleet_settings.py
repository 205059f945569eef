"""A fleet's secrets: from a variable, or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import ConnectionPool

from sandlot.config.fleet_settings import FleetSettings
from sandlot.config.reading import coordinator_fleet_settings, worker_fleet_settings
from sandlot.domain.errors import InvalidRequest

PRIVATE, PUBLIC = "k1:private." + "A" * 43, "k1:public." + "A" * 43
WORD = "p@ss/w:rd#1 ?[é]"


def settings(**given: Any) -> FleetSettings:
    return worker_fleet_settings(fleet_public_keys=PUBLIC, **given)


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("redis://10.0.0.5:6379/2", None),
        ("redis://worker@10.0.0.5:6379/2", "worker"),
        ("rediss://10.0.0.5:6379/2?ssl_ca_certs=/ca.pem", None),
    ],
)
def test_the_password_of_redis_from_a_file(url: str, user: str | None, tmp_path: Path) -> None:
    """O11: it stood in a URL, and so in every process's environment, and had to be percent-encoded."""
    file = tmp_path / "redis-password"
    file.write_text(WORD + "\n")
    read = settings(redis_url=url, redis_password_file=file)
    found = ConnectionPool.from_url(read.redis).connection_kwargs
    assert (found["password"], found.get("username") or None) == (WORD, user)
    assert (found["host"], found["port"], found["db"]) == ("10.0.0.5", 6379, 2)
    assert WORD not in repr(read)
    assert "p@ss" not in read.redis_for_logs
    assert settings(redis_url=url, redis_password=WORD).redis == read.redis


def test_by_host_and_port_too() -> None:
    read = settings(redis_host="10.0.0.5", redis_port=6380, redis_password="word")
    assert read.redis == "redis://:word@10.0.0.5:6380/0"
    assert read.redis_for_logs == "redis://10.0.0.5:6380/0"


def test_the_sentinels_password_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("of the sentinels\n")
    assert settings(sentinel_password_file=tmp_path / "word").sentinels_password == "of the sentinels"
    assert settings(sentinel_password="word").sentinels_password == "word"
    assert settings().sentinels_password is None


def test_what_cannot_be_meant(tmp_path: Path) -> None:
    word, empty = tmp_path / "word", tmp_path / "empty"
    word.write_text("word")
    empty.write_text("\n")
    for given, told in (
        ({"redis_password": "a", "redis_password_file": word}, "not both"),
        ({"redis_url": "redis://:secret@h/0", "redis_password": "a"}, "already has a password"),
        ({"redis_password_file": tmp_path / "none"}, "Cannot read"),
        ({"redis_password_file": empty}, "is empty"),
        ({"sentinel_password": "a", "sentinel_password_file": word}, "not both"),
    ):
        with pytest.raises(InvalidRequest, match=told) as refused:
            settings(**given)
        assert "secret" not in refused.value.message


def test_each_kind_of_member_has_its_own_keys(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    private.write_text(PRIVATE + "\n")
    public.write_text(PUBLIC + "\n")
    signing = coordinator_fleet_settings(fleet_private_key_file=private)
    assert signing.private_key == coordinator_fleet_settings(fleet_private_key=PRIVATE).private_key == PRIVATE
    assert PRIVATE not in repr(coordinator_fleet_settings(fleet_private_key=PRIVATE))
    assert (
        worker_fleet_settings(fleet_public_keys_file=public).public_keys == settings().public_keys == PUBLIC
    )


@pytest.mark.parametrize("name", ["fleet_private_key", "fleet_private_key_file"])
def test_a_worker_takes_no_private_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="A worker only verifies tokens") as refused:
        settings(**{name: PRIVATE})
    assert PRIVATE not in refused.value.message


def test_members_without_their_keys() -> None:
    for read, given, told in (
        (worker_fleet_settings, {}, "Missing public keys.*sandlot fleet keygen"),
        (coordinator_fleet_settings, {}, "Missing private key.*sandlot fleet keygen"),
        (coordinator_fleet_settings, {"fleet_public_keys": PUBLIC}, "are for workers"),
        (worker_fleet_settings, {"fleet_public_keys": PUBLIC, "fleet_public_keys_file": "/x"}, "not both"),
        (
            coordinator_fleet_settings,
            {"fleet_private_key": PRIVATE, "fleet_private_key_file": "/x"},
            "not both",
        ),
    ):
        with pytest.raises(InvalidRequest, match=told):
            read(**given)

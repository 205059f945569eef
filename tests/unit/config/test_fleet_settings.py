"""A fleet's secrets: from a variable, or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import ConnectionPool

from sandlot.config.fleet_settings import FleetSettings
from sandlot.config.reading import fleet_settings
from sandlot.domain.errors import InvalidRequest

KEYS = "k1:" + "s" * 40
WORD = "p@ss/w:rd#1 ?[é]"


def settings(**given: Any) -> FleetSettings:
    return fleet_settings(fleet_keys=KEYS, **given)


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

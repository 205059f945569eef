"""Where an object storage is, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.config.reading import server_settings
from sandlot.domain.errors import InvalidRequest, StorageProblem
from sandlot.domain.workspaces.objects.entry_names import check_entry_name
from sandlot.domain.workspaces.objects.locations import Location, parse_location
from sandlot.wiring.object_storage import build_object_storage


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("file:///srv/saved", Location(folder="/srv/saved")),
        ("file:///srv/a%20b/", Location(folder="/srv/a b")),
        ("s3://bucket", Location(bucket="bucket")),
        ("s3://bucket/", Location(bucket="bucket")),
        ("s3://my.bucket/some/prefix/", Location(bucket="my.bucket", prefix="some/prefix")),
    ],
)
def test_locations_are_read(url: str, location: Location) -> None:
    assert parse_location(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/saved",
        "file://host/srv",
        "file:///",
        "file:///a/../b",
        "file:///a%00b",
        "http://bucket/x",
        "s3:///prefix",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a?x=1",
        "s3://user:secret@bucket/a",
        "s3://b",
        "s3://[",
    ],
)
def test_other_locations_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="s3://BUCKET/PREFIX") as caught:
        parse_location(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"a\0", b"n" * 256])
def test_names_that_are_no_names(name: bytes) -> None:
    with pytest.raises(StorageProblem, match="damaged"):
        check_entry_name(name)


def test_settings_need_a_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert build_object_storage(server_settings()) is None
    monkeypatch.setenv("SANDLOT_OBJECTS_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(InvalidRequest, match="SANDLOT_OBJECTS_KEY_FILE has no effect"):
        server_settings()
    monkeypatch.setenv("SANDLOT_OBJECTS_URL", "s3:bucket")
    with pytest.raises(InvalidRequest, match="SANDLOT_OBJECTS_URL"):
        server_settings()


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    key, credentials = tmp_path / "key", tmp_path / "credentials"
    settings = server_settings(
        objects_url="s3://bucket/prefix", objects_key_file=key, objects_credentials_file=credentials
    )
    credentials.write_text("the-id\nthe-secret\n")
    key.write_text("ab" * 32 + "\n")
    storage = build_object_storage(settings)
    assert storage is not None
    assert storage._options.key == b"\xab" * 32
    assert (storage._options.access_key_id, storage._options.secret_access_key) == ("the-id", "the-secret")
    assert "the-secret" not in repr(storage._options)
    assert "\\xab" not in repr(storage._options)
    key.write_text("a pass phrase")
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        build_object_storage(settings)
    key.write_text("ab" * 32)
    credentials.write_text("only-one")
    with pytest.raises(InvalidRequest, match="two lines"):
        build_object_storage(settings)

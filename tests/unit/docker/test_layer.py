"""The layer that prepares an image, from the export of one to what is added."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from sandlot.domain.errors import InvalidRequest
from sandlot.providers.docker.images.layer import Survey, survey, write_layer

MIB = 1024 * 1024


def entry(name: str, content: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes | None]:
    info = tarfile.TarInfo(name)
    info.mode = fields.pop("mode", 0o755 if content is None else 0o644)
    info.type = fields.pop("type", tarfile.DIRTYPE if content is None else tarfile.REGTYPE)
    info.size = len(content or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str, kind: bytes, **fields: Any) -> tuple[tarfile.TarInfo, None]:
    return entry(name, None, type=kind, linkname=target, **fields)[0], None


def image(*entries: tuple[tarfile.TarInfo, bytes | None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content) if content is not None else None)
    return buffer.getvalue()


def prepare(*entries: tuple[tarfile.TarInfo, bytes | None], max_bytes: int = MIB) -> dict[str, Any]:
    """Name → (header, content) of the layer; a later entry of the same name wins, as when it is unpacked."""
    exported = image(*entries)
    output = io.BytesIO()
    write_layer(io.BytesIO(exported), survey(io.BytesIO(exported)), output, max_bytes=max_bytes)
    output.seek(0)
    layer: dict[str, Any] = {}
    with tarfile.open(fileobj=output) as tar:
        for member in tar:
            content = tar.extractfile(member).read() if member.isfile() else None  # type: ignore[union-attr]
            layer[member.name] = (member, content)
    return layer


def look(*entries: tuple[tarfile.TarInfo, bytes | None]) -> Survey:
    return survey(io.BytesIO(image(*entries)))


PASSWD = entry("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n")
GROUP = entry("etc/group", b"root:x:0:\n")


def test_the_layout() -> None:
    layer = prepare(PASSWD, GROUP)
    modes = {name: (member.mode, member.uid, member.gid) for name, (member, _) in layer.items()}
    assert modes[".sandlot"] == (0o755, 0, 0)
    assert modes[".sandlot/link"] == (0o700, 0, 0)
    assert modes[".sandlot/link/host"] == (0o755, 0, 0)
    assert modes[".sandlot/run"] == (0o711, 0, 0)
    assert modes["sandbox"] == (0o755, 0, 0)
    assert modes["sandbox/workspace"] == (0o755, 1000, 1000)
    assert layer[".sandlot/agent"][0].isfile()
    assert (layer["workspace"][0].issym(), layer["workspace"][0].linkname) == (True, "/sandbox/workspace")
    assert list(layer)[-1] == "workspace", "the symlink replaces the folder, so its content goes first"


def test_the_user_is_added_once() -> None:
    layer = prepare(PASSWD, GROUP, entry("bin/bash", b"elf", mode=0o755))
    assert layer["etc/passwd"][1].endswith(b"\nsandboxuser:x:1000:1000::/workspace:/bin/bash\n")
    assert layer["etc/passwd"][1].startswith(b"root:x:0:0")
    assert layer["etc/group"][1] == b"root:x:0:\nsandboxuser:x:1000:\n"

    named = entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/bash")
    layer = prepare(named, entry("etc/group", b"node:x:1000:\n"))
    assert "etc/passwd" not in layer
    assert "etc/group" not in layer
    found = look(named)
    assert (found.user, found.home) == ("node", "/home/node")


def test_an_image_without_bash_or_accounts() -> None:
    layer = prepare(entry("bin/busybox", b"elf"))
    assert layer["etc/passwd"][1] == b"sandboxuser:x:1000:1000::/workspace:/bin/sh\n"
    assert look(entry("bin/busybox", b"elf")).has_bash is False
    assert look(link("bin/bash", "/usr/local/bin/bash", tarfile.SYMTYPE)).has_bash is True


def test_a_taken_name_and_foreign_account_files() -> None:
    taken = entry("etc/passwd", b"sandboxuser:x:7:7::/:/bin/sh\nshort\n:x:1000:1000::/:\n")
    assert look(taken).user == "sandboxuser1000"
    layer = prepare(link("etc/passwd", "/nix/passwd", tarfile.SYMTYPE), GROUP)
    assert "etc/passwd" not in layer
    assert "etc/group" in layer


def test_privileged_files_are_written_again_without_the_bit() -> None:
    capable = entry("usr/bin/ping", b"ping", mode=0o755)
    capable[0].pax_headers = {"SCHILY.xattr.security.capability": "x"}
    layer = prepare(
        PASSWD,
        GROUP,
        entry("usr/bin/chage", b"chage", mode=0o2755, gid=42),
        capable,
        entry("usr/bin/su", b"su", mode=0o4755),
        link("usr/bin/su2", "usr/bin/su", tarfile.LNKTYPE, mode=0o4755),
        entry("usr/bin/true", b"true", mode=0o755),
        entry("var/mail", mode=0o3777, gid=8),
    )
    assert (layer["usr/bin/su"][0].mode, layer["usr/bin/su"][1]) == (0o755, b"su")
    assert (layer["usr/bin/chage"][0].mode, layer["usr/bin/chage"][0].gid) == (0o755, 42)
    assert layer["usr/bin/su2"][0].islnk(), "both names lead to the new file; the old one would keep its bit"
    assert layer["usr/bin/su2"][0].linkname == "usr/bin/su"
    assert layer["usr/bin/ping"][0].pax_headers.keys() == set()
    assert layer["var/mail"][0].mode == 0o1777
    assert "usr/bin/true" not in layer


def test_what_the_image_has_in_its_workspace_moves() -> None:
    layer = prepare(
        PASSWD,
        GROUP,
        entry("usr/share/big", b"big", mode=0o644),
        entry("workspace", mode=0o755),
        entry("workspace/a", b"a", mode=0o4755, uid=0),
        link("workspace/b", "workspace/a", tarfile.LNKTYPE),
        link("workspace/big1", "usr/share/big", tarfile.LNKTYPE),
        link("workspace/big2", "usr/share/big", tarfile.LNKTYPE),
        entry("workspace/dev", None, type=tarfile.CHRTYPE),
        entry("workspace/locked", mode=0o000),
        link("workspace/to", "../etc", tarfile.SYMTYPE),
        link("zz/a", "workspace/a", tarfile.LNKTYPE, mode=0o4755),
    )
    moved = {name: member for name, (member, _) in layer.items() if name.startswith("sandbox/workspace/")}
    assert {(member.uid, member.gid) for member in moved.values()} == {(1000, 1000)}
    assert (moved["sandbox/workspace/a"].mode, layer["sandbox/workspace/a"][1]) == (0o755, b"a")
    assert moved["sandbox/workspace/b"].linkname == "sandbox/workspace/a"
    assert layer["sandbox/workspace/big1"][1] == b"big", "copied, or re-owning it would re-own the original"
    assert moved["sandbox/workspace/big2"].linkname == "sandbox/workspace/big1"
    assert moved["sandbox/workspace/to"].linkname == "../etc"
    assert moved["sandbox/workspace/locked"].mode == 0o700
    assert "sandbox/workspace/dev" not in moved
    assert layer["zz/a"][0].linkname == "sandbox/workspace/a", "its other name has moved, without the bit"


@pytest.mark.parametrize("name", [".sandlot/x", "sandbox", "./sandbox/data", "volumes/data"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="reserved for Sandlot"):
        look(PASSWD, entry(name))


def test_an_empty_volumes_folder_is_replaced() -> None:
    layer = prepare(PASSWD, GROUP, entry("volumes"))
    assert (layer["volumes"][0].issym(), layer["volumes"][0].linkname) == (True, "/sandbox/volumes")


def test_odd_images_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"\.\."):
        look(entry("a/../../b", b"x"))
    with pytest.raises(InvalidRequest, match="setuid file, into /workspace"):
        look(entry("bin/su", b"x", mode=0o4755), link("workspace/su", "bin/su", tarfile.LNKTYPE, mode=0o4755))
    with pytest.raises(InvalidRequest, match="larger than"):
        prepare(
            entry("workspace"), entry("workspace/a", b"x" * MIB), entry("workspace/b", b""), max_bytes=MIB
        )


def test_names_that_are_not_utf8_survive() -> None:
    odd = b"workspace/\xff\xfe".decode("utf-8", "surrogateescape")
    layer = prepare(entry("workspace"), entry(odd, b"x"))
    assert b"sandbox/workspace/\xff\xfe".decode("utf-8", "surrogateescape") in layer


def test_a_large_file_is_refused_before_it_is_written() -> None:
    exported = image(entry("workspace"), entry("workspace/a", b"x" * (4 * MIB)))
    output = io.BytesIO()
    with pytest.raises(InvalidRequest, match="Move large data"):
        write_layer(io.BytesIO(exported), survey(io.BytesIO(exported)), output, max_bytes=MIB)
    assert len(output.getvalue()) < MIB
    prepare(entry("data", b"x" * (4 * MIB)), max_bytes=MIB)  # elsewhere it is not copied

"""Builds the thin layer that makes an image usable for sandboxes, from the image's own files.

Pure: it reads a tar and writes a tar. The image is read twice, as the tar stream of its file
system. ``survey`` collects what matters, and ``write_layer`` writes what must be added. Both hold
one file's header at a time, so memory does not grow with the image. The layer:

- makes the folders of a sandbox (see ``spec``), and moves the image's files in /workspace to
  /sandbox/workspace, owned by the sandbox user, with /workspace as a symlink to it;
- makes /volumes a symlink to /sandbox/volumes, where the volumes of a session are;
- rewrites every file that is setuid, setgid or has file capabilities, without those privileges;
- gives uid and gid 1000 a name, if they have none.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from sandlot.domain.capacity.limits import MIB
from sandlot.domain.errors import InvalidRequest
from sandlot.providers.docker.host.users import IMAGE_UID
from sandlot.providers.docker.spec import (
    AGENT_TARGET,
    LINK_TARGET,
    RUN_TARGET,
    VOLUME_TARGET,
    VOLUMES_LINK,
    VOLUMES_TARGET,
    WORKSPACE_LINK,
    WORKSPACE_TARGET,
)

USER_NAME = "sandboxuser"
SPECIAL_BITS = 0o7000
PRIVILEGE_BITS = 0o6000
# Bounded, because it is read into memory and kept in an image label. Real files have a few kB.
MAX_ACCOUNTS_BYTES = 64 * 1024
PASSWD = "etc/passwd"
GROUP = "etc/group"
# Far above any real image. It bounds the names held in memory.
MAX_PRIVILEGED_FILES = 10_000
READ_BYTES = 1 * MIB

_CAPABILITY_HEADER = "SCHILY.xattr.security.capability"
_RESERVED = (".sandlot", "sandbox")
_WORKSPACE = WORKSPACE_LINK.lstrip("/")
_VOLUMES = VOLUMES_LINK.lstrip("/")


@dataclass(slots=True)
class Survey:
    """What the layer needs to know about an image's files.

    Names are relative to the root, without a leading slash.
    """

    privileged: set[str] = field(default_factory=set)
    # Maps a file outside the workspace to the hard links to it inside. The layer copies such a
    # file: changing the owner of one name would change the owner of the other.
    workspace_links: dict[str, list[str]] = field(default_factory=dict)
    passwd: bytes | None = None
    group: bytes | None = None
    # Account files that are not plain small files (e.g. a symlink). The layer leaves them alone.
    skipped_accounts: set[str] = field(default_factory=set)
    has_bash: bool = False

    @property
    def user(self) -> str:
        return _account_field(self.passwd, IMAGE_UID, 0) or _unused_name(self.passwd)

    @property
    def home(self) -> str:
        return _account_field(self.passwd, IMAGE_UID, 5) or WORKSPACE_LINK

    @property
    def accounts(self) -> dict[str, bytes]:
        """The contents of /etc/passwd and /etc/group that give uid and gid 1000 a name."""
        shell = "/bin/bash" if self.has_bash else "/bin/sh"
        user = f"{self.user}:x:{IMAGE_UID}:{IMAGE_UID}::{WORKSPACE_LINK}:{shell}"
        found = {
            PASSWD: _with_account(self.passwd, IMAGE_UID, user),
            GROUP: _with_account(self.group, IMAGE_UID, f"{self.user}:x:{IMAGE_UID}:"),
        }
        return {name: content for name, content in found.items() if name not in self.skipped_accounts}


def survey(stream: IO[bytes]) -> Survey:
    """Reads an image's file system.

    Raises ``InvalidRequest`` if the image contains names that a sandbox needs for itself.
    """
    found = Survey()
    for name, member, tar in _members(stream):
        top = name.partition("/")[0]
        # An empty /volumes is in nobody's way.
        if top in _RESERVED or (top == _VOLUMES and not (name == _VOLUMES and member.isdir())):
            raise InvalidRequest(
                f"The image contains /{top}, which is reserved for Sandlot. Rename it in the image."
            )
        if name in ("bin/bash", "usr/bin/bash"):
            found.has_bash = True
        if _in_workspace(name):
            if member.islnk() and not _in_workspace(target := _normalize(member.linkname)):
                found.workspace_links.setdefault(target, []).append(name)
            continue
        if _is_privileged(member) or (member.islnk() and _normalize(member.linkname) in found.privileged):
            found.privileged.add(name)
            if len(found.privileged) > MAX_PRIVILEGED_FILES:
                raise InvalidRequest(
                    f"The image has more than {MAX_PRIVILEGED_FILES} setuid or setgid files. Remove some."
                )
        if name in (PASSWD, GROUP):
            content = _read_accounts(tar, member)
            if content is None:
                found.skipped_accounts.add(name)
            elif name == PASSWD:
                found.passwd = content
            else:
                found.group = content
    if linked := found.privileged & found.workspace_links.keys():
        raise InvalidRequest(
            f"The image hard-links /{min(linked)}, a setuid file, into {WORKSPACE_LINK}. Remove the link."
        )
    return found


def write_layer(stream: IO[bytes], found: Survey, output: IO[bytes], *, max_bytes: int) -> None:
    """Writes the layer for a surveyed image. Reads the image a second time, for file contents."""
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for member in _folders():
            layer.addfile(member)
        for name, member, tar in _members(stream):
            copied = name in found.workspace_links or name in found.privileged or _in_workspace(name)
            # Check before anything is written to the worker's disk.
            if output.tell() + (member.size if copied else 0) > max_bytes:
                raise InvalidRequest(
                    f"{WORKSPACE_LINK} of the image is larger than {max_bytes // MIB} MiB. "
                    "Move large data to another folder of the image."
                )
            if name in found.workspace_links and member.isfile():
                first, *others = found.workspace_links[name]
                _add(layer, tar, member, _moved_name(first), owner=IMAGE_UID)
                for other in others:
                    layer.addfile(_hard_link(other, first, member))
            if name == _WORKSPACE:
                continue
            if _in_workspace(name):
                _move_into_workspace(layer, tar, member, name)
            elif name in found.privileged:
                _add(layer, tar, member, name, owner=None)
        for name, content in found.accounts.items():
            if content == {PASSWD: found.passwd, GROUP: found.group}[name]:
                continue
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o644, len(content)
            layer.addfile(entry, io.BytesIO(content))
        layer.addfile(_symlink(_VOLUMES, VOLUMES_TARGET))
        # Last, because it replaces the image's own /workspace, folder or not. Its content must be
        # written elsewhere first.
        layer.addfile(_symlink(_WORKSPACE, WORKSPACE_TARGET))


def _members(stream: IO[bytes]) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=READ_BYTES) as tar:
        while (member := tar.next()) is not None:
            vars(tar)["members"].clear()  # otherwise tarfile keeps every header that it has read
            name = _normalize(member.name)
            if name:
                yield name, member, tar


def _normalize(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest("The image's file system has a name that contains '..'.")
    return "/".join(parts)


def _in_workspace(name: str) -> bool:
    return name.startswith(_WORKSPACE + "/")


def _moved_name(name: str) -> str:
    return WORKSPACE_TARGET.lstrip("/") + name[len(_WORKSPACE) :]


def _is_privileged(member: tarfile.TarInfo) -> bool:
    if not (member.isfile() or member.isdir() or member.islnk()):
        return False
    return bool(member.mode & PRIVILEGE_BITS) or _CAPABILITY_HEADER in member.pax_headers


def _move_into_workspace(
    layer: tarfile.TarFile, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str
) -> None:
    if member.islnk():
        target = _normalize(member.linkname)
        if _in_workspace(target):
            layer.addfile(_hard_link(name, target, member))
        return  # a link to a file outside was written together with that file's content
    if member.isdev() and not member.isfifo():
        return
    _add(layer, tar, member, _moved_name(name), owner=IMAGE_UID)


def _add(
    layer: tarfile.TarFile, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, *, owner: int | None
) -> None:
    """Writes one entry with its content, without special bits or extended attributes."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mtime = member.type, member.linkname, member.mtime
    if member.islnk() and _in_workspace(_normalize(member.linkname)):
        entry.linkname = _moved_name(_normalize(member.linkname))  # its target has moved
    # Keep the sticky bit of folders such as /var/tmp. In the workspace, keep no special bits.
    entry.mode = member.mode & ~(PRIVILEGE_BITS if owner is None else SPECIAL_BITS)
    entry.uid, entry.gid = (member.uid, member.gid) if owner is None else (owner, owner)
    if member.isfile():
        entry.type, entry.size = tarfile.REGTYPE, member.size
        layer.addfile(entry, tar.extractfile(member))
        return
    if owner is not None and member.isdir():
        entry.mode |= 0o700  # a folder is useless if its owner cannot enter it
    layer.addfile(entry)


def _hard_link(name: str, target: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(_moved_name(name))
    entry.type, entry.linkname = tarfile.LNKTYPE, _moved_name(target)
    entry.mode, entry.mtime = member.mode & ~SPECIAL_BITS, member.mtime
    entry.uid, entry.gid = IMAGE_UID, IMAGE_UID
    return entry


def _symlink(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    return entry


def _folders() -> Iterator[tarfile.TarInfo]:
    """Yields the folders of a sandbox, and its mount points.

    The engine would create missing mount points itself, with modes of its own choice.
    """
    for path, mode, owner in (
        ("/.sandlot", 0o755, 0),
        ("/.sandlot/link", 0o700, 0),
        (LINK_TARGET, 0o755, 0),
        (RUN_TARGET, 0o711, 0),
        (VOLUME_TARGET, 0o755, 0),
        (WORKSPACE_TARGET, 0o755, IMAGE_UID),
    ):
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
        yield entry
    agent = tarfile.TarInfo(AGENT_TARGET.lstrip("/"))
    agent.mode = 0o555
    yield agent


# --- accounts ---------------------------------------------------------------------------------


def _read_accounts(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    if not member.isfile() or member.size > MAX_ACCOUNTS_BYTES:
        return None
    content = tar.extractfile(member)
    return content.read() if content is not None else None


def _with_account(content: bytes | None, number: int, line: str) -> bytes:
    content = content or b""
    if _account_field(content, number, 0) is not None:
        return content
    if content and not content.endswith(b"\n"):
        content += b"\n"
    return content + line.encode() + b"\n"


def _account_field(content: bytes | None, number: int, index: int) -> str | None:
    """Returns a field of the first line in /etc/passwd or /etc/group with this uid or gid.

    Returns None if there is no such line or the field is empty.
    """
    for line in (content or b"").splitlines():
        fields = line.split(b":")
        if len(fields) > 2 and fields[2] == str(number).encode() and fields[0]:
            return fields[index].decode("utf-8", "replace") or None if index < len(fields) else None
    return None


def _unused_name(content: bytes | None) -> str:
    taken = {line.split(b":")[0] for line in (content or b"").splitlines()}
    return USER_NAME if USER_NAME.encode() not in taken else f"{USER_NAME}{IMAGE_UID}"

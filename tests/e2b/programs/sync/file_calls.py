"""The synchronous Python SDK: files. ``file_calls.py URL KEY``; it needs the template ``base``."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import eventually, raises, run  # noqa: E402

import e2b  # noqa: E402
from e2b import Sandbox  # noqa: E402

NEW = hasattr(e2b, "E2B")  # the newest version, which has more to call


class Made:
    """One sandbox for most checks, because they do not disturb each other."""

    sandbox: Sandbox


def check_create() -> None:
    Made.sandbox = Sandbox.create("base", timeout=600)


def check_write_and_read() -> None:
    info = Made.sandbox.files.write("dir/text.txt", "naïve")
    assert (info.name, info.path) == ("text.txt", "/workspace/dir/text.txt")
    assert Made.sandbox.files.read("dir/text.txt") == "naïve"
    assert Made.sandbox.files.read("/workspace/dir/text.txt", format="bytes") == "naïve".encode()
    assert b"".join(Made.sandbox.files.read("dir/text.txt", format="stream")) == "naïve".encode()
    Made.sandbox.files.write("dir/text.txt", b"")
    assert Made.sandbox.files.read("dir/text.txt") == ""


def check_write_large() -> None:
    data = bytes(range(256)) * 40_000
    Made.sandbox.files.write("large.bin", data)
    assert Made.sandbox.files.read("large.bin", format="bytes") == data


def check_write_files() -> None:
    names = ["many/1.txt", "many/two words.txt", "many/drei ü.txt", 'many/quo"te.txt']
    written = Made.sandbox.files.write_files([{"path": name, "data": name} for name in names])
    assert [each.path for each in written] == [f"/workspace/{name}" for name in names]
    assert [Made.sandbox.files.read(name) for name in names] == names
    assert Made.sandbox.files.write_files([]) == []


def check_list_files() -> None:
    Made.sandbox.files.write("tree/a/b.txt", "12345")
    (folder,) = Made.sandbox.files.list("tree")
    assert (folder.name, folder.type.value, folder.path) == ("a", "dir", "/workspace/tree/a")
    found = Made.sandbox.files.list("/workspace/tree", depth=2)
    assert [(each.name, each.size) for each in found if each.type.value == "file"] == [("b.txt", 5)]
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.list("nowhere"))
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.files.list("tree/a/b.txt"))


def check_exists_and_info() -> None:
    Made.sandbox.files.write("info.txt", "1234")
    assert Made.sandbox.files.exists("info.txt")
    assert not Made.sandbox.files.exists("info.txt.not")
    info = Made.sandbox.files.get_info("info.txt")
    assert (info.size, info.permissions, info.owner, info.mode) == (4, "-rw-r--r--", "sandboxuser", 0o644)
    assert abs(info.modified_time.timestamp() - time.time()) < 600
    Made.sandbox.commands.run("ln -sf info.txt link.txt")
    assert Made.sandbox.files.get_info("link.txt").symlink_target == "info.txt"
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.get_info("info.txt.not"))


def check_make_dir() -> None:
    assert Made.sandbox.files.make_dir("made/deep") is True
    assert Made.sandbox.files.make_dir("made/deep") is False


def check_rename() -> None:
    Made.sandbox.files.write("from.txt", "moved")
    assert Made.sandbox.files.rename("from.txt", "to.txt").path == "/workspace/to.txt"
    assert Made.sandbox.files.read("to.txt") == "moved"
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.rename("from.txt", "again.txt"))


def check_remove() -> None:
    Made.sandbox.files.write("removed/inside.txt", "x")
    Made.sandbox.files.remove("removed")
    assert not Made.sandbox.files.exists("removed")
    Made.sandbox.files.remove("removed")


def check_read_of_none() -> None:
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.read("not-there.txt"))
    raises(e2b.InvalidArgumentException, lambda: Made.sandbox.files.read("/tmp"))
    raises(e2b.SandboxException, lambda: Made.sandbox.files.write("/etc/passwd", "x"))


def check_watch_dir() -> None:
    Made.sandbox.files.make_dir("watched")
    handle = Made.sandbox.files.watch_dir("watched", recursive=True)
    Made.sandbox.files.write("watched/new.txt", "1")
    seen = []

    def found() -> bool:
        seen.extend(handle.get_new_events())
        return {("new.txt", "create"), ("new.txt", "write")} <= {
            (each.name, each.type.value) for each in seen
        }

    eventually(found)
    assert not [each for each in seen if each.name.startswith(".sandlot")], "ours are not shown"
    Made.sandbox.files.remove("watched/new.txt")
    eventually(lambda: "remove" in [each.type.value for each in handle.get_new_events()])
    handle.stop()
    raises(e2b.NotFoundException, lambda: Made.sandbox.files.watch_dir("not-watched"))


def check_links() -> None:
    Made.sandbox.files.write("linked.txt", "by a link")
    url = Made.sandbox.download_url("linked.txt")
    assert urllib.request.urlopen(url).read() == b"by a link"
    assert urllib.request.urlopen(Made.sandbox.download_url("linked.txt", use_signature_expiration=60)).read()
    expired = Made.sandbox.download_url("linked.txt", use_signature_expiration=-1)
    for wrong in (expired, url[:-2] + "AA", url.replace("linked", "connected")):
        assert raises(urllib.error.HTTPError, lambda wrong=wrong: urllib.request.urlopen(wrong)).code == 401
    upload = Made.sandbox.upload_url("uploaded.txt", use_signature_expiration=60)
    request = urllib.request.Request(upload, b"up", {"Content-Type": "application/octet-stream"})
    assert b"/workspace/uploaded.txt" in urllib.request.urlopen(request).read()
    assert Made.sandbox.files.read("uploaded.txt") == "up"


if NEW:

    def check_octet_stream_and_gzip() -> None:
        Made.sandbox.files.write("octets.bin", b"\0\1" * 1000, use_octet_stream=True)
        assert Made.sandbox.files.read("octets.bin", format="bytes") == b"\0\1" * 1000
        Made.sandbox.files.write("packed.txt", "packed" * 100_000, gzip=True)
        assert Made.sandbox.files.read("packed.txt", gzip=True) == "packed" * 100_000
        Made.sandbox.files.write("piecewise.txt", iter([b"a" * 70_000, b"b"]))
        assert Made.sandbox.files.get_info("piecewise.txt").size == 70_001

    def check_no_file_metadata() -> None:
        raises(e2b.TemplateException, lambda: Made.sandbox.files.write("m.txt", "x", metadata={"a": "b"}))


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())

"""What the tools of the images fetch, as files that any web server can serve: a package index, an npm registry, a git
repository, a Debian repository and a text.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME = "hello-sandlot"
WHEEL = "hello_sandlot-1.0-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """A wheel with one module, and a program of it."""
    info = "hello_sandlot-1.0.dist-info"
    files = {
        "hello_sandlot.py": "def main():\n    print('hello from a package')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nhello-sandlot = hello_sandlot:main\n",
    }
    record = ""
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text.encode())}\n"
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return folder / WHEEL


def write_all(folder: Path, npm_url: str) -> None:
    """``npm_url``: where the folder will be served, because an npm registry names whole addresses."""
    (folder / "hello.txt").write_text("hello from outside\n")
    write_wheel(folder)
    index = folder / "simple" / NAME
    index.mkdir(parents=True)
    (index / "index.html").write_text(f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>')
    _write_npm(folder, npm_url)
    _write_git(folder)
    _write_debian(folder / "debian")


def _write_npm(folder: Path, url: str) -> None:
    package = {"name": NAME, "version": "1.0.0", "bin": {NAME: "main.js"}}
    with tarfile.open(folder / f"{NAME}.tgz", "w:gz") as tar:
        for name, text in (
            ("package.json", json.dumps(package)),
            ("main.js", "#!/usr/bin/env node\nconsole.log('hello from npm')\n"),
        ):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512((folder / f"{NAME}.tgz").read_bytes()).digest()).decode()
    dist = {"tarball": f"{url}/{NAME}.tgz", "integrity": f"sha512-{digest}"}
    document = {
        "name": NAME,
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {**package, "dist": dist}},
    }
    (folder / "npm").mkdir()
    (folder / "npm" / NAME).write_text(json.dumps(document))


def _write_git(folder: Path) -> None:
    def git(*arguments: str, cwd: Path) -> None:
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True)

    work = folder / "work"
    work.mkdir()
    (work / "read.me").write_text("hello from git\n")
    git("init", "-q", cwd=work)
    git("add", ".", cwd=work)
    git("commit", "-q", "-m", "first", cwd=work)
    git("clone", "-q", "--bare", "work", "repository.git", cwd=folder)
    git("update-server-info", cwd=folder / "repository.git")  # then plain files are enough


def _write_debian(folder: Path) -> None:
    control = folder / "made/DEBIAN"
    control.mkdir(parents=True)
    fields = f"Package: {NAME}\nVersion: 1.0\nArchitecture: all\nMaintainer: Ada <ada@example.com>\n"
    (control / "control").write_text(fields + "Description: a test\n")
    package = folder / f"{NAME}_1.0_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", str(folder / "made"), str(package)], check=True, capture_output=True
    )
    content = package.read_bytes()
    place = (
        f"Filename: ./{package.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
    )
    (folder / "Packages").write_text(f"{fields}{place}Description: a test\n")


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None: ...


@contextlib.contextmanager
def serving(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    server.daemon_threads = True
    if tls is not None:
        # The handshake is for the connection's own thread: here, one slow client would hold up all others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Templates built by E2B's SDK: they become environments, and stay ones after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from sandlot.domain.e2b.names import key_for_e2b
from tests.e2b.clients import NEWEST, Found, checks_in, run
from tests.e2b.conftest import E2B_KEY, SERVER_KEY
from tests.e2b.method_table import assert_all_called
from tests.faults.rig import ServerProcess

pytestmark = [pytest.mark.docker, pytest.mark.timeout(450)]

PROGRAM = "build_calls.py"
HASH = "ab" * 32


@dataclass
class Built:
    server: ServerProcess
    found: Found


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    server = ServerProcess(api_key=SERVER_KEY, e2b_builds="1", max_upload_bytes="65536")
    try:
        asyncio.run(server.start())
        answer = call(server, "POST", "/v1/keys", json={"name": "user", "tenant": "user"})
        found = run(NEWEST, PROGRAM, server.url, E2B_KEY, key_for_e2b(answer.json()["secret"]))
        yield Built(server, found)
    finally:
        asyncio.run(server.clean())
        remove_images(server)


def remove_images(server: ServerProcess) -> None:
    """Remove what was built, and what was prepared of it. What was built on others goes first."""
    ours = ("images", "--no-trunc", "--quiet", "--filter", "label=sandlot.template")
    left = server.docker(*ours).split()
    while left:
        for image in left:
            with contextlib.suppress(subprocess.CalledProcessError):  # another one is built on it
                server.docker("rmi", "--force", image)
        before, left = left, server.docker(*ours).split()
        assert len(left) < len(before), f"images cannot be removed: {left}"


def call(server: ServerProcess, method: str, path: str, **options: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {SERVER_KEY}"}) as http:
        return http.request(method, path, **options)


@pytest.mark.parametrize("check", checks_in(PROGRAM))
def test_build(built: Built, check: str) -> None:
    built.found.assert_passed(check)


@pytest.mark.parametrize("flavour", ["sync", "async"])
def test_each_method_that_works_is_called(built: Built, flavour: str) -> None:
    assert_all_called(__file__, flavour, [built.found])


def announced(server: ServerProcess, name: str) -> tuple[str, str]:
    """The build's id, and where the files of HASH go."""
    answer = call(server, "POST", "/v3/templates", json={"name": name})
    assert answer.status_code == 202, answer.text
    link = call(server, "GET", f"/templates/{name}/files/{HASH}").json()["url"]
    return answer.json()["buildID"], link


def started(server: ServerProcess, name: str, build_id: str) -> str:
    """Why a build of one COPY failed."""
    step = {"type": "COPY", "args": ["a", "/a", "", ""], "filesHash": HASH}
    path = f"/v2/templates/{name}/builds/{build_id}"
    answer = call(server, "POST", path, json={"fromImage": "sandlot/slim", "steps": [step]})
    assert answer.status_code == 202, answer.text
    while True:
        status = call(server, "GET", f"/templates/{name}/builds/{build_id}/status").json()
        if status["status"] in ("ready", "error"):
            return str(status.get("reason", {}).get("message", ""))


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("../../etc/passwd", tarfile.REGTYPE, "outside the folder"),
        ("/etc/passwd", tarfile.REGTYPE, "outside the folder"),
        ("device", tarfile.CHRTYPE, "no file, folder or link"),
    ],
)
def test_an_archive_cannot_leave_its_folder(built: Built, name: str, kind: bytes, says: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as out:
        member = tarfile.TarInfo(name)
        member.type = kind
        out.addfile(member)
    build_id, link = announced(built.server, "hostile")
    assert httpx.put(link, content=archive.getvalue()).status_code == 200
    assert says in started(built.server, "hostile", build_id)


def test_a_bomb_is_refused(built: Built) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as out:
        member = tarfile.TarInfo("a")
        member.size = 1024 * 1024
        out.addfile(member, io.BytesIO(bytes(member.size)))
    assert len(archive.getvalue()) < 65536
    build_id, link = announced(built.server, "bomb")
    assert httpx.put(link, content=archive.getvalue()).status_code == 200
    assert "larger than the server takes" in started(built.server, "bomb", build_id)


def test_uploads_need_their_link_and_are_bounded(built: Built) -> None:
    build_id, link = announced(built.server, "uploads")
    assert httpx.put(link[:-1] + ("0" if link[-1] != "0" else "1"), content=b"x").status_code == 401
    assert httpx.put(link.replace("uploads", "others"), content=b"x").status_code == 401
    assert httpx.put(link, content=bytes(65537)).status_code == 413
    assert httpx.put(link, content=b"no tar").status_code == 200
    assert "cannot be read" in started(built.server, "uploads", build_id)
    gone = httpx.put(link, content=b"x")
    assert (gone.status_code, "announced" in gone.text) == (404, True), "the build is over"
    assert not list(built.server.data_dir.glob("templates/uploads/*")), "its files are gone"


def test_builds_that_wait_are_bounded(built: Built) -> None:
    for number in range(30):
        answer = call(built.server, "POST", "/v3/templates", json={"name": f"waits-{number}"})
        if answer.status_code != 202:
            break
    assert answer.status_code == 429
    assert number < 17


def test_templates_outlive_a_restart(built: Built) -> None:
    """The last one: the builds above are forgotten by it."""
    built.found.assert_passed("build")
    asyncio.run(built.server.terminate())
    asyncio.run(built.server.start())
    names = {each["name"] for each in call(built.server, "GET", "/v1/environments").json()["environments"]}
    assert {"built", "async-built"} <= names
    answer = call(built.server, "POST", "/v1/sessions", json={"environment": "built"})
    assert answer.status_code == 201, answer.text

"""Preparing images on a real engine, without running them."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from sandlot.domain.errors import EngineProblem, ImageMissing, InvalidRequest
from sandlot.providers.docker.engine import Engine
from sandlot.providers.docker.images.preparing import ImagePreparer, prepared_tag

pytestmark = pytest.mark.docker

MakeImage = Callable[..., Awaitable[str]]
Entry = tuple[str, bytes | None, dict[str, Any]]

PASSWD: Entry = ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", {})


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    yield engine
    await engine.close()


@pytest.fixture
async def make_image(engine: Engine) -> AsyncIterator[MakeImage]:
    """Makes an image out of files. No registry is needed, and nothing in it has to be a program."""
    made: list[str] = []

    async def make(*entries: Entry, changes: tuple[str, ...] = ()) -> str:
        reference = f"sandlot-test:{secrets.token_hex(8)}"
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content, fields in entries:
                info = tarfile.TarInfo(name)
                info.type = tarfile.REGTYPE if content is not None else tarfile.DIRTYPE
                info.mode, info.size = 0o755, len(content or b"")
                for field, value in fields.items():
                    setattr(info, field, value)
                tar.addfile(info, io.BytesIO(content or b""))
        repository, _, tag = reference.partition(":")
        parameters = {"fromSrc": "-", "repo": repository, "tag": tag}
        if changes:
            parameters["changes"] = "\n".join(changes)
        async with engine._docker._query(
            "images/create",
            "POST",
            params=parameters,
            data=io.BytesIO(buffer.getvalue()),
            headers={"Content-Type": "application/x-tar"},
        ) as response:
            assert b'"error"' not in await response.read()
        made.append(reference)
        return reference

    yield make
    for reference in made:
        image_id = (await engine.inspect_image(reference))["Id"]
        # By label and not by tag: the loser of a race has none.
        for name in (*await prepared_ids(engine, image_id, tagged=False), reference):
            try:
                await engine._docker.images.delete(name, force=True)
            except Exception as error:
                if getattr(error, "status", None) != 404:
                    raise


async def file_system(engine: Engine, image_id: str) -> dict[str, tuple[tarfile.TarInfo, bytes | None]]:
    name = f"sandlot-test-{secrets.token_hex(8)}"
    await engine.create(name, {"Image": image_id, "Cmd": ["x"], "HostConfig": {"NetworkMode": "none"}})
    try:
        async with engine.export(name) as content:
            exported = await content.read()
    finally:
        await engine.remove(name)
    found: dict[str, tuple[tarfile.TarInfo, bytes | None]] = {}
    with tarfile.open(fileobj=io.BytesIO(exported)) as tar:
        for member in tar:
            content_file = tar.extractfile(member) if member.isreg() else None
            found[member.name.rstrip("/")] = (member, content_file.read() if content_file else None)
    return found


async def scratch_containers(engine: Engine, reference: str) -> list[str]:
    tag = prepared_tag((await engine.inspect_image(reference))["Id"])
    return [name for found in await engine.list({}) for name in found["Names"] if tag in name]


async def image_id_of(engine: Engine, reference: str) -> str:
    return str((await engine.inspect_image(reference))["Id"])


async def prepared_ids(engine: Engine, source_id: str, *, tagged: bool = True) -> set[str]:
    filters = json.dumps({"label": [f"sandlot.prepared-from={source_id}"]})
    images = await engine._docker._query_json("images/json", params={"filters": filters})
    return {image["Id"] for image in images if image["RepoTags"] or not tagged}


async def test_a_workspace_with_files_and_setuid_programs(engine: Engine, make_image: MakeImage) -> None:
    reference = await make_image(
        PASSWD,
        ("etc/group", b"root:x:0:\n", {}),
        ("usr/bin/bash", b"elf", {}),
        ("usr/bin/su", b"su", {"mode": 0o4755}),
        ("usr/bin/su2", b"", {"type": tarfile.LNKTYPE, "linkname": "usr/bin/su", "mode": 0o4755}),
        ("usr/bin/wall", b"wall", {"mode": 0o2755, "gid": 5}),
        ("workspace", None, {}),
        ("workspace/notes.txt", b"hello", {"mode": 0o640}),
        ("workspace/deep/er", None, {}),
        ("workspace/deep/er/file", b"deep", {}),
        ("workspace/link", None, {"type": tarfile.SYMTYPE, "linkname": "../etc/passwd"}),
        (
            "workspace/same",
            b"",
            {"type": tarfile.LNKTYPE, "linkname": "workspace/notes.txt", "mode": 0o640},
        ),
        changes=('CMD ["bash"]', "ENV COLOUR=green", "LABEL their=own", "WORKDIR /workspace"),
    )
    prepared = await ImagePreparer(engine).prepare(reference)
    assert (prepared.user, prepared.home, prepared.has_bash) == ("sandboxuser", "/workspace", True)

    config = (await engine.inspect_image(prepared.id))["Config"]
    assert config["Cmd"] == ["bash"]
    assert "COLOUR=green" in config["Env"]
    assert config["Labels"]["their"] == "own"
    assert config["Labels"]["sandlot.prepared-from"] == await image_id_of(engine, reference)

    files = await file_system(engine, prepared.id)
    assert (files["workspace"][0].issym(), files["workspace"][0].linkname) == (True, "/sandbox/workspace")
    for name, content, mode in (("notes.txt", b"hello", 0o640), ("deep/er/file", b"deep", 0o755)):
        member, found = files[f"sandbox/workspace/{name}"]
        assert (member.uid, member.gid, member.mode & 0o7777, found) == (1000, 1000, mode, content)
    assert files["sandbox/workspace/link"][0].linkname == "../etc/passwd"
    assert files["sandbox/workspace/same"][0].islnk()
    assert not any(name.startswith("workspace/") for name in files)
    assert not [name for name, (member, _) in files.items() if member.mode & 0o6000 and not member.issym()]
    assert files["usr/bin/su"][1] == b"su"
    assert (files[".sandlot/link"][0].mode & 0o7777, files[".sandlot/link"][0].uid) == (0o700, 0)
    assert b"sandboxuser:x:1000:1000::/workspace:/bin/bash\n" in (files["etc/passwd"][1] or b"")


async def test_prepared_twice_is_prepared_once(engine: Engine, make_image: MakeImage) -> None:
    reference = await make_image(PASSWD)
    first, second = ImagePreparer(engine), ImagePreparer(engine)
    # Twice in one process (shared), and by another at the same time (a harmless race).
    results = await asyncio.gather(
        first.prepare(reference), first.prepare(reference), second.prepare(reference)
    )
    again = await first.prepare(reference)
    assert await prepared_ids(engine, await image_id_of(engine, reference)) == {again.id}
    assert all(result.user == again.user for result in results)
    assert again == await ImagePreparer(engine).prepare(reference)


async def test_an_image_without_bash(engine: Engine, make_image: MakeImage) -> None:
    prepared = await ImagePreparer(engine).prepare(await make_image(PASSWD, ("bin/sh", b"elf", {})))
    assert prepared.has_bash is False
    files = await file_system(engine, prepared.id)
    assert (files["etc/passwd"][1] or b"").endswith(b"sandboxuser:x:1000:1000::/workspace:/bin/sh\n")


async def test_an_image_with_a_user_of_its_own(engine: Engine, make_image: MakeImage) -> None:
    passwd: Entry = ("etc/passwd", b"node:x:1000:1000::/home/node:/bin/bash\n", {})
    prepared = await ImagePreparer(engine).prepare(await make_image(passwd))
    assert (prepared.user, prepared.home) == ("node", "/home/node")


@pytest.mark.parametrize(
    ("entries", "changes", "why"),
    [
        ([PASSWD], ("VOLUME /data",), "declares VOLUME /data"),
        ([PASSWD], ("LABEL sandlot.owner=me",), "reserved for sandboxes"),
        ([PASSWD, ("sandbox/x", b"", {})], (), "contains /sandbox"),
    ],
)
async def test_unfit_images(
    engine: Engine, make_image: MakeImage, entries: list[Entry], changes: tuple[str, ...], why: str
) -> None:
    reference = await make_image(*entries, changes=changes)
    with pytest.raises(InvalidRequest, match=why):
        await ImagePreparer(engine).prepare(reference)
    assert not await scratch_containers(engine, reference)


async def test_a_missing_image_says_what_to_do(engine: Engine) -> None:
    with pytest.raises(ImageMissing, match="docker pull sandlot-test/none:1"):
        await ImagePreparer(engine).prepare("sandlot-test/none:1")
    with pytest.raises(ImageMissing, match="could not be pulled"):
        await ImagePreparer(engine, pull=True, pull_seconds=60).prepare("127.0.0.1:9/none:1")


async def test_s14_named_by_digest_is_that_image_or_none(engine: Engine, make_image: MakeImage) -> None:
    name, other = await make_image(PASSWD), await make_image(PASSWD, ("etc/other", b"x", {}))
    image_id, other_id = [await image_id_of(engine, one) for one in (name, other)]
    preparer = ImagePreparer(engine)
    prepared = await preparer.prepare(f"{name}@{image_id}")
    assert prepared.id in await prepared_ids(engine, image_id)
    with pytest.raises(ImageMissing) as caught:
        await preparer.prepare(f"{name}@{other_id}")
    assert image_id in caught.value.message


async def test_giving_up_leaves_nothing(engine: Engine, make_image: MakeImage) -> None:
    reference = await make_image(PASSWD, ("workspace/big", secrets.token_bytes(16 * 2**20), {}))
    preparer = ImagePreparer(engine)
    task = asyncio.create_task(preparer.prepare(reference))
    await asyncio.sleep(0.1)
    await preparer.close()
    with pytest.raises(EngineProblem, match="the worker is shutting down"):
        await task
    assert not await scratch_containers(engine, reference)

"""E2B's backend for Deep Agents, as agents use it. ``langchain_calls.py URL KEY``."""

from __future__ import annotations

import os
import sys

URL, KEY = sys.argv[1:3]
os.environ.update(E2B_API_KEY=KEY, E2B_API_URL=URL, E2B_SANDBOX_URL=URL)

from checking import run  # noqa: E402
from langchain_e2b import AsyncE2BSandbox, E2BSandbox  # noqa: E402

from e2b import AsyncSandbox, Sandbox  # noqa: E402

HOME = "/workspace"


class Made:
    sandbox: Sandbox
    backend: E2BSandbox


def check_execute() -> None:
    Made.sandbox = Sandbox.create(timeout=200)
    Made.backend = E2BSandbox(sandbox=Made.sandbox, workdir=HOME)
    assert Made.backend.id == Made.sandbox.sandbox_id
    answer = Made.backend.execute("echo out; echo err >&2; pwd; exit 3")
    assert answer.exit_code == 3
    assert "out" in answer.output
    assert "err" in answer.output
    assert HOME in answer.output
    assert Made.backend.execute("sleep 30", timeout=1).exit_code == 124


def check_files() -> None:
    written = Made.backend.write(f"{HOME}/notes/a.txt", "one\ntwo\n")
    assert written.error is None, written
    assert Made.backend.write(f"{HOME}/notes/a.txt", "again").error is not None, "it exists"
    assert "two" in str(Made.backend.read(f"{HOME}/notes/a.txt"))
    edited = Made.backend.edit(f"{HOME}/notes/a.txt", "two", "zwei")
    assert edited.error is None, edited
    assert "zwei" in str(Made.backend.grep("zwei", path=HOME))
    assert "a.txt" in str(Made.backend.glob("**/*.txt", path=HOME))
    assert "a.txt" in str(Made.backend.ls(f"{HOME}/notes"))


def check_transfers() -> None:
    data = bytes(range(256)) * 100
    (uploaded,) = Made.backend.upload_files([(f"{HOME}/data.bin", data)])
    assert uploaded.error is None, uploaded
    found, missing = Made.backend.download_files([f"{HOME}/data.bin", f"{HOME}/missing"])
    assert found.content == data
    assert missing.error is not None


async def check_async() -> None:
    backend = AsyncE2BSandbox(sandbox=await AsyncSandbox.connect(Made.sandbox.sandbox_id), workdir=HOME)
    assert "hi" in (await backend.aexecute("echo hi")).output
    assert (await backend.awrite(f"{HOME}/async.txt", "async")).error is None
    assert "async" in str(await backend.aread(f"{HOME}/async.txt"))
    assert "async.txt" in str(await backend.als(HOME))


def check_the_end() -> None:
    assert Made.sandbox.kill()


run(globals())

"""The bridge as a program on this machine, with the library that it has in a sandbox, asked by its socket."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sandlot.domain.code.contexts import MAX_CONTEXTS
from sandlot.worker.contexts.program import bridge_request

# Where the request has the folder, the workspace and the number of contexts.
FOLDER, WORKSPACE, CONTEXTS = 4, 5, 6


class Asked:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def __call__(self, op: str, context: str = "", **more: Any) -> dict[str, Any]:
        lines = await self.lines({"op": op, "context": context, **more})
        assert isinstance(lines[0], dict)
        return lines[0]

    async def lines(self, request: dict[str, Any]) -> list[Any]:
        """The answer's lines. The last one of a cell is its status."""
        reader, writer = await asyncio.open_unix_connection(self._folder + "/socket")
        writer.write(json.dumps(request).encode() + b"\n")
        lines = (await reader.read()).splitlines()
        writer.close()
        return [line.decode() if line.startswith(b"=") else json.loads(line) for line in lines]


@asynccontextmanager
async def bridge(contexts: int) -> AsyncIterator[Asked]:
    argv = list(bridge_request().argv or ())
    assert argv[CONTEXTS] == str(MAX_CONTEXTS)
    # The path of a kernel's socket may not be longer than about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="sandlot-test-", dir="/tmp") as folder:
        argv[0], argv[FOLDER], argv[WORKSPACE], argv[CONTEXTS] = sys.executable, folder, folder, str(contexts)
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        asked = Asked(folder)
        try:
            assert b'"bash"' in await process.stdout.readline()
            yield asked
            for context in (await asked("list"))["contexts"]:
                await asked("delete", context["id"])
        finally:
            process.kill()
            await process.wait()


async def test_only_so_many_contexts() -> None:
    async with bridge(2) as asked:
        for name in ("first", "second"):
            made = await asked("create", name, language="bash")
            assert (made["context"]["id"], made["context"]["restarts"]) == (name, 0)
        again = await asked("create", "second", language="bash")
        assert "context" in again
        refused = await asked("create", "third", language="bash")
        assert (refused["error"], "Delete one" in refused["message"]) == ("limit", True)
        # Nor does a language's own one come into being with a cell.
        event, status = await asked.lines({"op": "run", "context": "bash", "language": "bash", "code": ":"})
        assert (event["name"], status) == ("ContextRefused", "=1")
        await asked("delete", "first")
        assert "context" in await asked("create", "third", language="bash")


async def test_requests_that_are_none_are_refused_and_the_next_one_is_answered() -> None:
    async with bridge(2) as asked:
        assert (await asked("restart", "nobody"))["error"] == "unknown"
        assert (await asked("create", "own", language="cobol"))["error"] == "language"
        assert (await asked("create", "own", language="bash", cwd="/nowhere"))["error"] == "cwd"
        for request in ({"op": "create", "context": 7}, {"op": "run", "context": "bash"}, {}):
            assert await asked.lines(request) == []
        await asked("create", "own", language="bash")
        assert (await asked("unheard-of", "own"))["error"] == "bad_request"
        run = {
            "op": "run",
            "context": "own",
            "language": "bash",
            "code": "echo $GREETING",
            "env": {"GREETING": "hi"},
        }
        *_, text, status = await asked.lines(run)
        assert (text, status) == ({"type": "stdout", "text": "hi\n"}, "=0")

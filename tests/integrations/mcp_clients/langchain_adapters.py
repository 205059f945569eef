"""Run by .venv-mcp1: langchain-mcp-adapters, which stands on the protocol's library before its version 2.

The argument is a connection as ``MultiServerMCPClient`` takes it. Prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from langchain_mcp_adapters.callbacks import CallbackContext, Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main(connection: dict[str, Any]) -> dict[str, Any]:
    progress: list[str | None] = []

    async def on_progress(
        done: float, total: float | None, message: str | None, context: CallbackContext
    ) -> None:
        progress.append(message)

    callbacks = Callbacks(on_progress=on_progress)
    client = MultiServerMCPClient({"sandlot": connection}, callbacks=callbacks)
    async with client.session("sandlot") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session, callbacks=callbacks)}

        async def call(name: str, **arguments: Any) -> dict[str, Any]:
            message = await tools[name].ainvoke(
                {"type": "tool_call", "id": "1", "name": name, "args": arguments}
            )
            return {
                "status": message.status,
                "text": "\n".join(part["text"] for part in message.content if part["type"] == "text"),
                "data": (message.artifact or {}).get("structured_content"),
            }

        calls = {
            "set": await call("execute", command="cd /workspace; mkdir -p deep; cd deep; export COLOUR=blue"),
            "get": await call("execute", command="echo begin; sleep 3; pwd; echo $COLOUR; exit 0"),
            "write": await call("write_file", path="a.txt", content="words"),
            "read": await call("read_file", path="a.txt"),
            "missing": await call("read_file", path="none.txt"),
            "failed": await call("execute", command="false"),
            "wrong": await call("execute", command="true", timeout_s=100_000),
        }
        return {
            "versions": {name: version(name) for name in ("mcp", "langchain-mcp-adapters")},
            "tools": sorted(tools),
            "calls": calls,
            "progress": progress,
        }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))

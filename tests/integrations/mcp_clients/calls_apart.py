"""Run by .venv-mcp1: as agents mostly use the adapters, with a connection of its own for each call.

The argument is a connection as ``MultiServerMCPClient`` takes it. Prints the two calls' text as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(connection: dict[str, Any]) -> list[str]:
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"sandlot": connection}).get_tools()}
    texts = []
    for command in ("export COLOUR=blue; echo set", "echo [$COLOUR]"):
        content = await tools["execute"].ainvoke({"command": command})
        texts.append(content[0]["text"])
    return texts


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))

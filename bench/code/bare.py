"""A Jupyter kernel on the host, asked as directly as Jupyter's own library can."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

READY_WITHIN_S = 60


class BareKernel:
    def __init__(self, client: AsyncKernelClient) -> None:
        self._client = client

    async def timed(self, code: str, value: str) -> float:
        """Run a cell until its value, its reply and its end have come. Returns the milliseconds."""
        begin = time.perf_counter()
        asked = self._client.execute(code)
        found = None
        while True:
            message = await self._client.get_iopub_msg(timeout=READY_WITHIN_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "execute_result":
                found = message["content"]["data"]["text/plain"]
            elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        await self._client.get_shell_msg(timeout=READY_WITHIN_S)
        spent = time.perf_counter() - begin
        assert found == value, found
        return spent * 1000


@asynccontextmanager
async def bare_kernel() -> AsyncIterator[BareKernel]:
    manager = AsyncKernelManager(kernel_name="python3")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=READY_WITHIN_S)
        yield BareKernel(client)
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)

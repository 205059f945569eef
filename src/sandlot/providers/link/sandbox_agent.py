"""The agent's half of a sandbox: every part of the ``Sandbox`` contract that the agent performs.

A provider adds what only the engine knows: the id, the tier, and the end of the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandlot.domain.computer import ExecSummary, ShellSummary
from sandlot.domain.errors import InvalidRequest
from sandlot.domain.execution import ExecRequest, ExecResult
from sandlot.domain.ids import is_exec_id, is_shell_name
from sandlot.providers.base import Health, OnOutput, OnStart
from sandlot.providers.link.agent_files import AgentFiles
from sandlot.providers.link.calls import ask, ask_for_list
from sandlot.providers.link.executions import AgentExecution, Run, attach_request, start_request
from sandlot.providers.link.link import AgentLink
from sandlot.providers.link.port_listener import AgentPortListener, listen
from sandlot.providers.link.ports import PortStream, connect
from sandlot.wire.agent_messages import (
    list_of,
    parse_exec_state,
    parse_info,
    parse_shell_state,
    parse_signalled,
)

# The most entries in one list. An agent remembers 10,000 finished execs and has up to 64 shells.
MAX_EXECS: Final = 20_000
MAX_SHELLS: Final = 1000


def _ignore_body(body: dict[str, Any]) -> None:
    return None


class SandboxAgent:
    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._files = AgentFiles(link)

    @property
    def files(self) -> AgentFiles:
        return self._files

    @property
    def lost(self) -> bool:
        return self._link.failure is not None

    async def bind(self, *, env: Mapping[str, str], max_execs: int | None = None) -> None:
        request: dict[str, Any] = {"op": "bind", "env": dict(env)}
        if max_execs is not None:
            request["max_execs"] = max_execs
        await ask(self._link, request, _ignore_body)

    async def limit_memory(self, memory_bytes: int) -> None:
        """Changes the memory limit that the agent enforces where no kernel does (gVisor)."""
        await ask(self._link, {"op": "limits", "memory_bytes": memory_bytes}, _ignore_body)

    async def start(
        self, request: ExecRequest, *, offset: int = 0, on_start: OnStart | None = None
    ) -> AgentExecution:
        open_request = start_request(request, offset)
        execution = await AgentExecution.open(
            self._link, request.exec_id, open_request, offset=offset, stdin=request.stdin
        )
        if on_start is not None:
            on_start(execution.started)
        return execution

    async def attach(self, exec_id: str, *, offset: int = 0) -> AgentExecution:
        # stdin stays open: the exec would read an END here as its end of file.
        open_request = attach_request(exec_id, offset)
        return await AgentExecution.open(self._link, exec_id, open_request, offset=offset, stdin=True)

    async def run(
        self,
        request: ExecRequest,
        stdin: bytes | None = None,
        *,
        on_start: OnStart | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        return await Run(self._link, request, stdin, on_start=on_start, on_output=on_output).result()

    async def signal(self, exec_id: str, signal: int) -> int:
        if not 1 <= signal <= 64:
            raise InvalidRequest("signal must be a number from 1 to 64.")
        request = {"op": "exec.signal", "exec_id": _checked_exec_id(exec_id), "signal": signal}
        return await ask(self._link, request, parse_signalled)

    async def kill(self, exec_id: str) -> int:
        return await ask(
            self._link, {"op": "exec.kill", "exec_id": _checked_exec_id(exec_id)}, parse_signalled
        )

    async def resize(self, exec_id: str, *, rows: int, cols: int) -> None:
        if not (0 < rows <= 65_535 and 0 < cols <= 65_535):
            raise InvalidRequest("rows and cols must be between 1 and 65,535.")
        request = {"op": "exec.resize", "exec_id": _checked_exec_id(exec_id), "rows": rows, "cols": cols}
        await ask(self._link, request, _ignore_body)

    async def list_execs(self) -> list[ExecSummary]:
        states = await ask_for_list(
            self._link, {"op": "exec.list"}, lambda body: list_of(body, "execs", parse_exec_state), MAX_EXECS
        )
        return [
            ExecSummary(
                state.exec_id,
                state.running,
                state.shell,
                state.command,
                None if state.started_ms is None else state.started_ms / 1000,
                state.output_end,
                state.exit_code,
                state.duration_ms,
            )
            for state in states
        ]

    async def forget(self, exec_id: str) -> None:
        await ask(self._link, {"op": "exec.forget", "exec_id": _checked_exec_id(exec_id)}, _ignore_body)

    async def list_shells(self) -> list[ShellSummary]:
        states = await ask_for_list(
            self._link,
            {"op": "shell.list"},
            lambda body: list_of(body, "shells", parse_shell_state),
            MAX_SHELLS,
        )
        return [ShellSummary(state.name, state.pid, state.cwd, state.busy) for state in states]

    async def close_shell(self, name: str) -> None:
        if not is_shell_name(name):
            raise InvalidRequest("Invalid shell name.")
        await ask(self._link, {"op": "shell.close", "name": name}, _ignore_body)

    async def connect(self, address: str, *, network: str = "tcp") -> PortStream:
        return await connect(self._link, address, network)

    async def listen(self, address: str) -> AgentPortListener:
        return await listen(self._link, address)

    async def health(self) -> Health:
        info = await ask(self._link, {"op": "info"}, parse_info)
        return Health(
            agent=info.agent,
            uptime_ms=info.uptime_ms,
            execs_running=info.execs_running,
            processes=info.processes,
            memory_used_bytes=info.memory_used_bytes,
            memory_limit_bytes=info.memory_limit_bytes,
            oom_kills=info.oom_kills,
        )

    async def wait_lost(self) -> str:
        return await self._link.wait_lost()


def _checked_exec_id(exec_id: str) -> str:
    if not is_exec_id(exec_id):
        raise InvalidRequest("Invalid exec id.")
    return exec_id

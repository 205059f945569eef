"""Finds the exec behind the number of a process."""

from __future__ import annotations

from sandlot.api.e2b.calls import SandboxCall
from sandlot.api.e2b.process.bodies import Selector
from sandlot.domain.computer import ExecSummary
from sandlot.domain.e2b.names import pid_of
from sandlot.domain.errors import InvalidRequest, NotFound, Unsupported


def pid_in(selector: Selector) -> int:
    if selector.tag is not None:
        raise Unsupported("Processes have no tags here. Name the process by its pid.")
    if selector.pid is None:
        raise InvalidRequest("Name the process by its pid.")
    return selector.pid


async def summary_of(call: SandboxCall, selector: Selector) -> ExecSummary:
    """The process with this number, running or ended. ``NotFound`` if there is none."""
    pid = pid_in(selector)
    found = [each for each in await call.service.list_execs(call.session_id) if pid_of(each.exec_id) == pid]
    if not found:
        raise NotFound(f"process with pid {pid} not found")
    return next((each for each in found if each.running), found[-1])


async def running(call: SandboxCall, selector: Selector) -> str:
    """The id of the exec, which runs. ``NotFound`` otherwise."""
    summary = await summary_of(call, selector)
    if not summary.running:
        raise NotFound(f"process with pid {selector.pid} has ended")
    return summary.exec_id

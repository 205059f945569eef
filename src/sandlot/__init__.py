"""Sandlot: self-hosted sandboxes for AI agents.

The names below are imported when they are first used, so that ``import sandlot`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from sandlot.client.artifacts.async_artifacts import AsyncArtifacts, AsyncSessionArtifacts
    from sandlot.client.async_client import AsyncClient
    from sandlot.client.async_exec import AsyncExec
    from sandlot.client.async_files import AsyncFiles
    from sandlot.client.async_network import AsyncNetwork
    from sandlot.client.async_session import AsyncSession, AsyncShell
    from sandlot.client.classic.clients import BatchSandboxClient, SandboxClient
    from sandlot.client.classic.lifecycle import Lifecycle
    from sandlot.client.code.async_code import AsyncCode, AsyncCodeContext
    from sandlot.client.code.code_result import CodeFailed, CodeResult
    from sandlot.client.result import CommandFailed, Result
    from sandlot.client.sync.artifacts import Artifacts, SessionArtifacts
    from sandlot.client.sync.client import Client
    from sandlot.client.sync.code import Code, CodeContext
    from sandlot.client.sync.one_off import run
    from sandlot.client.sync.session import Exec, Files, Network, Session, Shell
    from sandlot.client.sync.volumes import Volumes
    from sandlot.client.sync.workspace import SessionWorkspace
    from sandlot.client.volumes.async_volumes import AsyncVolumes
    from sandlot.client.workspaces.async_workspace import AsyncSessionWorkspace
    from sandlot.domain import errors
    from sandlot.domain.artifacts.artifact import Artifact
    from sandlot.domain.capacity.limits import LimitChange
    from sandlot.domain.execution import Exited, OnLimit, Output, PtySize, Started, Verdict
    from sandlot.domain.history.events import Event, EventKind
    from sandlot.domain.network.ports import Preview
    from sandlot.domain.session import NEVER
    from sandlot.domain.workspaces.snapshots import Snapshot

__all__ = [
    "NEVER",
    "Artifact",
    "Artifacts",
    "AsyncArtifacts",
    "AsyncClient",
    "AsyncCode",
    "AsyncCodeContext",
    "AsyncExec",
    "AsyncFiles",
    "AsyncNetwork",
    "AsyncSession",
    "AsyncSessionArtifacts",
    "AsyncSessionWorkspace",
    "AsyncShell",
    "AsyncVolumes",
    "BatchSandboxClient",
    "Client",
    "Code",
    "CodeContext",
    "CodeFailed",
    "CodeResult",
    "CommandFailed",
    "Event",
    "EventKind",
    "Exec",
    "Exited",
    "Files",
    "Lifecycle",
    "LimitChange",
    "Network",
    "OnLimit",
    "Output",
    "Preview",
    "PtySize",
    "Result",
    "SandboxClient",
    "Session",
    "SessionArtifacts",
    "SessionWorkspace",
    "Shell",
    "Snapshot",
    "Started",
    "Verdict",
    "Volumes",
    "errors",
    "run",
]

_MODULES = {
    "client.artifacts.async_artifacts": ("AsyncArtifacts", "AsyncSessionArtifacts"),
    "client.async_client": ("AsyncClient",),
    "client.async_exec": ("AsyncExec",),
    "client.code.async_code": ("AsyncCode", "AsyncCodeContext"),
    "client.code.code_result": ("CodeFailed", "CodeResult"),
    "client.async_files": ("AsyncFiles",),
    "client.async_network": ("AsyncNetwork",),
    "client.async_session": ("AsyncSession", "AsyncShell"),
    "client.result": ("CommandFailed", "Result"),
    "client.classic.clients": ("BatchSandboxClient", "SandboxClient"),
    "client.classic.lifecycle": ("Lifecycle",),
    "client.sync.artifacts": ("Artifacts", "SessionArtifacts"),
    "client.sync.client": ("Client",),
    "client.sync.code": ("Code", "CodeContext"),
    "client.sync.one_off": ("run",),
    "client.sync.session": ("Exec", "Files", "Network", "Session", "Shell"),
    "client.sync.volumes": ("Volumes",),
    "client.sync.workspace": ("SessionWorkspace",),
    "client.volumes.async_volumes": ("AsyncVolumes",),
    "client.workspaces.async_workspace": ("AsyncSessionWorkspace",),
    "domain.artifacts.artifact": ("Artifact",),
    "domain.execution": ("Exited", "OnLimit", "Output", "PtySize", "Started", "Verdict"),
    "domain.capacity.limits": ("LimitChange",),
    "domain.history.events": ("Event", "EventKind"),
    "domain.network.ports": ("Preview",),
    "domain.session": ("NEVER",),
    "domain.workspaces.snapshots": ("Snapshot",),
}
_MODULE_OF = {name: f"sandlot.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "errors":
        value: Any = importlib.import_module("sandlot.domain.errors")
    elif name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
    globals()[name] = value  # the next time it is simply there
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

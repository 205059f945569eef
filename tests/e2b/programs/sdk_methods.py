"""Prints the public methods of E2B's SDK as JSON. Properties that hold such a class are left out.

By class, by ``sync`` and ``async``, and by name: under which name ``checking.py`` counts its calls.
"""

from __future__ import annotations

import inspect
import json

import e2b_code_interpreter
from checking import called
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.command_handle import AsyncCommandHandle
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.filesystem.watch_handle import AsyncWatchHandle
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.command_handle import CommandHandle
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from e2b.sandbox_sync.filesystem.watch_handle import WatchHandle
from e2b.sandbox_sync.git import Git

import e2b

CLASSES = {
    "Sandbox": (e2b.Sandbox, e2b.AsyncSandbox),
    "sandbox.commands": (Commands, AsyncCommands),
    "A command's handle": (CommandHandle, AsyncCommandHandle),
    "sandbox.pty": (Pty, AsyncPty),
    "sandbox.files": (Filesystem, AsyncFilesystem),
    "A watch's handle": (WatchHandle, AsyncWatchHandle),
    "sandbox.git": (Git, AsyncGit),
    "Volume": (e2b.Volume, e2b.AsyncVolume),
    "Template": (e2b.Template, e2b.AsyncTemplate),
    "Secret": (e2b.Secret, e2b.AsyncSecret),
    "Code interpreter": (e2b_code_interpreter.Sandbox, e2b_code_interpreter.AsyncSandbox),
}


def methods_of(kind: type) -> dict[str, str]:
    return {
        name: counted_as(kind, name)
        for name in dir(kind)
        if not name.startswith("_")
        and callable(inspect.getattr_static(kind, name, None).__class__)
        and callable(getattr(kind, name))
    }


def counted_as(kind: type, name: str) -> str:
    static = inspect.getattr_static(kind, name)
    if isinstance(static, staticmethod):
        return called(static.__module__, static.__qualname__)
    return called(kind.__module__, f"{kind.__name__}.{name}")


found = {}
for title, kinds in CLASSES.items():
    own = dict(zip(("sync", "async"), map(methods_of, kinds), strict=True))
    if title == "Code interpreter":
        base = methods_of(e2b.Sandbox).keys() | methods_of(e2b.AsyncSandbox).keys()
        own = {flavour: {n: c for n, c in names.items() if n not in base} for flavour, names in own.items()}
    found[title] = own
print(json.dumps(found))

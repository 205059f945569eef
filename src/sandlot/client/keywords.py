"""Rejects unknown keyword arguments with an error that names the likely intended one.

Methods that share their options take them as ``**options``, where only a type checker would notice
a typo. Without these checks, ``run("…", timeot=1)`` would run without a timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sandlot.domain.text.suggestions import did_you_mean

# Names from other sandbox SDKs, and what to use here instead.
COMMAND_HINTS: Final = {
    "on_stdout": "only run() and shell().run() accept it; stream() returns the events",
    "on_stderr": "only run() and shell().run() accept it; stream() returns the events",
    "background": "start() runs a command in the background",
    "envs": "use env={...}",
    "workdir": "use cwd",
    "working_dir": "use cwd",
    "pty": "terminal() runs a command on a terminal",
    "user": "every command runs as the sandbox's one user",
}
_TWO_TIMEOUTS: Final = "use idle_timeout_s and lifetime_s for a session, timeout_s in run() for a command"
SESSION_HINTS: Final = {
    "timeout": _TWO_TIMEOUTS,
    "timeout_s": _TWO_TIMEOUTS,
    "template": "the environment says which image and limits a session gets",
    "image": "the environment says which image a session gets; add your own to the server's registry",
    "envs": "use env={...}",
    "env_vars": "use env={...}",
    "memory": "use limits=LimitChange(memory_bytes=...)",
    "allow_internet_access": "use network='public', or better a list of hosts",
    "allow": "use network=[...]",
    "cpu": "use limits=LimitChange(cpus=...)",
}


def check_keywords(
    method: str,
    given: Iterable[str],
    accepts: Collection[str],
    hints: Mapping[str, str] | None = None,
) -> None:
    """Raise ``TypeError``, as Python does, for the first of ``given`` that is not in ``accepts``.

    ``hints``: what to say about names that other methods or other libraries use.
    """
    for name in given:
        if name in accepts:
            continue
        hint = (hints or {}).get(name)
        suggestion = f": {hint}" if hint is not None else f".{did_you_mean(name, accepts)}"
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{suggestion}")


def resolve_timeout(method: str, timeout_s: float | None, timeout: float | None) -> float | None:
    """Return whichever is given. ``timeout`` is the name in other libraries, also in seconds."""
    if timeout_s is not None and timeout is not None:
        raise TypeError(f"{method}() takes timeout_s or timeout, not both (they mean the same)")
    return timeout_s if timeout is None else timeout

"""Keyword arguments that no method takes are errors, which name the one that was meant.

Methods that share their options take them as ``**options``, where only a type checker would notice a typo:
without these checks, ``run("…", timeot=1)`` would run without a timeout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sandlot.domain.suggestions import did_you_mean

# What other sandboxes' SDKs call things, and what the same is here.
FOR_COMMANDS: Final = {
    "on_stdout": "run() and shell().run() take it, and stream() gives the events themselves",
    "on_stderr": "run() and shell().run() take it, and stream() gives the events themselves",
    "background": "start() runs a command in the background",
    "envs": "variables are given as env={...}",
    "workdir": "the folder is given as cwd",
    "working_dir": "the folder is given as cwd",
    "pty": "terminal() runs a command on a terminal",
    "user": "every command runs as the sandbox's one user",
}
_TWO_TIMEOUTS: Final = (
    "idle_timeout_s and lifetime_s say when a session ends, timeout_s in run() when a command does"
)
FOR_SESSIONS: Final = {
    "timeout": _TWO_TIMEOUTS,
    "timeout_s": _TWO_TIMEOUTS,
    "template": "the environment says which image and limits a session gets",
    "image": "the environment says which image a session gets; add your own to the server's registry",
    "envs": "variables are given as env={...}",
    "env_vars": "variables are given as env={...}",
    "memory": "limits are given as limits=LimitChange(memory_bytes=...)",
    "cpu": "limits are given as limits=LimitChange(cpus=...)",
}


def check_keywords(
    method: str,
    given: Iterable[str],
    takes: Collection[str],
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """``TypeError``, as Python itself raises it, for the first of ``given`` that is not in ``takes``.

    ``elsewhere``: what to say of names that are known from other methods or other libraries.
    """
    for name in given:
        if name in takes:
            continue
        hint = (elsewhere or {}).get(name)
        more = f": {hint}" if hint is not None else did_you_mean(name, takes)
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{more}")


def one_timeout(method: str, timeout_s: float | None, timeout: float | None) -> float | None:
    """``timeout_s`` is the name; ``timeout`` is what other libraries call it, in seconds as well."""
    if timeout_s is not None and timeout is not None:
        raise TypeError(f"{method}() takes timeout_s, or timeout for the same; not both")
    return timeout_s if timeout is None else timeout

"""What each language's kernel is called, and how a running kernel gets other variables and another folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence

# By language: the names of the kernel specifications that speak it.
SPECIFICATIONS = {
    "python": "python3",
    "javascript": "deno",
    "typescript": "deno",
    "bash": "bash",
    "r": "ir",
}
# Languages whose kernels show the value of a cell as they show plots.
VALUES_ARE_DISPLAYED = {"r"}
# Kernels that cannot use Unix sockets. They use ports on loopback, whose messages are signed.
TCP_ONLY = {"deno"}

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def loading(language: str) -> str:
    """Code that loads what a kernel's first cell would load. Nobody should wait for that with a cell."""
    if language == "python":
        return "get_ipython().display_formatter.format(None)"
    return adopting(language, {}, (), None)


def adopting(language: str, new: Mapping[str, str], gone: Sequence[str], cwd: str | None) -> str:
    """Code that gives a kernel other variables, and a folder unless that is None."""
    if language == "python":
        steps = [
            f"os.environ.update({_text(dict(new))})",
            f"[os.environ.pop(name, None) for name in {_text(list(gone))}]",
            f"os.chdir({_text(cwd)})" if cwd is not None else "None",
        ]
        return f"(lambda os: ({', '.join(steps)}))(__import__('os'))"
    if language == "bash":
        lines = [
            f"export {name}={shlex.quote(value)}"
            for name, value in new.items()
            if _SHELL_NAME.fullmatch(name)
        ]
        lines += [f"unset {name}" for name in gone if _SHELL_NAME.fullmatch(name)]
        return "\n".join([*lines, *([f"cd {shlex.quote(cwd)}"] if cwd is not None else [])])
    if language == "r":
        lines = [f"Sys.setenv({_r_name(name)}={_text(value)})" for name, value in new.items()]
        lines += [f"Sys.unsetenv({_text(name)})" for name in gone]
        return "\n".join([*lines, *([f"setwd({_text(cwd)})"] if cwd is not None else []), "invisible(NULL)"])
    lines = [f"Deno.env.set({_text(name)}, {_text(value)});" for name, value in new.items()]
    lines += [f"Deno.env.delete({_text(name)});" for name in gone]
    return "\n".join([*lines, *([f"Deno.chdir({_text(cwd)});"] if cwd is not None else []), "undefined;"])


def entering(language: str, env: Mapping[str, str]) -> str:
    """Code that gives a kernel the variables of one cell, and notes what ``leaving`` restores."""
    if language == "python":
        return (
            "(lambda os, kept, new: (setattr(kept, '_sandlot_cell', {n: os.environ.get(n) for n in new}),"
            f" os.environ.update(new)))(__import__('os'), __import__('builtins'), {_text(dict(env))})"
        )
    if language == "bash":
        return "\n".join(
            f"_sandlot_set_{name}=${{{name}+set}}; _sandlot_old_{name}=${{{name}-}}; "
            f"export {name}={shlex.quote(value)}"
            for name, value in env.items()
            if _SHELL_NAME.fullmatch(name)
        )
    if language == "r":
        names = ", ".join(_text(name) for name in env)
        changes = "\n".join(f"Sys.setenv({_r_name(name)}={_text(value)})" for name, value in env.items())
        return (
            f"options(sandlot.cell=Sys.getenv(c({names}), unset=NA, names=TRUE))\n{changes}\ninvisible(NULL)"
        )
    new = _text(dict(env))
    return (
        f"{{ const fresh = {new}; globalThis.__sandlotCell = Object.fromEntries(Object.keys(fresh).map("
        "(name) => [name, Deno.env.get(name)])); "
        "for (const [name, value] of Object.entries(fresh)) Deno.env.set(name, value); }"
    )


def leaving(language: str, env: Mapping[str, str]) -> str:
    """Code that restores the variables which one cell had of its own."""
    if language == "python":
        return (
            "(lambda os, kept: ([os.environ.pop(n, None) if v is None else os.environ.__setitem__(n, v)"
            " for n, v in kept.__dict__.pop('_sandlot_cell', {}).items()]))"
            "(__import__('os'), __import__('builtins'))"
        )
    if language == "bash":
        return "\n".join(
            f'if [ -n "$_sandlot_set_{name}" ]; then export {name}="$_sandlot_old_{name}"; '
            f"else unset {name}; fi; "
            f"unset _sandlot_set_{name} _sandlot_old_{name}"
            for name in env
            if _SHELL_NAME.fullmatch(name)
        )
    if language == "r":
        return (
            "(function(old) { for (name in names(old)) if (is.na(old[[name]])) Sys.unsetenv(name) else "
            "do.call(Sys.setenv, stats::setNames(list(old[[name]]), name)) })(getOption('sandlot.cell'))\n"
            "invisible(NULL)"
        )
    return (
        "for (const [name, value] of Object.entries(globalThis.__sandlotCell ?? {})) "
        "{ if (value === undefined) Deno.env.delete(name); else Deno.env.set(name, value); }"
    )


def _text(value: object) -> str:
    """The value as JSON, which Python, JavaScript and R read alike for text and tables of text."""
    return json.dumps(value)


def _r_name(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"

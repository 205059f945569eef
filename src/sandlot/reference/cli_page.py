"""docs/reference/cli.md: every command with its arguments and options, from the typer application itself.

Not by ``typer utils docs``: that cuts the summaries of commands short, repeats ``--help`` everywhere and
writes defaults and types in a form of its own (``<float range>``, ``[default: (8000)]``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from sandlot.cli.main import app
from sandlot.reference.docstrings import first_sentence
from sandlot.reference.markdown import (
    GENERATED,
    code,
    heading,
    link,
    page,
    page_links,
    paragraph,
    sentence,
    table,
)

_HEAD = f"""What the `sandlot` command does. {GENERATED}

`sandlot COMMAND --help` shows the same on the terminal. `sandlot --install-completion` installs completion
for the current shell.

An option also reads the variable that its table names; those of `serve`, `worker` and `coordinator` are in
[settings.md](settings.md). The command line wins. An error is one line on stderr, followed by what to do
about it; the exit status is then 1, and 2 for a wrong command line.
`run`, `exec` and `shell` exit with the status of the command that they ran."""

# A piece of code, or an option's name outside of one.
_OPTION = re.compile(r"(`[^`]*`)|(?<![\w-])--[a-z][\w-]*")

# Said once in the head. Whether they are there, and how, depends on what is installed beside typer.
_COMPLETION = {"install_completion", "show_completion"}


@dataclass(frozen=True, slots=True)
class Shown:
    """A command or a group of commands, and how it is called."""

    name: str
    command: TyperCommand | TyperGroup

    @property
    def level(self) -> int:
        """Of its heading: below its group's."""
        return self.name.count(" ") + 1

    @property
    def runs(self) -> bool:
        return not isinstance(self.command, TyperGroup) or self.command.invoke_without_command

    @property
    def help(self) -> str:
        return self.command.help or ""


def cli_page() -> str:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    shown = list(_below("sandlot", root))
    return page(
        heading(1, "Command line"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        heading(2, "Commands"),
        table(
            ("command", "what it does"),
            ((link(f"`{one.name}`", one.name), _told(first_sentence(one.help))) for one in shown if one.runs),
        ),
        heading(2, "Global options"),
        paragraph("They go before the command: `sandlot --url http://10.0.0.5:8000 run ls`."),
        _options(root),
        *(_section(one) for one in shown),
    )


def _below(name: str, group: TyperGroup) -> Iterator[Shown]:
    for own, command in group.commands.items():
        assert isinstance(command, TyperCommand | TyperGroup)
        yield Shown(f"{name} {own}", command)
        if isinstance(command, TyperGroup):
            yield from _below(f"{name} {own}", command)


def _section(one: Shown) -> str:
    return page(
        heading(one.level, f"`{one.name}`"),
        *(paragraph(_told(text)) for text in one.help.split("\n\n")),
        code(_usage(one)) if one.runs else "",
        _arguments(one.command),
        _options(one.command),
    )


def _usage(one: Shown) -> str:
    words = [one.name]
    if any(isinstance(each, TyperOption) for each in one.command.params):
        words.append("[OPTIONS]")
    words += [_called(each) for each in one.command.params if isinstance(each, TyperArgument)]
    if isinstance(one.command, TyperGroup):
        words.append("[COMMAND]")
    return " ".join(words)


def _called(argument: TyperArgument) -> str:
    """As in a usage line: ``NAME``, ``[NAME]`` if it may be left out, ``NAME...`` if there may be several."""
    name = argument.metavar or (argument.name or "").upper()
    if argument.nargs != 1 and "..." not in name:
        name += "..."
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _arguments(command: TyperCommand | TyperGroup) -> str:
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    return table(
        ("argument", "default", "meaning"),
        ((f"`{_called(each)}`", _default(each), _told(each.help or "")) for each in arguments),
    )


def _options(command: TyperCommand | TyperGroup) -> str:
    options = [
        each
        for each in command.params
        if isinstance(each, TyperOption) and not each.hidden and each.name not in _COMPLETION
    ]
    return table(
        ("option", "variable", "default", "meaning"),
        ((_names(each), _variable(each), _default(each), _meaning(each)) for each in options),
    )


def _names(option: TyperOption) -> str:
    """Short before long, with what stands for the value: ``-e``, ``--env NAME=VALUE``."""
    names = sorted([*option.opts, *option.secondary_opts], key=len)
    if not option.is_flag:
        value = option.metavar or names[-1].rpartition("-")[2].upper()
        names = [*names[:-1], f"{names[-1]} {value}"]
    return ", ".join(f"`{name}`" for name in names)


def _variable(option: TyperOption) -> str:
    return f"`{option.envvar}`" if option.envvar else ""


def _default(parameter: TyperOption | TyperArgument) -> str:
    if isinstance(parameter.show_default, str):
        return f"`{parameter.show_default}`"
    if parameter.default in (None, False) or callable(parameter.default):
        return ""
    return f"`{parameter.default}`"


def _meaning(option: TyperOption) -> str:
    low, high = getattr(option.type, "min", None), getattr(option.type, "max", None)
    bounds = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
    told = [_told(option.help or ""), sentence(", ".join(filter(None, bounds)))]
    return " ".join(filter(None, told))


def _told(text: str) -> str:
    """A help text as Markdown: option names as code, pages as links."""
    return page_links(_OPTION.sub(lambda found: found[1] or f"`{found[0]}`", sentence(text)))

"""docs/reference/sdk.md: the public Python classes, from their signatures and docstrings.

A sync class and its async twin share a section: methods and parameters are the same. What methods take and
return is found by their annotations and has a section of its own, whether it can be imported from ``sandlot``
or not.
"""

from __future__ import annotations

from typing import Any, Final

import sandlot
from sandlot.client.code.async_code import CodeOptions
from sandlot.client.options import ExecOptions, SessionOptions
from sandlot.client.workspaces.forks import ForkOptions
from sandlot.domain import errors
from sandlot.domain.errors import SandlotError
from sandlot.reference.classes import annotations_of, class_section, function_section, pair_section
from sandlot.reference.docstrings import first_sentence, inline
from sandlot.reference.markdown import GENERATED, anchor, heading, page, paragraph, table
from sandlot.reference.signatures import namespace_of
from sandlot.reference.values import (
    Links,
    explained_class,
    fields_of,
    is_value,
    properties_of,
    value_heading,
    value_section,
    values_within,
)

PAIRS: Final = (
    "Client",
    "Session",
    "Shell",
    "Exec",
    "Files",
    "Network",
    "Code",
    "CodeContext",
    "SessionWorkspace",
    "Artifacts",
    "SessionArtifacts",
    "Volumes",
)
RESULTS: Final = ("Result", "CommandFailed", "CodeResult", "CodeFailed")
OPTIONS: Final[dict[str, type]] = {
    "ExecOptions": ExecOptions,
    "CodeOptions": CodeOptions,
    "SessionOptions": SessionOptions,
    "ForkOptions": ForkOptions,
}
CLASSIC: Final = ("SandboxClient", "BatchSandboxClient", "Lifecycle")

_HEAD = f"""What `import sandlot` offers. {GENERATED}

Every class comes in two forms with the same methods and parameters: `Client`, `Session` and so on block, and
`AsyncClient`, `AsyncSession` and so on are for asyncio. The signatures are those of the blocking classes. In
the async classes every method is awaited, unless its entry says otherwise.

A failed command is a [`Result`](#result), not an exception. Everything else that goes wrong is an error of
`sandlot.errors`: [errors.md](errors.md). How sessions live, end and are lost: [sessions.md](sessions.md).

Methods that run commands take the options of [`ExecOptions`](#execoptions) as keyword arguments, and methods
that create sessions those of [`SessionOptions`](#sessionoptions). An unknown option is a `TypeError` that
names the nearest one."""
_NEVER = """The value of a timeout that never comes: `client.create(lifetime_s=NEVER)`. A server refuses it
unless its operator allows it (`SANDLOT_ALLOW_NEVER`)."""
_ERRORS = "The module of all errors: `from sandlot import errors`. [errors.md](errors.md) lists them."
_VALUES = "What methods take and return. Those that can be imported from `sandlot` come first."
_CLASSIC = "The classes that earlier programs use. They work on the same server and sessions."


def sdk_page() -> str:
    values = _values()
    links = _links(values)
    return page(
        heading(1, "Python SDK"),
        *(paragraph(text) for text in _HEAD.split("\n\n")),
        heading(2, "Contents"),
        _contents(values, links),
        *(pair_section(2, name, _public(name), _public(f"Async{name}"), links) for name in PAIRS),
        *(class_section(2, name, _public(name), links) for name in RESULTS),
        *(value_section(heading(2, name), kind, links) for name, kind in OPTIONS.items()),
        function_section(2, sandlot.run, links),
        heading(2, "NEVER"),
        paragraph(_NEVER),
        heading(2, "errors"),
        paragraph(_ERRORS),
        heading(2, "Values"),
        paragraph(_VALUES),
        *(value_section(heading(3, value_heading(name)), kind, links) for name, kind in values.items()),
        heading(2, "Classic interface"),
        paragraph(_CLASSIC),
        *(class_section(3, name, _public(name), links) for name in CLASSIC),
    )


def _public(name: str) -> Any:
    return getattr(sandlot, name)


def _contents(values: dict[str, type], links: Links) -> str:
    def linked(name: str) -> str:
        return f"[`{name}`]({links[name]})"

    kinds = {name: _public(name) for name in (*PAIRS, *RESULTS)} | OPTIONS
    kinds |= {name: kind for name, kind in values.items() if name in sandlot.__all__}
    rows = [
        (
            linked(name) + (f", `Async{name}`" if name in PAIRS else ""),
            inline(first_sentence(explained_class(kind).text), links),
        )
        for name, kind in kinds.items()
    ]
    return table(
        ("name", "what it is"),
        [
            *rows,
            (linked("run"), inline(first_sentence(sandlot.run.__doc__ or ""), links)),
            (linked("NEVER"), "The value of a timeout that never comes."),
            (linked("errors"), "The module of all errors."),
            ("[more values](#values)", "What methods return."),
            (", ".join(linked(name) for name in CLASSIC), "The classic interface."),
        ],
    )


def _values() -> dict[str, type]:
    """Those in ``sandlot.__all__``, then all others that methods take or return."""
    public = {name: _public(name) for name in sandlot.__all__ if is_value(_public(name))}
    found: dict[str, type] = {}
    waiting = {**public, **{name: _public(name) for name in (*PAIRS, *RESULTS)}, **OPTIONS}
    while waiting:
        name, kind = waiting.popitem()
        found[name] = kind
        waiting.update({each: value for each, value in _within(kind).items() if each not in found})
    others = {name: found[name] for name in sorted(found) if is_value(found[name])}
    return {name: kind for name, kind in {**public, **others}.items() if name not in RESULTS}


def _within(kind: type) -> dict[str, type]:
    """The values that a class has as fields and properties; of one with behaviour, also in its methods."""
    types = {**fields_of(kind), **{name: annotation for name, annotation, _ in properties_of(kind)}}
    found = values_within(types, namespace_of(kind))
    if not is_value(kind):
        for function, annotations in annotations_of(kind):
            found |= values_within(annotations, namespace_of(function))
    return found


def _links(values: dict[str, type]) -> Links:
    """Where the names in docstrings lead to."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SandlotError)
    ]
    return {
        **{kind.__name__: f"errors.md#{anchor(kind.__name__)}" for kind in kinds},
        **{name: f"#{anchor(value_heading(name))}" for name in values},
        **{
            name: f"#{anchor(name)}"
            for name in (*PAIRS, *RESULTS, *OPTIONS, *CLASSIC, "run", "NEVER", "errors")
        },
        **{f"Async{name}": f"#{anchor(name)}" for name in PAIRS},
    }

"""The sections of classes: constructor, properties, and each method with its signature and docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sandlot.domain.errors import SandlotError
from sandlot.reference.docstrings import as_markdown, own_docstring
from sandlot.reference.markdown import code, heading, link, page, page_links, paragraph
from sandlot.reference.signatures import signature
from sandlot.reference.values import Links, explained_class, is_value, members_table


@dataclass(frozen=True, slots=True)
class Method:
    """``note``: what is special about it, such as how its async twin is used."""

    name: str
    function: Callable[..., Any]
    note: str = ""


def methods_of(kind: type) -> Iterator[Method]:
    """Those of the class, and of its parts in other files, which bear its name: ``AsyncSessionPorts``."""
    for part in kind.__mro__:
        if not part.__name__.startswith(kind.__name__):
            continue
        for name, member in vars(part).items():
            function = member.__func__ if isinstance(member, classmethod) else member
            if not name.startswith("_") and inspect.isfunction(function):
                yield Method(name, function)


def class_section(level: int, name: str, kind: type, links: Links) -> str:
    return _section(level, name, kind, list(methods_of(kind)), links)


def pair_section(level: int, name: str, kind: type, twin: type, links: Links) -> str:
    """A class and its async twin, whose methods stand in the twin's order."""
    here = {method.name: method.function for method in methods_of(kind)}
    there = {method.name: method.function for method in methods_of(twin)}
    shared = [Method(each, here[each], _async_note(there[each])) for each in there if each in here]
    only_here = [Method(each, here[each], f"Only in `{name}`.") for each in here if each not in there]
    only_there = [
        Method(each, there[each], f"Only in `{twin.__name__}`.") for each in there if each not in here
    ]
    return page(
        _section(level, name, kind, [*shared, *only_here], links, f"The async form is `{twin.__name__}`."),
        *(_method(level + 1, twin.__name__, method, links) for method in only_there),
    )


def function_section(level: int, function: Callable[..., Any], links: Links) -> str:
    return page(
        heading(level, function.__name__),
        code(signature(function.__name__, function, ""), "python"),
        page_links(as_markdown(own_docstring(function), links)),
    )


def _section(level: int, name: str, kind: type, methods: list[Method], links: Links, note: str = "") -> str:
    jumps = " · ".join(link(f"`{each.name}`", f"{name}.{each.name}") for each in methods)
    return page(
        heading(level, name),
        code(signature(name, vars(kind)["__init__"], name), "python") if _is_made_by_callers(kind) else "",
        page_links(as_markdown(explained_class(kind).text, links)),
        paragraph(note),
        paragraph(f"Methods: {jumps}") if len(methods) > 1 else "",
        members_table(kind, links),
        *(_method(level + 1, name, method, links) for method in methods),
    )


def _is_made_by_callers(kind: type) -> bool:
    """The others come from a method, and their constructors are nobody's business."""
    return "__init__" in vars(kind) and not is_value(kind) and not issubclass(kind, SandlotError)


def _method(level: int, owner: str, method: Method, links: Links) -> str:
    shown = signature(method.name, method.function, owner)
    return page(
        heading(level, f"{owner}.{method.name}"),
        code(shown, "python"),
        page_links(as_markdown(own_docstring(method.function), links)),
        paragraph(f"{method.note} {_returned(shown, owner, links)}"),
    )


def _returned(shown: str, owner: str, links: Links) -> str:
    """Links to what a method returns, unless that is the object itself."""
    names = dict.fromkeys(re.findall(r"\w+", shown.rpartition(" -> ")[2]))
    known = [f"[`{name}`]({links[name]})" for name in names if name in links and name != owner]
    return f"See {', '.join(known)}." if known else ""


def _async_note(function: Callable[..., Any]) -> str:
    returns = str(inspect.signature(function).return_annotation)
    if returns == "Opening":
        return "Async: `await` it, or enter it with `async with`."
    if returns.startswith(("AsyncGenerator", "AsyncIterator")):
        return "Async: `async for`."
    if returns.startswith("AbstractAsyncContextManager"):
        return "Async: `async with`."
    return "" if inspect.iscoroutinefunction(function) else "Async: no `await`."


def annotations_of(kind: type) -> Iterator[tuple[Callable[..., Any], Mapping[str, object]]]:
    """The types of the parameters and the result of each method."""
    for method in methods_of(kind):
        found = inspect.signature(method.function)
        types = {each.name: each.annotation for each in found.parameters.values()}
        yield method.function, {**types, "return": found.return_annotation}

"""The sections of values: dataclasses, enumerations and options, with the meaning of each field."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Any

from sandlot.reference.docstrings import Explained, as_markdown, explained, inline, own_docstring
from sandlot.reference.markdown import page, sentence, table
from sandlot.reference.signatures import namespace_of, type_text

Links = Mapping[str, str]


def is_value(thing: object) -> bool:
    return isinstance(thing, type) and (dataclasses.is_dataclass(thing) or issubclass(thing, Enum))


def values_within(types: Mapping[str, object], namespace: Mapping[str, Any]) -> dict[str, type]:
    """The values that the types are made of, by the name that they have there, and those within them."""
    found: dict[str, type] = {}
    for annotation in types.values():
        for name in re.findall(r"\w+", type_text(annotation, namespace)):
            kind = namespace.get(name) or _from_alias(name, annotation, namespace)
            if is_value(kind) and kind.__module__.startswith("sandlot."):
                found[name] = kind
    return found


def _from_alias(name: str, annotation: object, namespace: Mapping[str, Any]) -> Any:
    """A class that the namespace has only as a part of an alias."""
    words = re.findall(r"\w+", annotation) if isinstance(annotation, str) else ()
    for word in words:
        for part in typing.get_args(namespace.get(word)):
            if getattr(part, "__name__", None) == name:
                return part
    return None


def fields_of(kind: type) -> dict[str, object]:
    """Public fields and their types. An enumeration's members have none."""
    if typing.is_typeddict(kind):
        return {name: getattr(each, "__forward_arg__", each) for name, each in kind.__annotations__.items()}
    if issubclass(kind, Enum):
        return {str(member.value): "" for member in kind}
    if dataclasses.is_dataclass(kind):
        return {each.name: each.type for each in dataclasses.fields(kind) if not each.name.startswith("_")}
    return {}


def explained_class(kind: type) -> Explained:
    return explained(own_docstring(kind), fields_of(kind))


def value_heading(name: str) -> str:
    """Not the name alone: ``ExecStatus`` would have the same link target as ``Exec.status``."""
    return f"class {name}"


def value_section(head: str, kind: type, links: Links) -> str:
    return page(head, as_markdown(explained_class(kind).text, links), members_table(kind, links))


def members_table(kind: type, links: Links) -> str:
    """Fields, then properties."""
    told = explained_class(kind)
    namespace = namespace_of(kind)
    first = "value" if issubclass(kind, Enum) else "option" if typing.is_typeddict(kind) else "name"
    rows = [
        (
            f"`{name}`",
            _typed(annotation, namespace, links),
            sentence(inline(told.meanings.get(name, ""), links)),
        )
        for name, annotation in fields_of(kind).items()
    ]
    rows += [
        (f"`{name}`", _typed(annotation, namespace, links), sentence(inline(docstring, links)))
        for name, annotation, docstring in properties_of(kind)
    ]
    return table((first, "type", "meaning"), rows)


def _typed(annotation: object, namespace: Mapping[str, Any], links: Links) -> str:
    """As code, and as a link if a part of it has a section."""
    text = type_text(annotation, namespace)
    target = next((links[name] for name in re.findall(r"\w+", text) if name in links), None)
    shown = f"`{text}`" if text else ""
    return shown if target is None else f"[{shown}]({target})"


def properties_of(kind: type) -> Iterator[tuple[str, object, str]]:
    """Name, type and docstring."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        get = member.fget if isinstance(member, property) else None
        get = member.func if isinstance(member, cached_property) else get
        if get is not None:
            docstring = " ".join(own_docstring(get).split())
            yield name, inspect.signature(get).return_annotation, docstring

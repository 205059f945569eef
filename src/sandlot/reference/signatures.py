"""Signatures and types as a reader wants them: without quotes, private parameters and names of aliases.

The sync classes carry the signatures of the async ones (``client.sync.blocking``), so what is shown here is
what ``help`` shows.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from sandlot.domain.session import NEVER
from sandlot.reference.markdown import WIDTH

_LITERAL: Final = re.compile(r"Literal\[([^\]]*)\]")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")
_SELF: Final = re.compile(r"\bSelf\b")
_UNPACK: Final = re.compile(r"Unpack\[(\w+)\]")

_STARS: dict[inspect._ParameterKind, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def namespace_of(thing: Any) -> Mapping[str, Any]:
    """The names that the annotations of a function or class can use."""
    return vars(sys.modules[inspect.unwrap(thing).__module__])


def type_text(annotation: object, namespace: Mapping[str, Any]) -> str:
    """With aliases spelled out: ``Command`` is ``str | Sequence[str]``."""
    text = annotation if isinstance(annotation, str) else _formatted(annotation)
    text = _UNPACK.sub(r"\1", text).replace("builtins.", "")
    text = _LITERAL.sub(lambda found: found[1].replace("'", '"').replace(", ", " | "), text)
    return _NAME.sub(lambda found: _spelled_out(found[0], namespace), text)


def _spelled_out(name: str, namespace: Mapping[str, Any]) -> str:
    value = namespace.get(name)
    return _formatted(value) if _is_alias(value) else name


def _is_alias(value: object) -> bool:
    return not isinstance(value, type) and typing.get_origin(value) is not None


def _formatted(value: Any) -> str:
    arguments = typing.get_args(value)
    origin = typing.get_origin(value)
    if value is type(NEVER):
        return "NEVER"
    if value is None or value is type(None):
        return "None"
    if isinstance(value, typing.ForwardRef):
        return value.__forward_arg__
    if origin in (types.UnionType, typing.Union):
        return " | ".join(_formatted(each) for each in arguments)
    if origin is typing.Literal:
        return " | ".join(f'"{each}"' for each in arguments)
    if isinstance(value, list):  # the parameters of a Callable
        return f"[{', '.join(_formatted(each) for each in value)}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_formatted(each) for each in arguments)}]"
    return str(getattr(value, "__name__", value))


def signature(name: str, function: Callable[..., Any], owner: str) -> str:
    """In one line if it fits. ``owner``: the class, which ``Self`` stands for."""
    namespace = namespace_of(function)
    found = inspect.signature(function)
    words = list(_parameters(found, namespace))
    returned = ""
    if name != owner and found.return_annotation is not inspect.Signature.empty:
        text = type_text(found.return_annotation, namespace)
        returned = " -> " + _SELF.sub(owner, text)
    line = f"{name}({', '.join(words)}){returned}"
    return line if len(line) <= WIDTH else _wrapped(name, words, returned)


def _parameters(found: inspect.Signature, namespace: Mapping[str, Any]) -> Iterator[str]:
    keywords = False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            yield "*"
        text = _STARS.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {type_text(parameter.annotation, namespace)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter)}"
        yield text


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if parameter.name == "mode" and isinstance(value, int):
        return f"0o{value:o}"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        quoted = ", ".join(f'"{each}"' for each in value)
        return f"({quoted})"
    return f"{value:_}" if isinstance(value, int) and value > 9999 else repr(value)


def _wrapped(name: str, words: list[str], returned: str) -> str:
    """As many parameters in a line as fit."""
    lines, line = [f"{name}("], "   "
    for word in words:
        if len(line) + len(word) + 2 > WIDTH and line.strip():
            lines.append(line)
            line = "   "
        line += f" {word},"
    return "\n".join([*lines, line, f"){returned}"])

"""Reads YAML files as plain data. Every error names the file and the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from sandlot.domain.errors import InvalidRequest

MAX_FILE_BYTES = 256 * 1024


class _PlainLoader(yaml.SafeLoader):
    """Loads plain data: no aliases (a few can make gigabytes), no duplicate or non-text keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "YAML aliases are not allowed.", self.get_mark()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in keys:
                fault = "is repeated." if isinstance(key, str) else "is not text. Put it in quotes."
                raise yaml.constructor.ConstructorError(None, None, f"key {key} {fault}", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"Cannot read {file}: {error.strerror}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{file} exceeds {MAX_FILE_BYTES} bytes.")
    try:
        document = yaml.load(content, _PlainLoader)  # noqa: S506 (stricter than SafeLoader)
        json.dumps(document, allow_nan=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise problem(file, place, error.problem or "not valid YAML") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{file}: nested too deeply.") from error
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{file}: has a value that JSON cannot represent: {error}") from error
    return document


def problem(file: Path, place: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{file}: {place}: {message}", details={"file": str(file), "place": place})
